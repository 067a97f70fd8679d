"""One thread of a saver: its log, its index, and who may write."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn

import msgpack

from eventlog import (
    Damage,
    DamagedError,
    LogError,
    LogLockedError,
    Packed,
    ReadableLog,
    Record,
    WritableLog,
)
from eventlog.errors import UnsupportedFormatError
from recovery.errors import RecoveryError
from recovery.integrations.langgraph.elements import Recorded
from recovery.integrations.langgraph.index import THREAD, Index
from recovery.integrations.langgraph.values import Found, State
from recovery.stores import RunStore

LOCK_WAIT_S, LOCK_PAUSE_S = 3.0, 0.01
STATES_MAX = 8  # checkpoints of a thread whose values are remembered as objects
SERVED_MAX, SERVED_KEPT = 64, 8  # of an open thread, and of one that is closed
ROLL_SIZE = 1 << 20  # bytes: an opening reads the last segment
LOOKS_MAX = 3


class ThreadMovedError(RecoveryError):
    """Another process has continued, deleted or pruned the thread since this one read it.

    Nothing was written. Read the thread again, and invoke the graph again.
    """


def log_name(thread_id: str) -> str:
    """The name of a thread's log: what is readable of the id, and a digest of all of it."""
    digest = hashlib.blake2b(thread_id.encode("utf-8", "surrogatepass"), digest_size=16)
    readable = "".join(c if c.isascii() and (c.isalnum() or c in "_-") else "_" for c in thread_id)
    return f"{PREFIX}{readable[:40]}.{digest.hexdigest()}"


PREFIX = "thread."


@dataclass(eq=False, slots=True)
class Seen:
    """What this process knows of a thread, also while that is closed: its node may work for hours.

    ``lsn``: up to which it knows the log. ``served``: that LSN, when a checkpoint was given out.
    ``foreign``: the newest checkpoint of another process, by namespace.
    """

    lsn: int = 0
    served: OrderedDict[tuple[str, str], int] = field(default_factory=OrderedDict)
    foreign: dict[str, int] = field(default_factory=dict)


class Thread:
    """A thread's log, opened for writing when it is first written to.

    All methods but ``writing`` and ``close`` are called with ``lock`` held.
    """

    def __init__(self, store: RunStore, thread_id: str | None, name: str, seen: Seen) -> None:
        self._store, self._name, self._seen = store, name, seen
        self.thread_id = thread_id  # None: whichever the log says
        self.lock = threading.RLock()
        self.used = time.monotonic()
        self.log: WritableLog | None = None
        self._reader: ReadableLog | None = None
        self._read_again()

    def _forget(self) -> None:
        """Read everything again, for what is known may not be so any more."""
        self._seen.lsn, self._seen.foreign = 0, {}
        self._read_again()

    def _read_again(self) -> None:
        """Read everything again when it is next asked for."""
        reader, self._reader = self._reader, None
        self._arrivals: Iterator[Record | Damage | None] | None = None
        if reader is not None:
            reader.close()
        self.index = Index(self.body)
        self._applied = 0  # the LSN up to which the index knows the log
        self.states: OrderedDict[tuple[str, str], Mapping[str, State | Found]] = OrderedDict()
        self._recorded: OrderedDict[tuple[str, str], Recorded] = OrderedDict()
        self._size = 0  # of the present segment, about

    # -- reading

    def look(self) -> Index:
        """The index as the log is now."""
        self.used = time.monotonic()
        for look in range(LOOKS_MAX):
            if self.log is not None:
                return self.index
            try:
                self._follow()
                return self.index
            except (DamagedError, UnsupportedFormatError, FileNotFoundError):
                # Perhaps another process is deleting the thread. If not, it is there again.
                self._forget()
                if look == LOOKS_MAX - 1:
                    raise
        raise AssertionError

    def _follow(self) -> None:
        if self._reader is not None and self._reader.owner() is None:
            self._forget()  # deleted
        if self._reader is None:
            self._reader = self._store.read(self._name)
            if self._reader is None:
                self._forget()
                return
        if self._arrivals is None:
            start = self._applied + 1
            if not self._applied:
                snapshot = next(self._reader.snapshots(self._raise), None)
                start = snapshot.lsn if snapshot is not None else 1
            self._arrivals = self._reader.arrivals(start)
        for item in self._arrivals:
            if item is None:
                return
            if isinstance(item, Damage):
                self._raise(item)
            is_first, known = not self._applied, self._seen.lsn
            if self.index.apply(item) is not None and item.lsn > known:
                self._seen.foreign[item.body["ns"]] = item.lsn
            elif is_first and known:  # a snapshot: of others is what it has from after that
                self._seen.foreign |= {
                    ns: lsn for ns, lsn in self.index.newest_lsns().items() if lsn > known
                }
            elif item.kind == "snapshot" and item.body["full"]:
                self.states.clear()
                self._recorded.clear()
            self._applied = item.lsn
            if self.index.thread is not None:
                self._check_id()

    def _check_id(self) -> None:
        recorded = self.index.thread
        if self.thread_id is None and recorded is not None:
            self.thread_id = recorded
        if recorded != _recordable(self.thread_id or ""):
            raise RecoveryError(
                f"{self._name}: the log is of thread {recorded!r}, not {self.thread_id!r}. Nothing "
                "was read. Move it to the name of its own thread."
            )

    def _raise(self, damage: Damage) -> NoReturn:
        raise DamagedError(self._path(), damage)

    def _path(self) -> str:
        source = self.log or self._reader
        return source.path if source is not None else self._name

    def records(self, lsns: set[int]) -> dict[int, Record]:
        """These records. Raises DamagedError when one is not sound."""
        if not lsns:
            return {}
        with self.lock:
            source = self.log or self._reader
            assert source is not None
            found = source.fetch(lsns)
            for lsn in lsns:
                if lsn not in found:
                    self._missing(source, lsn)
            return found

    def body(self, lsn: int) -> dict[str, Any]:
        """The body of this record."""
        body: dict[str, Any] = self.records({lsn})[lsn].body
        return body

    def _missing(self, source: WritableLog | ReadableLog, lsn: int) -> NoReturn:
        for record in source.records(lsn):  # raises at damage
            if record.lsn == lsn:
                break
            raise StaleError  # another process has pruned the thread
        raise DamagedError(self._path(), Damage.of_records(lsn, lsn, "the record cannot be read"))

    def served(self, ns: str, id: str) -> None:
        """This saver has given out, or written, a checkpoint: writers continue from it."""
        served = self._seen.served
        served[ns, id] = self._applied
        served.move_to_end((ns, id))
        if len(served) > SERVED_MAX:
            served.popitem(last=False)

    # -- writing

    @contextmanager
    def writing(self) -> Iterator[WritableLog]:
        """Hold the lock and the log. What is appended is committed when this is left.

        Other threads may append while the commit lasts, and share its flush.
        """
        deadline = time.monotonic() + LOCK_WAIT_S
        while True:
            with self.lock:
                try:
                    log = self._owned()
                except LogLockedError:
                    if time.monotonic() > deadline:
                        raise
                else:
                    before = log.last_lsn
                    try:
                        yield log
                    except BaseException as exc:
                        if log.last_lsn != before or isinstance(exc, (OSError, LogError)):
                            self._give_up()
                        raise
                    break
            time.sleep(LOCK_PAUSE_S)
        try:
            log.commit()
        except BaseException:
            with self.lock:
                self._give_up()
            raise
        finally:
            self.used = time.monotonic()

    def _owned(self) -> WritableLog:
        """The log, for this process alone."""
        if self.log is not None:
            return self.log
        if self.thread_id is None:
            self.look()
        log = self._store.claim(self._name)
        try:
            if log.report.damaged:
                raise DamagedError(log.path, log.report.damaged[0])
            if log.last_lsn < self._applied:  # a crash took records that a reader had seen
                self._forget()
            self.look()
            if self.index.is_partial:  # a copy of a thread that a crash has interrupted
                log.close()
                self._store.remove(self._name)
                self._forget()
                log = self._store.claim(self._name)
        except BaseException:
            log.close()
            raise
        self.log, self._size = log, log.report.size
        if self._reader is not None:
            self._reader.close()
        self._reader = self._arrivals = None
        return log

    def check_not_moved(self, ns: str, parent: str) -> None:
        """Refuse what comes from a state of the thread that is not the present one any more."""
        served = self._seen.served.get((ns, parent))
        if served is None:
            return
        if self._seen.foreign.get(ns, 0) > served:
            raise ThreadMovedError(
                f"thread {self.thread_id!r}: another process has continued it since this one read "
                f"checkpoint {parent or 'none'!r}. Nothing was written. Invoke the graph again: it "
                "continues from the newest checkpoint."
            )
        if parent and self.index.find(ns, parent) is None:
            raise ThreadMovedError(
                f"thread {self.thread_id!r}: checkpoint {parent!r} was deleted or pruned since "
                "this process read it. Nothing was written. Read the thread again."
            )

    def append(self, log: WritableLog, kind: str, body: dict[str, Any]) -> int:
        """Append a record; a new log gets its first one before."""
        if not log.last_lsn:
            self.begin(log)
        packed = Packed(msgpack.packb(body, strict_types=True))
        self._applied = log.append(kind, packed)
        self._size += len(packed)
        return self._applied

    def begin(self, log: WritableLog, **more: Any) -> None:
        """The first record of a log, which names the thread."""
        self.index.thread = _recordable(self.thread_id or "")
        self._applied = log.append(THREAD, {"thread": self.index.thread, "format": 1, **more})

    def snapshot(self, log: WritableLog, full: bool = False) -> int:
        """Append a snapshot of the index; before it, begin a new segment if this one is large."""
        if not full and self._size > ROLL_SIZE:
            log.roll()
            self._size = 0
        self._applied = log.append_snapshot(self.index.snapshot(full))
        self.index.snapshot_written(self._applied)
        return self._applied

    def recorded(self, ns: str, id: str) -> Recorded:
        """What was written after a checkpoint: the next one most likely holds it."""
        found = self._recorded.get((ns, id))
        if found is None:
            found = self._recorded[ns, id] = Recorded([])
            if len(self._recorded) > STATES_MAX:
                self._recorded.popitem(last=False)
        return found

    def remember(self, ns: str, id: str, states: Mapping[str, State | Found]) -> None:
        """The values of a checkpoint as this process has them, or has read them."""
        self.states[ns, id] = states
        self.states.move_to_end((ns, id))
        if len(self.states) > STATES_MAX:
            self.states.popitem(last=False)

    # -- letting go

    def release(self) -> None:
        """Let go of the log, so that other processes can write to it."""
        log, self.log = self.log, None
        if log is not None:
            log.close()

    def _give_up(self) -> None:
        """After a failed write: what is in memory and what is on disk may differ."""
        with suppress(Exception):  # the reason was raised before
            self.release()
        self._forget()

    def delete(self) -> None:
        """Delete the log."""
        self.release()
        self._forget()
        for ns in {ns for ns, id in self._seen.served if not id}:
            del self._seen.served[ns, ""]
        self._store.remove(self._name)

    def exists(self) -> bool:
        """Whether there is a log."""
        if self.log is not None:
            return True
        reader = self._store.read(self._name)
        if reader is not None:
            reader.close()
        return reader is not None

    def close(self) -> None:
        """Let go of everything but what it has to know to continue."""
        with self.lock:
            try:
                self.release()
            finally:
                self._seen.lsn = max(self._seen.lsn, self._applied)
                while len(self._seen.served) > SERVED_KEPT:
                    self._seen.served.popitem(last=False)
                self._read_again()


class StaleError(Exception):
    """A record that the index names is gone: look again."""


def _recordable(thread_id: str) -> str:
    return thread_id.encode("utf-8", "backslashreplace").decode()
