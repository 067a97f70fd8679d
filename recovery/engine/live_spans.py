"""Emits the spans of runs as they end, in the process that runs them.

They are made of the records as a reader of the log has them, so an export of the log has the same.
A thread makes them, for all runs of the process: an agent only puts its records into a queue. A
resumed run needs what earlier records say, which that thread reads first. Spans that ended before
belong to the process that recorded their end.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Full, Queue
from typing import TYPE_CHECKING, Protocol
from weakref import WeakValueDictionary

from eventlog import LogError, Packed, Record, Snapshot
from recovery.declare.scope import Scope
from recovery.errors import RecoveryError
from recovery.history.first_record import started_of
from recovery.inspect.run_trace import run_span, trace_of
from recovery.inspect.span import Span, span_id
from recovery.inspect.span_values import SpanOptions, SpanValues
from recovery.inspect.spans import Spans
from recovery.journal.encoding import decode_shallow
from recovery.journal.events import (
    TYPES,
    CallIntended,
    CallResolved,
    CallReturned,
    DivergenceAccepted,
    Event,
    RunCancelled,
    RunFailed,
    RunFinished,
    RunResumed,
    RunStarted,
)
from recovery.journal.forked_from import ForkedFrom
from recovery.journal.related_runs import ParentRun

if TYPE_CHECKING:
    from recovery.history.load import History
    from recovery.stores.protocol import RunStore

_logger = logging.getLogger("recovery")
_ENDS = (RunFinished, RunFailed, RunCancelled)
WAITING_MAX = 10_000  # records that wait for the thread: with more, a run has no more spans
FLUSH_S = 30.0
_Item = tuple[int, int, Event, Packed]  # LSN, time in ns, event, and the body of its record


class SpanReceiver(Protocol):
    """Gets the spans. What its methods raise is logged, and does no harm to the run."""

    def ended(self, trace: str, span: Span) -> None:
        """``span``, of ``trace`` (32 hex digits), has ended. Always called in the same thread."""

    def enter(self, trace: str, span: str, what: str) -> Callable[[], None]:
        """The present code enters ``span`` (16 hex digits) of ``trace``, which is open. ``what``:
        it is a "run" or a "call". The returned function is called where the code leaves it."""


class Tracing:
    """Gives a receiver the spans of all runs of this process, in a thread of its own."""

    def __init__(self, receiver: SpanReceiver, options: SpanOptions) -> None:
        self.receiver, self.options = receiver, options
        self.live: WeakValueDictionary[str, LiveSpans] = WeakValueDictionary()  # by uid
        self._mutex = threading.Lock()
        self._queue: Queue[tuple[LiveSpans, _Item | None]] = Queue(WAITING_MAX)
        self._thread = threading.Thread()  # is not alive until there is something to do
        atexit.register(self.flush)

    def of_run(self, history: History, store: RunStore) -> LiveSpans:
        """The listener for a run."""
        return LiveSpans(self, history, store)

    def put(self, run: LiveSpans, item: _Item | None) -> bool:
        """Have the thread take the next record of a run; False when too many wait for it, or it
        cannot be started."""
        try:
            if not self._thread.is_alive():  # as in a forked process
                self._begin()
            self._queue.put_nowait((run, item))
        except (Full, RuntimeError):
            return False
        return True

    def _begin(self) -> None:
        with self._mutex:
            if not self._thread.is_alive():
                self._queue = Queue(WAITING_MAX)
                work = partial(self._work, self._queue)
                self._thread = threading.Thread(target=work, name="recovery-spans", daemon=True)
                self._thread.start()

    def _work(self, queue: Queue[tuple[LiveSpans, _Item | None]]) -> None:
        while True:
            self._take_next(queue)
            queue.task_done()

    @staticmethod
    def _take_next(queue: Queue[tuple[LiveSpans, _Item | None]]) -> None:
        # A function, because a local variable of the loop would keep the last run in memory.
        run, item = queue.get()
        run.take(item)

    def flush(self, timeout_s: float = FLUSH_S) -> bool:
        """Wait until the receiver has all spans that have ended; whether it has."""
        queue = self._queue
        if not self._thread.is_alive():
            return True
        with queue.all_tasks_done:
            return queue.all_tasks_done.wait_for(lambda: not queue.unfinished_tasks, timeout_s)

    def close(self) -> None:
        """Nothing is to be flushed when the process ends."""
        atexit.unregister(self.flush)


class LiveSpans:
    """Emits the spans of one run, for as long as a process has it."""

    def __init__(self, tracing: Tracing, history: History, store: RunStore) -> None:
        self._tracing, self._history, self._store = tracing, history, store
        self._is_new = history.started is None and history.restored is None
        self.run_id, self.uid, self.trace = history.run_id, "", ""
        self._values = SpanValues(tracing.options, history.run_id)
        self._spans: Spans | None = None
        self._has_ended = self._is_off = False

    # -- as a listener

    def count_served(self, served: Callable[[], int]) -> None:
        """Spans do not have it."""

    def checkpoint(self, lsn: int, time_ns: int, step: int) -> None:
        """A checkpoint is in no span."""

    def event(self, lsn: int, time_ns: int, event: Event, packed: Packed) -> None:
        """An event was recorded."""
        if not self.trace:
            self._guarded(self._begin)
        self._put((lsn, time_ns, event, packed))

    def close(self) -> None:
        """The process is done with the run."""
        self._put(None)

    def _put(self, item: _Item | None) -> None:
        if not self._is_off and self.trace and not self._tracing.put(self, item):
            self._is_off = True
            self._log(
                f"{WAITING_MAX:,} records wait for their spans, or no thread can be started that "
                "makes them, so it has no more of them"
            )

    def enter(self, scope: Scope) -> Callable[[], None] | None:
        """The present code comes into this scope; what is to be called when it leaves it."""
        if not self.trace or self._is_off:
            return None
        here: Scope | None = scope
        while here is not None and (here.call is None or self._values.is_left_out(here.call.tool)):
            here = here.outer
        call = here.call.lsn if here is not None and here.call is not None else 0
        what = ("call", call) if call else ("run",)
        span = span_id(self.uid, *what)
        try:
            leave = self._tracing.receiver.enter(self.trace, span, str(what[0]))
        except Exception as exc:
            self._log("a span could not be entered", exc)
            return None
        return lambda: self._leave(leave)

    def _leave(self, leave: Callable[[], None]) -> None:
        try:
            leave()
        except Exception as exc:
            self._log("a span could not be left", exc)

    def _begin(self) -> None:
        """The first event says which run it is."""
        started = self._history.started
        self.uid = self._history.uid
        parent = ParentRun.of(started)
        around = self._tracing.live.get(parent.uid) if parent is not None else None
        trace = around.trace if around is not None else ""
        self.trace = trace or trace_of(self.uid, started, self._sibling)
        self._tracing.live[self.uid] = self

    # -- in the thread

    def take(self, item: _Item | None) -> None:
        """Make the spans of the next record; None: the process is done with the run."""
        if not self._is_off:
            self._guarded(lambda: self._take(item))

    def _take(self, item: _Item | None) -> None:
        if item is not None:
            if self._spans is None and not self._is_new:
                self._catch_up(item[0])
            self._emit(self._observed(*item))
        elif self._spans is not None and self._has_ended:
            self._emit([*self._spans.finish(alive=False)])
            self._is_off = True

    def _observed(self, lsn: int, time_ns: int, event: Event | None, packed: Packed) -> list[Span]:
        """The spans that end with an event, whose values have to be packed as in its record."""
        if self._spans is None:
            self._spans = self._first(time_ns)
        if event is None:
            self._spans.lost(1)
            return []
        if isinstance(event, RunStarted | RunFinished) or (
            isinstance(event, CallReturned) and type(event.value) is not Packed
        ):
            event = decode_shallow(Record(lsn, event.kind, time_ns, packed)) or event
        self._has_ended = isinstance(event, _ENDS) or (
            self._has_ended and not isinstance(event, CallResolved | RunResumed)
        )
        return [*self._spans.observe(lsn, time_ns, event)]

    def _first(self, time_ns: int) -> Spans:
        started = self._history.started
        run = run_span(self.run_id, self.uid, started, time_ns, self._sibling)
        origin = ForkedFrom.of(started)
        until = origin.until if origin is not None else 0
        return Spans(self.uid, run, until, self._values, self._fetch)

    def _catch_up(self, lsn: int) -> None:
        """Observe the records before ``lsn``. Their spans were emitted when they were recorded;
        but no process emitted that of a call which a person has resolved since then."""
        resolved: list[Span] = []
        reader = self._store.read(self.run_id)
        if reader is None:
            raise RecoveryError(f"run {self.run_id!r} is gone")
        with reader:
            for record in reader.records(1, on_damage=lambda damage: None):
                if record.lsn >= lsn:
                    break
                if isinstance(record, Snapshot):
                    continue
                packed, event = Packed(record.packed), _event_in(record)
                if event is None and record.kind not in TYPES:
                    continue
                ended = self._observed(record.lsn, record.time_ns, event, packed)
                if isinstance(event, CallResolved) and not event.by_policy:
                    resolved += ended
                elif not isinstance(event, DivergenceAccepted):
                    resolved.clear()
            if reader.oldest_lsn > 1 and self._spans is not None:
                self._spans.cut_off(reader.oldest_lsn)
        self._emit(resolved)

    def _emit(self, spans: list[Span]) -> None:
        for span in spans:
            try:
                self._tracing.receiver.ended(self.trace, span)
            except Exception as exc:
                self._log(f"span {span.name!r} could not be emitted", exc)

    def _guarded(self, act: Callable[[], None]) -> None:
        """Nothing that goes wrong here is to harm the run: it has no more spans then."""
        try:
            act()
        except Exception as exc:
            self._is_off = True
            self._log("it has no more spans in this process", exc)

    def _log(self, what: str, exc: Exception | None = None) -> None:
        line = "run %s: %s; `logdump otlp` makes the spans of its log"
        _logger.error(line, self.run_id, what, exc_info=exc)

    # -- the log

    def _sibling(self, run_id: str) -> RunStarted | None:
        with suppress(LogError, OSError, ValueError, RecoveryError):
            reader = self._store.read(run_id)
            if reader is not None:
                with reader:
                    return started_of(reader)
        return None

    def _fetch(self, lsn: int) -> tuple[int, CallIntended] | None:
        reader = self._store.read(self.run_id)
        if reader is None:
            return None
        with reader:
            record = reader.fetch({lsn}).get(lsn)
        event = decode_shallow(record) if record is not None else None
        return (record.time_ns, event) if record and isinstance(event, CallIntended) else None


def _event_in(record: Record) -> Event | None:
    """The event in a record; None for one that makes no sense, or of another writer."""
    try:
        return decode_shallow(record)
    except ValueError:
        return None
