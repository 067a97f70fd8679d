"""Holds the record of a run in execution: writes events, and stops the run."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NoReturn, ParamSpec, TypeVar

from eventlog import LogRecords, RefusedValueError, WritableLog
from recovery.declare.scope import Scope, current_scope
from recovery.declare.settings import Settings
from recovery.declare.spec import ToolSpec
from recovery.engine.call_in_progress import CallInProgress
from recovery.engine.journal_writer import record
from recovery.engine.unretrieved_errors import need_not_be_retrieved
from recovery.errors import InDoubtError, LeftBehindError, Stop
from recovery.history.checkpoint_store_base import CheckpointStoreBase
from recovery.history.load import History, check_known
from recovery.history.subject_values import check_readable
from recovery.history.write_checkpoint import CheckpointWriter
from recovery.journal.call import Arguments, Call
from recovery.journal.call_key import BEFORE_STEPS
from recovery.journal.events import Event, HistoryDropped, MessagesChanged, RunParked, ValueRecorded
from recovery.journal.inbox_messages import Recipient
from recovery.journal.messages import Messages
from recovery.journal.redaction import Secrets
from recovery.journal.usage import Usage
from recovery.journal.user_code import place_of, traceback_of
from recovery.replay.call_view import Failure
from recovery.replay.run_owners import Elsewhere
from recovery.text import SEALED_TEXT, store_option
from recovery.values.pack import pack, unpack
from recovery.values.sealed import KeyIds, Subjects

P = ParamSpec("P")
T = TypeVar("T")


class ExecutionBase(ABC):
    """The record of a run in execution, and whether it may continue.

    ``mutex`` guards it: calls may come from several threads.
    """

    is_async = False  # whether its agent is
    recorded_args_size = 4 << 10  # arguments up to it are recorded whole, larger ones by digest

    def __init__(
        self, log: WritableLog, history: History, store: CheckpointStoreBase, settings: Settings
    ) -> None:
        assert history.started is not None
        self.run_id, self.uid = history.started.run_id, history.started.uid
        check_known(history, store.approvers)
        self.recipient = Recipient.of(history.started, store.approvers)
        self.task = unpack(pack(history.started.task, "task"))  # not the caller's own object
        self.secrets = Secrets(history.started.salt or self.uid)
        # Removes more: for errors that are not sealed.
        self.scrubber = Secrets("", self.secrets)
        self.subjects = history.subjects
        self.subjects.open(self.run_id, store.backend)
        self.subjects.begin(history.started, self.scrubber)
        self.subjects.check_known()
        if (restored := history.restored) is not None:
            self.subjects.restored(restored.messages, restored.sealed)
        self.recovery_count, self.rules = history.recoveries, history.rules
        owners = history.tallies.owners
        self.fence = owners.fence
        # Calls (LSNs) that a former owner may still execute.
        self.elsewhere: dict[int, Elsewhere] = {}
        if owners.any_alive:
            found = ((one.lsn, owners.executing(one)) for one in history.replay.recorded())
            self.elsewhere = {lsn: there for lsn, there in found if there is not None}
        self.in_threads: set[int] = set()  # calls (LSNs); of all executions of the session
        self.step = self.served = self.executed = 0
        self.in_loop = False  # whether the loop of steps has begun
        self.unmeasured = 0  # executed calls whose usage is unknown
        self.mutex = threading.RLock()
        self.replay = history.replay
        self.settled: list[str] = []
        self.failures: deque[Failure] = deque(maxlen=64)  # the last few
        self.log, self._history, self.spans = log, history, history.spans
        self.records: LogRecords = log  # the log's reading side
        self.undoable: dict[str, ToolSpec] = {}  # tools with a compensation that were called
        # Streams whose consumer has a chunk and has not asked for the next one; the consumer.
        self.streams: dict[Any, object] = {}
        self.store, self.settings = store, settings
        self.tallies = history.tallies
        self._closed = False  # the agent has returned, or is left
        self._left = False  # the writes of its remaining tasks are not awaited any more
        self._stopped: Exception | None = None
        self._asked: Exception | None = None  # to stop, from outside
        # Side effects in flight, by LSN; and those of them that only wait for a stop inside.
        self.side_effects_in_flight: dict[int, CallInProgress] = {}
        self.draining: set[int] = set()
        # Cancelled calls whose cancellation is not recorded yet.
        self.cut_short: list[CallInProgress] = []
        self.scope = Scope(self, BEFORE_STEPS)  # of the agent's own code: its present step
        self._prologue = dict.fromkeys(history.prologue)
        self._pending: list[tuple[Event, bool]] = []
        self._snapshots = CheckpointWriter(log, history.restored, self.subjects.state_value)
        self.pruning = store.pruning(self.run_id, log, self._snapshots)

    @property
    @abstractmethod
    def state(self) -> dict[str, Any]:
        """The values that must survive a crash between steps."""

    @property
    @abstractmethod
    def messages(self) -> Messages:
        """The conversation."""

    @abstractmethod
    async def perform_async(self, spec: ToolSpec, given: Arguments, call_id: str) -> Any:
        """Make a call from async code."""

    @abstractmethod
    def perform_sync(self, spec: ToolSpec, given: Arguments, call_id: str) -> Any:
        """Make a call from plain code."""

    @abstractmethod
    def open_stream(self, spec: ToolSpec, given: Arguments, call_id: str) -> Any:
        """Open a call whose chunks are requested one by one."""

    @abstractmethod
    def alone(self) -> bool:
        """Whether no other code of the agent is running but the caller."""

    @abstractmethod
    def wall_clock(self) -> float:
        """Seconds since 1970."""

    def is_being_cancelled(self) -> bool:
        """Whether the agent's task is being cancelled, or was at its end, by its caller or by a
        time-out that it is still in."""
        return False

    @abstractmethod
    def record_cancelled(self) -> None:
        """Record the cancelled calls; park if side effects are in doubt because of that."""

    def used(self) -> Usage:
        """The usage of the run so far: for the runtime only, because it differs on replay."""
        return self.tallies.progress.usage(self.log.time_ns())

    # -- stopping

    def close(self) -> None:
        """Close the execution: actions of its remaining tasks are not recorded any more."""
        self._closed = self._left = True
        if self.in_threads:
            self.log.may_still_act(True)
            self._note_threads()  # they may have ended meanwhile
        self.pruning.close()
        for listener in self._history.listeners:
            listener.close()

    def cancel(self, error: Exception) -> None:
        """Stop the run, from outside and any thread, at the agent's next action.

        A side effect in flight ends first, and its outcome is recorded.
        """
        self._asked = self._asked or error

    @property
    def stopped(self) -> Exception | None:
        """Why the run must not continue, even if the agent caught the exception."""
        return self._stopped or self._asked

    @property
    def is_closed(self) -> bool:
        """Whether the agent's actions are not recorded any more."""
        return self._closed or self._stopped is not None

    def must_stop(self, scope: Scope) -> bool:
        """Whether the code in this scope is to stop now.

        If the stop was requested from outside, a side effect ends first, with all calls that are
        made in it.
        """
        asked = self._asked is not None and self.side_effects_in_flight.keys().isdisjoint(
            scope.calls
        )
        return asked or self._stopped is not None

    def stop(self, error: Exception) -> NoReturn:
        """End the agent function, now and at each later action. The first reason counts."""
        if error is not self._asked:
            self._stopped = self._stopped or error
        self.current_scope().stopped = True
        need_not_be_retrieved()
        raise Stop(error)

    def current_scope(self) -> Scope:
        scope = current_scope.get()
        return scope if scope is not None and scope.run is self else self.scope

    def before_action(self) -> None:
        """Note that the agent acts: so it continues, and calls that it cancelled are cancelled.

        If a stop was requested, the agent may still act otherwise than by a call, so that the stop
        does not interrupt the calls in flight beside it. When no call is left, code that caught the
        stop of a call (as gather does) is stopped again: its next action belongs to a run in which
        that call has an outcome.
        """
        here = self.current_scope()
        ended = here.stopped and self.side_effects_in_flight.keys() <= self.draining
        if self._stopped is not None or self._closed or here.attempt_has_ended or ended:
            self.check()
        self._go_on()

    def _go_on(self) -> None:
        if self.streams:
            for stream in tuple(self.streams):
                if stream.is_left():
                    stream.refuse()
        if self.cut_short:
            self.record_cancelled()

    def note_cancelled(self, one: CallInProgress, cause: BaseException) -> None:
        """Note a call that was interrupted: by the agent if it continues after that, else by the
        stop of the run."""
        self.cut_short.append(replace(one, by_stop=isinstance(cause, Stop)))

    def park(
        self,
        calls: list[Call],
        *,
        around: Iterable[int] = (),
        undo: bool = False,
        wake_at: float | None = None,
    ) -> NoReturn:
        """Stop the run until these calls are resolved, or it is ``wake_at``.

        Calls around them that park as well are in doubt too, because they stop here.
        """
        outer = {*around, *self.current_scope().calls}.difference(call.lsn for call in calls)
        found = (self.side_effects_in_flight.get(lsn) for lsn in sorted(outer, reverse=True))
        calls = [*calls, *(one.call for one in found if one and one.spec.after_crash == "park")]
        self.record(RunParked([call.lsn for call in calls], undo, wake_at=wake_at))
        self.commit()
        here = self.in_threads.intersection(call.lsn for call in calls)
        elsewhere = dict.fromkeys(here, "a thread of this process still executes it")
        elsewhere |= {lsn: str(there) for lsn, there in self.elsewhere.items()}
        where = store_option(self.store.backend)
        self.stop(InDoubtError(self.run_id, calls, elsewhere, wake_at, where))

    def park_for(self, in_doubt: Iterable[CallInProgress]) -> None:
        """Stop the run if any of these calls is in doubt."""
        found = list(in_doubt)
        if found:
            around = {lsn for one in found for lsn in one.calls}
            self.park([one.call for one in found], around=around)

    def check(self) -> None:
        """Raise the exception that stops the run, if there is one: a run can stop at a call."""
        scope, stopped = self.current_scope(), self._stopped or self._asked
        if stopped is not None and self.must_stop(scope):
            self.stop(stopped)
        if self._closed or scope.attempt_has_ended:
            if self.stopped is not None:
                need_not_be_retrieved()
            raise LeftBehindError(self.run_id)

    # -- what an error may tell

    def quoted_by(self, exc: BaseException | None) -> KeyIds:
        """The keys of subjects that an exception may quote: those of the run, and of calls whose
        exceptions are in it, or before it."""
        calls = {id(one.error): one.call for one in self.failures}
        found, todo, seen = {*self.subjects.run}, [exc], set[int]()
        while todo:
            one = todo.pop()
            if one is not None and id(one) not in seen:
                seen.add(id(one))
                found |= {*self.subjects.of_call(calls.get(id(one), 0))}
                todo += (one.__cause__, one.__context__)
                todo += one.exceptions if isinstance(one, BaseExceptionGroup) else ()
        return tuple(sorted(found))

    def sealed_by(self, exc: BaseException) -> Subjects | None:
        """The same for its record: the field ``sealed`` of the event."""
        keys = self.quoted_by(exc)
        return Subjects(keys) if keys else None

    def told(self, exc: BaseException, call: int = 0) -> str:
        """An exception as log lines have it: of a subject, where it was raised, not what it says.
        ``call``: the call (LSN) that it is about."""
        if not (self.subjects.of_call(call) or self.quoted_by(exc)):
            return self.scrubber.scrub(traceback_of(exc)).rstrip()
        return f"{type(exc).__name__}: {SEALED_TEXT}, raised at {place_of(exc.__traceback__)}"

    def check_readable(self, value: Any, what: str) -> None:
        """Stop the run if a value that the agent is to get is forgotten, or cannot be opened."""
        serves = self.settings.on_forgotten == "serve"
        self.write_or_stop(check_readable, value, self.run_id, what, serves)

    # -- threads that execute plain tools

    def enter_thread(self, lsn: int) -> None:
        """See ActiveRun."""
        self.in_threads.add(lsn)

    def leave_thread(self, lsn: int) -> None:
        """See ActiveRun."""
        self.in_threads.discard(lsn)
        self._note_threads()

    def _note_threads(self) -> None:
        if self._closed and not self.in_threads:
            self.log.may_still_act(False)

    # -- the record

    def commit(self) -> None:
        """Make everything durable; a failure of the log ends the agent function."""
        self.write_or_stop(self.log.commit)

    def caught_up(self) -> bool:
        """Whether no recorded call or message is left that the code may still replay."""
        with self.mutex:
            return self.replay.exhausted

    def is_left_by_stop(self) -> bool:
        """Whether records are left only because the run is to stop. Records inside side effects do
        not count, because side effects end first."""
        around = map(self.replay.around, self.replay.unmatched())
        return self.stopped is not None and all(
            map(self.side_effects_in_flight.keys().isdisjoint, around)
        )

    def record_when_caught_up(self, event: ValueRecorded | MessagesChanged) -> int:
        """Record an event that a replay produces again by itself; its LSN, or 0 while postponed.

        It is postponed while recorded ones are unmatched. If the code turns out to have changed,
        the record must not contain its events. Otherwise the code that made the record could not
        continue with it either. A value in place of one that may be lost is recorded at once: calls
        that depend on it are, and the next process would draw another one.
        """
        losses = self.replay.losses
        is_redrawn = isinstance(event, ValueRecorded) and losses and losses.may_contain(event.scope)
        if not (self.replay.exhausted or is_redrawn):
            self._pending.append((event, self._is_prologue(event)))
            return 0
        return self.record(event)

    def record(self, event: Event, hold: bool = False) -> int:
        """Record an event; its LSN. ``hold``: see ``EventLog.append``."""
        if self._pending and self.replay.exhausted:
            self._write_pending()
        return self._write(event, self._is_prologue(event), hold)

    def _write_pending(self) -> None:
        pending, self._pending = self._pending, []
        for event, is_prologue in pending:
            self._write(event, is_prologue)

    def _write(self, event: Event, is_prologue: bool, hold: bool = False) -> int:
        if self.pruning.step:
            self.write_or_stop(self.pruning.check, event)
        lsn = self.write_or_stop(record, self.log, self._history, event, hold)
        if is_prologue:
            self._prologue[lsn] = None
        self.log.commit_behind()
        return lsn

    def _is_prologue(self, event: Event) -> bool:
        """Whether the code before the first step needs it on replay after any checkpoint."""
        if isinstance(event, MessagesChanged):  # a checkpoint holds the messages
            return False
        if not self.in_loop or getattr(event, "scope", "") == BEFORE_STEPS:
            return True
        return getattr(event, "call", 0) in self._prologue

    def write_or_stop(self, write: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return write(*args, **kwargs)
        except RefusedValueError:
            raise
        except Exception as exc:  # the log is lost, fenced or full: no agent code can repair that
            if self._left:  # or closed meanwhile
                raise LeftBehindError(self.run_id) from exc
            self.stop(exc)

    def note_dropped(self, event: HistoryDropped) -> None:
        """Record which records are expected no more."""
        lsn = self.record(event)
        if not self._prologue.keys().isdisjoint(event.records):
            self._prologue[lsn] = None
