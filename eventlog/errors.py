"""Defines the errors of a log, by what the caller can do about them.

A torn tail is not an error: it was never acknowledged, so it is cut off and counted in the
report. An ``OSError`` from the operating system passes through, with the path in it.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "Damage",
    "DamagedError",
    "EncryptedLogError",
    "FencedError",
    "LogError",
    "LogLockedError",
    "LostRecordsError",
    "NotEncryptedError",
    "RefusedValueError",
    "UnreachableError",
    "UnsupportedFormatError",
    "WriterFailedError",
    "WrongKeyError",
]


@dataclass(frozen=True, slots=True)
class Damage:
    """A part of a log that was known to be durable, and is not sound any more.

    ``first_lsn .. last_lsn`` are the lost records (none when ``last_lsn < first_lsn``);
    ``offset`` and ``size`` are bytes in the segment. ``snapshot``: only one snapshot was lost; an
    earlier one replaces it.
    """

    segment: int
    offset: int
    size: int
    first_lsn: int
    last_lsn: int
    what: str
    snapshot: bool = False

    @classmethod
    def of_records(cls, first_lsn: int, last_lsn: int, what: str) -> Damage:
        """Records that are lost, or make no sense, wherever they were. ``what``: why, in words."""
        return cls(0, 0, 0, first_lsn, last_lsn, what)

    @property
    def lost(self) -> int:
        """How many records are lost."""
        return max(0, self.last_lsn - self.first_lsn + 1)

    def __str__(self) -> str:
        if self.lost == 0:
            loss = "no record lost"
        elif self.lost == 1:
            loss = f"LSN {self.first_lsn} lost" + (" (a snapshot)" if self.snapshot else "")
        else:
            loss = f"LSN {self.first_lsn}-{self.last_lsn} lost"
        where = f"segment {self.segment}, offset {self.offset}: " if self.segment else ""
        return f"{where}{self.what}; {loss}"


class LogError(Exception):
    """Base of all errors of this package."""


class LogLockedError(LogError):
    """Another process (or another ``EventLog`` of this one) holds the log. Nothing was changed.

    ``pid``, ``host`` and ``since`` name the owner, as far as its lock file does.
    """

    def __init__(self, path: str, pid: int | None, host: str | None, since: str | None) -> None:
        self.path, self.pid, self.host, self.since = path, pid, host, since
        owner = f"process {pid} on {host}, since {since}" if pid else "another process"
        super().__init__(
            f"{path} is held by {owner}. Nothing was changed. Stop that process, or, when it is "
            "known to be stuck, take it over (takeover=True): what it writes from then on does not "
            "count."
        )


class FencedError(LogError):
    """A newer owner has taken the log over; this writer can never append to it again.

    Records that this writer committed before the takeover are kept; later ones do not count. To
    continue, open the log again after the new owner has closed it.
    """


class WriterFailedError(LogError):
    """A write or flush of this writer failed earlier, so it accepts no more records.

    After a failed flush the operating system may have dropped the bytes, and may report success
    next time. So nothing is retried on the same descriptor. Committed records are safe. Close this
    log and open it again: that reads what is really on disk. ``__cause__`` is the first error.
    """


class UnreachableError(LogError):
    """The server of a log did not answer for as long as it may take. ``__cause__`` says why.

    Everything that was committed is safe. Whether the last commit is on the server is unknown;
    claiming the log again finds out. No side effect has begun whose intent is not known durable.
    """

    def __init__(
        self, address: str, waited_s: float, cause: BaseException, *, is_refused: bool = False
    ) -> None:
        self.address = address
        self.__cause__ = cause
        why = (str(cause).strip() or type(cause).__name__).splitlines()[0].rstrip(".?")
        head = f"{address} has not answered for {waited_s:.3g} s: {why}."
        if is_refused:
            head = f"{address} refuses the connection: {why}. Correct its user, password or name."
        super().__init__(
            f"{head} Everything that was committed is safe. If a run was at a commit, resume the "
            "run: that finds out whether the commit arrived."
        )


class LostRecordsError(LogError):
    """The server has lost records that it had acknowledged: an old backup was restored, or a
    standby that was behind was promoted. Nothing more is written to the log.
    """

    def __init__(self, path: str, next_lsn: int, expected: int) -> None:
        self.path, self.lost = path, expected - next_lsn
        super().__init__(
            f"{path} ends at LSN {next_lsn - 1} on the server, which had acknowledged LSN "
            f"{expected - 1}: {self.lost} records are lost. Was a backup restored, or a standby "
            "promoted that was behind? What these records say was done may be done again by a run "
            "that is resumed. Compare with the old server before that."
        )


class DamagedError(LogError):
    """A record that was acknowledged cannot be read. ``damage`` says where and which."""

    def __init__(self, path: str, damage: Damage) -> None:
        self.path, self.damage = path, damage
        super().__init__(
            f"{path}: {damage}. The files are as they were found; `logdump verify` lists all "
            "damage, and records(on_damage=...) reads everything outside it."
        )


class EncryptedLogError(LogError):
    """The log is encrypted, and no key was given. Nothing is lost, and nothing was written.

    ``key_id`` names its key; None when the id cannot be read.
    """

    def __init__(self, path: str, key_id: str | None, why: str = "no key was given") -> None:
        self.path, self.key_id = path, key_id
        under = "" if key_id is None else f" under the key {key_id!r}"
        super().__init__(
            f"{path} is encrypted{under}, and {why}. Nothing is lost, and nothing was written. "
            "Give that key: encryption=Encryption(...), or --key-file for the commands. `logdump "
            "verify` checks it without one."
        )


class WrongKeyError(EncryptedLogError):
    """The records are encrypted under another key than the one given.

    Not damage: nothing is lost, and nothing was written.
    """


class NotEncryptedError(LogError):
    """A log with unencrypted records was opened or read with a key. Nothing was written.

    Anyone can have written unencrypted records, so they count only if the caller asked for that.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(
            f"{path} holds unencrypted records, and a key was given. Nothing was written. If the "
            "log was begun without a key, open it with Encryption(..., accept_clear=True): its "
            "records are accepted, and new ones are encrypted; give a command no key for it. If "
            "it was not, the unencrypted records are forged."
        )


class UnsupportedFormatError(LogError):
    """Not a log, or a log of a format version that this library does not know. Not damage."""


class RefusedValueError(LogError, ValueError):
    """A value that a log cannot carry, with the path to it. Nothing was written."""

    def __init__(self, path: str, reason: str) -> None:
        self.value_path, self.reason = path, reason
        super().__init__(f"{path}: {reason}")
