"""Defines what a store of runs does. A user's own store implements ``RunStore``."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

from eventlog import LogOwner, Packed, ReadableLog, Record, WritableLog
from eventlog.encryption import Encryption
from recovery.journal.inbox_messages import KEY, is_same_message
from recovery.journal.run_label import RunLabel
from recovery.journal.submission import Submission
from recovery.values.pack import pack

# Becomes the name of a directory, on case-insensitive file systems too: no separators, no dots at
# its beginning, no control characters, and short enough for any of them.
RUN_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+=-]{0,127}")

SIGNAL_NAME_MAX = 200  # it is part of small records
PAGE = 64  # runs that a server is asked for at once
INBOX = "inbox"  # the log of messages to the run, beside the run's log


class RunStore(Protocol):
    """Logs of runs by run id. Any thread may call it.

    ``run_id`` names a run, and may become the name of a directory: ValueError for an impossible
    one. ``takeover`` (False): take the log from a process that is known to be stuck.

    What a store may do besides is in protocols of their own: RunQueue, KeepsRemains. A store that
    keeps keys of subjects has them as ``subject_keys``: a SubjectKeys over a KeyDocument.
    """

    @property
    def address(self) -> str:
        """Where the runs are, as ``--store`` takes it: a path, or a URL without its password. Two
        stores of one address have the same runs. "" if only this object has them."""

    @property
    def durability(self) -> str:
        """What a commit survives: "power", "process" or "none"."""

    @property
    def encryption(self) -> Encryption | None:
        """What encrypts the records; None if they are not encrypted."""

    @property
    def is_remote(self) -> bool:
        """Whether calls wait for a network, so that an event loop makes them in threads."""

    def claim(self, run_id: str, takeover: bool = False) -> WritableLog:
        """The run's log, for this process alone; made if it does not exist.

        Each claim has a higher epoch than every claim before. Once it returns, the store refuses
        every append under an earlier epoch. Raises LogLockedError when another process has the
        log: while that process lives, or, in a store with leases, while its lease lasts. ``close``
        of the log hands the run over: the next claim need not wait.
        """

    def read(self, run_id: str) -> ReadableLog | None:
        """A reader of the run's log, which may be live; None when the run does not exist, or its
        log is in creation."""

    def run_ids(self) -> list[str]:
        """All runs that have a log, in order of their ids."""

    def post(
        self,
        run_id: str,
        kind: str,
        body: Mapping[str, Any],
        key: str = "",
        time_ns: int | None = None,
    ) -> int:
        """Put a message into the inbox of an existing run, which any process may have; returns its
        number.

        ``kind``: "signal", "decision" or "cancel". ``body`` has the ``uid`` of the run that it is
        for; it counts in no other run. ``time_ns``: when it was sent (since 1970), for a signed
        message; else now. Durable when this returns. A message that was posted under the same
        ``key`` is not posted again: ValueError when it is another message. Raises LogLockedError
        when other senders keep the inbox.
        """

    def inbox(self, run_id: str) -> ReadableLog | None:
        """A reader of the messages to the run; None when none was ever posted."""

    def remove(self, run_id: str, at: int | None = None, inbox: int | None = None) -> None:
        """Delete the run and its inbox; durably gone when this returns.

        ``at``: delete only if that is still the LSN of its newest record. ``inbox``: delete only if
        that is still the LSN of the newest message to it; 0: there is none. So a message that
        ``post`` puts there meanwhile keeps the run, or ``post`` raises. Else LogError, and nothing
        was removed; FileNotFoundError when the run does not exist, LogLockedError when a process
        has it.
        """

    def size(self, run_id: str) -> int:
        """Bytes that the run takes, its inbox included; 0 when there is no such run."""

    def sweep(self) -> int:
        """Delete the remains of interrupted removals; returns the number of runs."""


@runtime_checkable
class KeepsRemains(Protocol):
    """A store in which interrupted removals and repairs leave something behind."""

    def unswept(self) -> list[str]:
        """The runs (by id) that an interrupted removal has left partly."""

    def backups(self) -> list[str]:
        """The names of the places in which repairs have left backups."""


@runtime_checkable
class DescribesServer(Protocol):
    """A store that says how its server is set up."""

    def describe(self) -> list[tuple[str, str, str]]:
        """What a person should know: name, text, and what to do about it ("": it is well)."""


@dataclass(frozen=True, slots=True)
class LogBytes:
    """A log as the bytes of its segments, by number, and where it ends."""

    log_id: bytes
    epoch: int
    next_lsn: int
    oldest_lsn: int
    snapshot: int
    snapshot_segment: int
    segments: dict[int, bytes]
    label: RunLabel


@runtime_checkable
class AdoptsLogs(Protocol):
    """A store that takes the logs of a run as they are in another store."""

    def adopt(self, run_id: str, logs: Mapping[str, LogBytes]) -> None:
        """Make run ``run_id`` of these ``logs``, by name: "" is the run's own, INBOX its inbox.

        All of it is there when this returns, and none of it after a crash before that. Raises
        RecoveryError if there is a run of this id.
        """

    def make_durable(self, run_id: str) -> None:
        """Have an existing run survive a loss of power: the process that adopted it may have died
        just before it did that."""


@dataclass(frozen=True, slots=True)
class RunEntry:
    """A run as a store lists it, without opening its log. ``run_id``, ``agent``, ``priority`` and
    ``limit_key``: as of Submission. ``last_lsn`` and ``size``: its records and bytes.

    ``state``: "submitted" (no process has begun it), "running" (a process has it), "interrupted"
    (none has it, and it can be resumed), "in doubt", "waiting", "finished", "failed", "cancelled",
    "undone"; "" where nothing says so. ``due_ns``: when there is something to do by itself (ns
    since 1970; 0: never). ``owner``: who has it, or had it last. ``changed_ns``: its last commit.
    """

    run_id: str
    state: str
    agent: str = ""
    priority: int = 0
    limit_key: str = ""
    due_ns: int = 0
    owner: LogOwner | None = None
    last_lsn: int = 0
    size: int = 0
    changed_ns: int = 0


class ReadsRuns(Protocol):
    """Reads runs: a store, or what was read of one. See RunStore."""

    def read(self, run_id: str) -> ReadableLog | None: ...

    def inbox(self, run_id: str) -> ReadableLog | None: ...


class KeptListing(NamedTuple):
    """What a listing has kept of a run. ``version``: of the run now; it changes with each record
    of the run or of its inbox, and with each owner. ``kept_version``: what ``content`` is of."""

    version: str
    kept_version: str
    content: str


@runtime_checkable
class ReadsManyRuns(Protocol):
    """A store that reads many runs with one query, and keeps what listings have read of them."""

    def loaded(self, run_ids: Sequence[str]) -> ReadsRuns:
        """These runs as they are now, and their inboxes."""

    def kept(self, run_ids: Sequence[str]) -> dict[str, KeptListing]:
        """What listings have kept of these runs. Those that a process has are left out."""

    def keep(self, contents: Mapping[str, tuple[str, str]]) -> None:
        """Keep the version and the content of each run. What cannot be kept is not."""


@runtime_checkable
class TakesSubmissions(Protocol):
    """A store into which runs are handed in, for a worker to begin them."""

    def submit(self, submission: Submission) -> bool:
        """Have a run begun by a worker: ``submission``. Durable when this returns.

        False, and nothing is changed, if the run exists or was submitted before with the same
        task. Raises TaskMismatchError if it was submitted with another one, or as another agent's.
        """

    def submission(self, run_id: str) -> Submission | None:
        """What run ``run_id`` was submitted as; None if it was not."""


@runtime_checkable
class RunQueue(TakesSubmissions, Protocol):
    """A store that lists runs by state with one query, and opens no log for it."""

    def find(
        self,
        *,
        states: Collection[str] = (),
        due: bool = False,
        agents: Collection[str] | None = None,
        after: str = "",
        limit: int = 1000,
    ) -> list[RunEntry]:
        """Runs in these ``states`` (all), at most ``limit``, in the order of their ids after
        ``after``.

        ``due``: only runs that make progress if they are resumed now, the most urgent first. These
        are submitted runs whose time has come, and runs whose owner is gone. They are also waits
        that are over, and parked runs that were sent something. ``agents``: only runs of these.
        """

    def wait(self, timeout_s: float) -> bool:
        """Wait at most ``timeout_s`` until runs may have become due; whether anything changed.

        Blocks without asking the store again and again; may return early.
        """

    def time_ns(self) -> int:
        """The store's clock, which decides leases and deadlines: ns since 1970."""


def time_ns_of(backend: object) -> int:
    """Now, by the clock that stamps the records of a store, if it has one of its own; in ns."""
    clock: Callable[[], int] = getattr(backend, "time_ns", time.time_ns)
    return clock()


def clock_ahead_s(clock: object) -> float:
    """By how much the clock of a store, or of a reader of its logs, is ahead of this machine's."""
    return time_ns_of(clock) / 1e9 - time.time()


def in_pages(run_ids: Sequence[str]) -> Iterator[Sequence[str]]:
    """As many runs at a time as a server is asked for at once."""
    return (run_ids[first : first + PAGE] for first in range(0, len(run_ids), PAGE))


def check_run_id(run_id: str) -> str:
    """The run id itself; ValueError when it cannot be the name of a log."""
    if not isinstance(run_id, str):
        given: object = run_id
        raise ValueError(f"run_id is a str, not {given!r:.50}")
    if not RUN_ID.fullmatch(run_id):
        raise ValueError(
            f"run_id {run_id!r}: use 1 to 128 of the characters A-Z a-z 0-9 _ . @ + = - and begin "
            "with a letter, digit or underscore"
        )
    return run_id


def check_signal_name(name: str) -> str:
    """The name itself; ValueError when a signal cannot have it."""
    if not isinstance(name, str):
        given: object = name
        raise TypeError(f"a signal's name is text, not {given!r:.80}")
    if not 0 < len(name) <= SIGNAL_NAME_MAX:
        raise ValueError(f"a signal's name is 1 to {SIGNAL_NAME_MAX} characters, not {name!r:.50}")
    return name


def packed_message(body: Mapping[str, Any], key: str) -> dict[str, Packed]:
    """The parts of a message to a run, as ``post`` writes them."""
    return {
        name: value if type(value) is Packed else pack(value, name)
        for name, value in (*body.items(), (KEY, key))
    }


def posted_lsn(records: Iterable[Record], message: tuple[str, dict[str, Packed]], key: str) -> int:
    """The LSN of the message that was posted under this key; 0 if none was."""
    for record in records:
        if (is_same := is_same_message(record, message, key)) is not None:
            if not is_same:
                raise ValueError(f"the run was sent something else under {key!r}: LSN {record.lsn}")
            return record.lsn
    return 0
