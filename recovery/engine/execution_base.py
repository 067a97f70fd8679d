"""What one execution of a run knows, writes, and stops for."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NoReturn, ParamSpec, TypeVar

from eventlog import EventLog, RefusedValueError
from recovery.declare.scope import Scope, current_scope
from recovery.declare.settings import Settings
from recovery.declare.spec import ToolSpec
from recovery.engine.call_in_progress import CallInProgress
from recovery.engine.journal_writer import record
from recovery.engine.unretrieved_errors import need_not_be_retrieved
from recovery.errors import InDoubtError, LeftBehindError, Stop
from recovery.history.checkpoint_store_base import CheckpointStoreBase
from recovery.history.load import History, check_known
from recovery.history.run_records import RunRecords
from recovery.history.snapshot_writer import SnapshotWriter
from recovery.journal.call import Arguments, Call
from recovery.journal.events import Event, HistoryDropped, MessagesChanged, RunParked, ValueRecorded
from recovery.journal.inbox_messages import Recipient
from recovery.journal.keys import BEFORE_STEPS
from recovery.journal.messages import Messages
from recovery.journal.redaction import Secrets
from recovery.journal.usage import Usage
from recovery.replay.call_view import Failure
from recovery.values.pack import pack, unpack

P = ParamSpec("P")
T = TypeVar("T")


class ExecutionBase(ABC):
    """The record of a run that is executed, and whether it may go on.

    ``mutex`` guards it: calls may come from several threads.
    """

    is_async = False  # whether its agent is

    def __init__(
        self, log: EventLog, history: History, store: CheckpointStoreBase, settings: Settings
    ) -> None:
        assert history.started is not None
        self.run_id, self.uid = history.started.run_id, history.started.uid
        check_known(history, store.approvers)
        self.recipient = Recipient.of(history.started, store.approvers)
        self.task = unpack(pack(history.started.task, "task"))  # not the caller's own object
        self.secrets = Secrets(history.started.salt or self.uid)
        self.recovery_count, self.rules = history.recoveries, history.rules
        self.step = self.served = self.executed = 0
        self.in_loop = False  # whether the loop of steps has begun
        self.unmeasured = 0  # of those executed: they did not say what they used
        self.mutex = threading.RLock()
        self.replay = history.replay
        self.settled: list[str] = []
        self.failures: deque[Failure] = deque(maxlen=64)  # the last few
        self.log, self._history = log, history
        self.records: RunRecords = log  # the log's reading side
        self.undoable: dict[str, ToolSpec] = {}  # tools with a compensation that were called
        # Streams of which a consumer has had a chunk and not asked for the next one; who that is.
        self.streams: dict[Any, object] = {}
        self.store, self.settings = store, settings
        self.tallies = history.tallies
        self._closed = False
        self._stopped: Exception | None = None
        self._asked: Exception | None = None  # to stop, from outside
        # Side effects under way, by LSN; and those of them that only wait for a stop inside.
        self.side_effects_in_flight: dict[int, CallInProgress] = {}
        self.draining: set[int] = set()
        # Calls that were cancelled, which is not recorded yet.
        self.cut_short: list[CallInProgress] = []
        self.scope = Scope(self, BEFORE_STEPS)  # of the agent's own code: its present step
        self._prologue = dict.fromkeys(history.prologue)
        self._pending: list[tuple[Event, bool]] = []
        self._snapshots = SnapshotWriter(log, history.restored)
        self.pruning = store.pruning(self.run_id, log, self._snapshots)

    @property
    @abstractmethod
    def state(self) -> dict[str, Any]:
        """What must survive a crash between steps."""

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
        """A call of which the chunks are asked for one by one."""

    @abstractmethod
    def alone(self) -> bool:
        """Whether no other code of the agent is under way but that which asks."""

    @abstractmethod
    def wall_clock(self) -> float:
        """Seconds since 1970."""

    def is_being_cancelled(self) -> bool:
        """Whether the task in which the agent runs is, or was at its end, by somebody outside or
        by a time-out that it is still in."""
        return False

    @abstractmethod
    def let_go(self) -> None:
        """Record the calls that were cancelled; park if side effects are in doubt by that."""

    def used(self) -> Usage:
        """What the run has used by now: for the runtime, as an agent would see something else on
        replay."""
        return self.tallies.progress.usage(self.log.time_ns())

    # -- whether it may go on

    def close(self) -> None:
        """Nothing that a left-over task of this execution does counts any more."""
        self._closed = True
        self.pruning.close()

    def cancel(self, error: Exception) -> None:
        """Stop the run, from outside and any thread, at the next thing that the agent does.

        A side effect that is under way gets to its end, and its outcome is recorded.
        """
        self._asked = self._asked or error

    @property
    def stopped(self) -> Exception | None:
        """Why the run must not go on, whatever the agent made of it."""
        return self._stopped or self._asked

    @property
    def is_closed(self) -> bool:
        """Whether nothing that the agent does counts any more."""
        return self._closed or self._stopped is not None

    def must_stop(self, scope: Scope) -> bool:
        """Whether the code in this scope is to stop now.

        Where the run is only asked to, from outside, a side effect gets to its end first, with all
        the calls that are made in it.
        """
        asked = self._asked is not None and self.side_effects_in_flight.keys().isdisjoint(
            scope.calls
        )
        return asked or self._stopped is not None

    def stop(self, error: Exception) -> NoReturn:
        """End the agent function, now and at whatever it tries next. The first reason counts."""
        if error is not self._asked:
            self._stopped = self._stopped or error
        self.current_scope().stopped = True
        need_not_be_retrieved()
        raise Stop(error)

    def current_scope(self) -> Scope:
        scope = current_scope.get()
        return scope if scope is not None and scope.run is self else self.scope

    def before_action(self) -> None:
        """The agent does something: so it goes on, and what it has cancelled is cancelled.

        Where it is only asked to stop, it may still do what is no call: the calls that are under
        way beside it are not to be cut short by a stop in the middle of their results. When none is
        left, code that goes on behind a call that was to stop it (a gather has made a result of
        that) is stopped again: what it does next is for a run in which that call has an outcome.
        """
        here = self.current_scope()
        ended = here.stopped and self.side_effects_in_flight.keys() <= self.draining
        if self._stopped is not None or self._closed or here.left_behind or ended:
            self.check()
        self._go_on()

    def _go_on(self) -> None:
        if self.streams:
            for stream in tuple(self.streams):
                if stream.is_left():
                    stream.refuse()
        if self.cut_short:
            self.let_go()

    def note_cancelled(self, one: CallInProgress, cause: BaseException) -> None:
        """A call was cut short: by the agent if it goes on after that, else with the run."""
        self.cut_short.append(replace(one, by_stop=isinstance(cause, Stop)))

    def park(
        self, calls: list[Call], *, around: Iterable[int] = (), undo: bool = False
    ) -> NoReturn:
        """Stop the run until somebody says what became of these calls.

        So are those of the calls around them that park as well, for they stop here.
        """
        named = {call.lsn for call in calls}
        outer = (
            {}
            if undo
            else {
                lsn: self.side_effects_in_flight.get(lsn)
                for lsn in (*around, *self.current_scope().calls)
            }
        )
        calls = [
            *calls,
            *(
                one.call
                for lsn, one in sorted(outer.items(), reverse=True)
                if one is not None and one.spec.after_crash == "park" and lsn not in named
            ),
        ]
        self.record(RunParked([call.lsn for call in calls], undo))
        self.commit()
        self.stop(InDoubtError(self.run_id, calls))

    def park_for(self, in_doubt: Iterable[CallInProgress]) -> None:
        """Stop the run if any of these calls is in doubt."""
        found = list(in_doubt)
        if found:
            around = {lsn for one in found for lsn in one.calls}
            self.park([one.call for one in found], around=around)

    def check(self) -> None:
        """Raise what stops the run, if anything does: a call is where it can stop."""
        scope, stopped = self.current_scope(), self._stopped or self._asked
        if stopped is not None and self.must_stop(scope):
            self.stop(stopped)
        if self._closed or scope.left_behind:
            if self.stopped is not None:
                need_not_be_retrieved()
            raise LeftBehindError(self.run_id)

    # -- the record

    def commit(self) -> None:
        """Make everything durable; a failure of the log ends the agent function."""
        self.write_or_stop(self.log.commit)

    def caught_up(self) -> bool:
        """Whether no recorded call or message is left that the code may still come to."""
        return self.replay.exhausted

    def is_left_by_stop(self) -> bool:
        """Whether the run is to stop, so that the code which would do what is recorded does not;
        but for what is recorded inside side effects, which get to their end."""
        around = map(self.replay.around, self.replay.unmatched())
        return self.stopped is not None and all(
            map(self.side_effects_in_flight.keys().isdisjoint, around)
        )

    def record_when_caught_up(self, event: ValueRecorded | MessagesChanged) -> int:
        """Record what replay comes upon again by itself; its LSN, or 0 while it is put off.

        It is put off while recorded ones are unmatched. Should the code turn out to have changed,
        nothing that it has done may be in the record: else the code that made the record could not
        go on with it either.
        """
        if not self.replay.exhausted:
            self._pending.append((event, self._is_prologue(event)))
            return 0
        return self.record(event)

    def record(self, event: Event) -> int:
        """Record an event; its LSN."""
        if self._pending and self.replay.exhausted:
            self._write_pending()
        return self._write(event, self._is_prologue(event))

    def _write_pending(self) -> None:
        pending, self._pending = self._pending, []
        for event, is_prologue in pending:
            self._write(event, is_prologue)

    def _write(self, event: Event, is_prologue: bool) -> int:
        if self.pruning.step:
            self.write_or_stop(self.pruning.check, event)
        lsn = self.write_or_stop(record, self.log, self._history, event)
        if is_prologue:
            self._prologue[lsn] = None
        self.log.commit_behind()
        return lsn

    def _is_prologue(self, event: Event) -> bool:
        """Whether the code before the first step needs it on replay, whatever the checkpoint."""
        if isinstance(event, MessagesChanged):  # behind a checkpoint they are what that has
            return False
        if not self.in_loop or getattr(event, "scope", "") == BEFORE_STEPS:
            return True
        return bool(self._prologue) and getattr(event, "call", 0) in self._prologue

    def write_or_stop(self, write: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return write(*args, **kwargs)
        except RefusedValueError:
            raise
        except Exception as exc:  # the log is lost, fenced or full: no agent code can mend that
            self.stop(exc)

    def note_dropped(self, event: HistoryDropped) -> None:
        """Record what is waited for no more."""
        lsn = self.record(event)
        if not self._prologue.keys().isdisjoint(event.records):
            self._prologue[lsn] = None
