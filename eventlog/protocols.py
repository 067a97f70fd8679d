"""Defines what a log offers to its readers and to its one writer, wherever its bytes are.

``EventLog`` and ``LogReader`` are the implementation in files. ``eventlog.remote`` is the one on
a server. What is above this package knows these protocols alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

from eventlog.errors import Damage
from eventlog.files.lock import LogOwner
from eventlog.format.record import Record, Snapshot

OnDamage = Callable[[Damage], None]


@dataclass(frozen=True, slots=True)
class OpenReport:
    """What opening a log found. ``str()`` says it in one line.

    ``clean``: the last process that appended to the log closed it. ``replayed``: records verified
    in the last segment, whose size is ``size`` bytes. ``torn_size``: bytes cut off that were never
    acknowledged, with ``torn_frames`` whole frames among them. ``damaged``: parts that were
    acknowledged, and are not sound any more.
    """

    clean: bool
    last_lsn: int
    replayed: int
    size: int
    torn_size: int
    torn_frames: int
    damaged: tuple[Damage, ...]
    time_s: float

    def __str__(self) -> str:
        how = "new log" if not self.last_lsn else "closed cleanly" if self.clean else "not closed"
        parts = [f"{how}, last LSN {self.last_lsn}, {self.replayed} records verified"]
        if self.torn_size:
            parts.append(f"torn tail of {self.torn_size} bytes cut off (never acknowledged)")
        parts += [f"DAMAGE: {damage}" for damage in self.damaged]
        return "; ".join(parts) + f" ({self.time_s * 1000:.1f} ms)"


class LogEnd(Protocol):
    """Where a log ends: ``next_lsn``, and what is wrong there."""

    @property
    def next_lsn(self) -> int: ...

    @property
    def snapshot(self) -> int: ...

    @property
    def torn_size(self) -> int: ...

    @property
    def damaged(self) -> tuple[Damage, ...]: ...


class LogRecords(Protocol):
    """The records of a log, for its writer and for readers. Any thread may read."""

    @property
    def path(self) -> str:
        """Where the log is, for people: a path or a URL, without secrets."""

    @property
    def oldest_lsn(self) -> int:
        """The LSN that the log begins at; above 1 after ``truncate_before``."""

    def records(self, start: int = 1, *, on_damage: OnDamage | None = None) -> Iterator[Record]:
        """Records from LSN ``start`` to the end, in order, snapshots among them.

        At damage it raises DamagedError, or passes the damage to ``on_damage`` and continues.
        """

    def snapshots(self, on_damage: OnDamage | None = None) -> Iterator[Snapshot]:
        """Verified snapshots, the newest first; a damaged one is passed to ``on_damage``."""

    def latest_snapshot(self) -> Snapshot | None:
        """The newest snapshot that verifies, or None."""

    def fetch(self, lsns: set[int]) -> dict[int, Record]:
        """The records of ``lsns`` that are there and sound; the others are left out."""

    def close(self) -> None:
        """Let go of the log."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None: ...


class ReadableLog(LogRecords, Protocol):
    """A read-only view of a log, which may be live, dead or damaged. Takes no lock."""

    def arrivals(self, start: int = 1) -> Iterator[Record | Damage | None]:
        """As ``records``, for callers that follow a log. Never ends and never waits: None means
        that there are no more records now."""

    def durable_lsn(self) -> int:
        """Records up to this LSN are known to be durable."""

    def tail(self) -> LogEnd:
        """Verify the last segment and say where the log ends."""

    def owner(self) -> LogOwner | None:
        """Who has the log, or had it last; None when nothing says so."""

    def former_owner(self) -> str:
        """What a process that claimed the log now would get from ``WritableLog.former_owner``,
        in words: processes that do not have the log, and may still act. "": there are none."""


class WritableLog(LogRecords, Protocol):
    """A log that this process alone may append to, until ``close``. Thread-safe.

    After ``close``, or a takeover, every append is refused: LogError. A store with leases renews
    them by itself for as long as the log is open.
    """

    @property
    def epoch(self) -> int:
        """The number of this ownership: higher than that of every owner before."""

    def former_owner(self) -> str:
        """An earlier owner that may be alive, in words; "" when all have ended.

        The log was taken from it, or its lease had expired: also if the owners after it released
        the log. Or it has given the log up, and said that it may still act. What it appends is
        refused, but its tools may still act. A store that learns that it has ended says "" from
        then on.
        """

    def may_still_act(self, acts: bool) -> None:
        """Say whether this process may act for the log after ``close``: a thread that nothing can
        end may. Any thread may call it, also after ``close``.

        ``acts``: if true, the next owner gets it from ``former_owner``. A store with leases keeps
        the log held until its lease has ended.
        """

    @property
    def report(self) -> OpenReport: ...

    @property
    def log_id(self) -> bytes:
        """16 random bytes that never change; durable before any record."""

    @property
    def is_encrypted(self) -> bool:
        """Whether appended records are encrypted."""

    @property
    def durability(self) -> str:
        """What ``commit`` promises, as of ``EventLog.open``: it blocks only for "power"."""

    @property
    def last_lsn(self) -> int:
        """The LSN of the newest record; 0 in an empty log."""

    @property
    def durable_lsn(self) -> int:
        """Records up to this LSN are known to be durable."""

    @property
    def last_time_ns(self) -> int:
        """The time of the record that this process appended last."""

    @property
    def segment_size(self) -> int:
        """The size in bytes at which a new segment is begun."""

    @property
    def group(self) -> CommitGroup | None:
        """Commits this log together with others, or None: ``commit`` is a flush of its own."""

    def time_ns(self) -> int:
        """The store's clock: ns since 1970. Stamps records; decides deadlines and leases."""

    def append(
        self, kind: str, body: Any, *, time_ns: int | None = None, hold: bool = False
    ) -> int:
        """Append one record; returns its LSN. Arguments as of ``EventLog.append``.

        In files it survives the death of the process from here on; elsewhere from ``commit`` on.
        """

    def append_batch(self, items: Iterable[tuple[str, Any]]) -> list[int]:
        """Append ``items``, of kind and body, as one atomic batch: after a crash all of them are
        there, or none."""

    def append_snapshot(self, state: Any) -> int:
        """Append a snapshot of ``state``; its LSN."""

    def commit(self) -> None:
        """Make everything appended so far durable. Blocks. Raises FencedError when another owner
        has the log."""

    def commit_behind(self) -> None:
        """Have everything appended so far committed soon, by a thread. Returns at once."""

    def roll(self) -> None:
        """End the present segment: later records go into a new one."""

    def truncate_before(self, lsn: int) -> int:
        """Remove segments that hold only records before ``lsn``; the new ``oldest_lsn``."""


class CommitGroup(Protocol):
    """Commits logs of one store together: one round trip for all of them."""

    def commit(
        self, logs: Iterable[WritableLog], done: Callable[[WritableLog, Exception | None], None]
    ) -> None:
        """Commit what each log has now. Returns at once; ``done`` is called for each, in a thread
        of the group, with the error or None."""
