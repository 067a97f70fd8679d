"""What can go wrong with a log, by what the caller can do about it.

A torn tail is not an error: it was never acknowledged, so it is cut off and counted in the
report. ``OSError`` from the operating system passes through, with the path that it is about.
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
    "NotEncryptedError",
    "RefusedValueError",
    "UnsupportedFormatError",
    "WriterFailedError",
    "WrongKeyError",
]


@dataclass(frozen=True, slots=True)
class Damage:
    """A part of a log that was known to be durable and is not sound any more.

    ``first_lsn .. last_lsn`` are the records lost (none when ``last_lsn < first_lsn``);
    ``offset`` and ``size`` are bytes in the segment. ``snapshot`` is true when all that was lost
    is one snapshot, from which an earlier one stands in.
    """

    segment: int
    offset: int
    size: int
    first_lsn: int
    last_lsn: int
    what: str
    snapshot: bool = False

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

    ``pid``, ``host`` and ``since`` name the owner as far as its lock file tells.
    """

    def __init__(self, path: str, pid: int | None, host: str | None, since: str | None) -> None:
        self.path, self.pid, self.host, self.since = path, pid, host, since
        owner = f"process {pid} on {host}, since {since}" if pid else "another process"
        super().__init__(
            f"{path} is held by {owner}. Nothing was changed. Stop that process, or, when it is "
            "known to be stuck, open with takeover=True: nothing that it writes afterwards counts."
        )


class FencedError(LogError):
    """A newer owner has taken the log over; this writer can never append to it again.

    What this writer had committed before the takeover is kept; what it appended since does not
    count. Open the log again to go on (it is held by the new owner until that one closes).
    """


class WriterFailedError(LogError):
    """A write or flush of this writer failed earlier, and it takes no more.

    After a failed flush the operating system may have dropped the bytes and may report success
    next time, so nothing is tried again on the same descriptor. What was committed is safe; close
    this log and open it again: that reads what is really on disk. ``__cause__`` is the first error.
    """


class DamagedError(LogError):
    """Something that had been acknowledged cannot be read. ``damage`` says where and what."""

    def __init__(self, path: str, damage: Damage) -> None:
        self.path, self.damage = path, damage
        super().__init__(
            f"{path}: {damage}. The files are as they were found; `logdump verify` lists all "
            "damage, and records(on_damage=...) reads everything outside it."
        )


class EncryptedLogError(LogError):
    """The log is encrypted, and no key was given. Nothing is lost, and nothing was written.

    ``key_id`` names the key that it is under; None when that cannot be read.
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
    """The log, or what was to be read of it, is encrypted under another key than the one given.

    Not damage: nothing is lost, and nothing was written.
    """


class NotEncryptedError(LogError):
    """A log with records in clear was opened or read with a key. Nothing was written.

    Anybody can have written what is in clear, so it counts only when that was asked for.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(
            f"{path} holds records in clear, and was to be encrypted. Nothing was written. If it "
            "was begun in clear, open it with Encryption(..., accept_clear=True): what is in it "
            "is believed and what comes is encrypted; a command is given no key for it. If not, "
            "somebody has put records into it."
        )


class UnsupportedFormatError(LogError):
    """Not a log, or one of a format version that this library does not know. Not damage."""


class RefusedValueError(LogError, ValueError):
    """A value that a log cannot carry, with the path to it. Nothing was written."""

    def __init__(self, path: str, reason: str) -> None:
        self.value_path, self.reason = path, reason
        super().__init__(f"{path}: {reason}")
