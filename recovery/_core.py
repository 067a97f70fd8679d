"""The heart of a run: what it knows and what it writes."""

from __future__ import annotations

import logging
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import astuple, replace
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar
from weakref import ref

from eventlog import EventLog, RefusedValueError
from recovery._budget import admit
from recovery._chance import a_number, an_id
from recovery._checkpoint import CheckpointStore
from recovery._children import Children
from recovery._conversation import Conversation
from recovery._doubt import Begun, Failure, describe
from recovery._drift import Drift
from recovery._errors import (
    InDoubtError,
    LeftBehindError,
    Sides,
    Stop,
)
from recovery._events import (
    Event,
    HistoryDropped,
    MessagesChanged,
    RunFinished,
    RunParked,
    StepStarted,
    ValueRecorded,
)
from recovery._herald import record
from recovery._history import History, RunRecords
from recovery._in_place import InPlace
from recovery._inbox import Inbox
from recovery._keys import BEFORE_STEPS, step_scope
from recovery._letting_go import check_open, let_go, park_for
from recovery._loop import Loop
from recovery._message import Recipient
from recovery._messages import Messages
from recovery._redact import Secrets
from recovery._settings import Settings
from recovery._snapshots import Checkpointed, SnapshotWriter
from recovery._tool import Arguments, Call, Scope, ToolSpec, current_scope
from recovery._unretrieved import need_not_be_retrieved
from recovery._usage import Usage
from recovery._values import pack, unpack

if TYPE_CHECKING:
    from recovery._waiting import Waiting

P = ParamSpec("P")
T = TypeVar("T")

_logger = logging.getLogger("recovery")


class RunCore(ABC):
    """One execution of an agent on a run; made anew for each recovery.

    ``mutex`` guards it: calls may come from several threads.
    """

    is_async = False  # whether its agent is

    def __init__(
        self, log: EventLog, history: History, store: CheckpointStore, settings: Settings
    ) -> None:
        assert history.started is not None
        self.run_id, self.uid = history.started.run_id, history.started.uid
        self.recipient = Recipient.of(history.started, store.approvers)
        self.task = unpack(pack(history.started.task, "task"))  # not the caller's own object
        self.secrets = Secrets(history.started.salt or self.uid)
        self.recovery_count, self.rules = history.recoveries, history.rules
        self.step = 0
        self.served = self.executed = 0
        self.unmeasured = 0  # of those executed: they did not say what they used
        self.in_flight = 0
        self.waiting = 0  # of those in flight: calls that wait for something outside
        self.waits: list[Waiting] = []  # those of them that run.sleep and the like make
        self.idle_since: tuple[float, object] | None = None  # since it does nothing but wait
        self.inside: Counter[int] = Counter()  # of those in flight: inside which other call
        self.mutex = threading.RLock()
        self.replay = history.replay
        self.settled: list[str] = []
        self.failures: deque[Failure] = deque(maxlen=64)  # the last few
        self._log, self._history = log, history
        self.records: RunRecords = log  # the log's reading side
        self.undoable: dict[str, ToolSpec] = {}  # tools with a compensation that were called
        # Streams of which a consumer has had a chunk and not asked for the next one; who that is.
        self.streams: dict[Any, object] = {}
        self.store, self.settings = store, settings
        self.tallies = history.tallies
        self.drift = Drift(self, history)
        self.children = Children(self, history.entries)
        history.entries = []  # what was recorded is not kept for as long as the run lives
        self._checkpointed = history.step
        self._closed = False
        self._stopped: Exception | None = None
        self._asked: Exception | None = None  # to stop, from outside
        # Side effects under way, by LSN; and those of them that only wait for a stop inside.
        self.under_way: dict[int, Begun] = {}
        self.leaving: set[int] = set()
        self.scope = Scope(self, BEFORE_STEPS)  # of the agent's own code: its present step
        self.steps_held: list[ref[Scope]] = []  # scopes of former steps that somebody has still
        self._prologue = dict.fromkeys(history.prologue)
        self._pending: list[tuple[Event, bool]] = []
        self.cut_short: list[Begun] = []  # calls that were cancelled, which is not recorded yet
        self.conversation = Conversation(self, history)
        self.inbox = Inbox(self)
        self.loop = Loop(self, history)
        self._in_place = InPlace(self) if settings.check_locals else None
        self._snapshots = SnapshotWriter(log, history.restored)
        self.pruning = store.pruning(self.run_id, log, self._snapshots)
        self.messages.on_change = self._snapshots.messages_changed
        if history.herald is not None:
            history.herald.teller.served = lambda: self.served

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

    def outlived(self) -> bool:
        """Whether a task that was started in a step is at work when the step ends."""
        return False

    # -- what the agent sees

    @property
    def state(self) -> dict[str, Any]:
        """What must survive a crash between steps: a dict, saved with each checkpoint."""
        return self.loop.state

    @state.setter
    def state(self, value: dict[str, Any]) -> None:
        self.loop.state.become(value)

    @property
    def messages(self) -> Messages:
        """The conversation: a list of which every change is recorded."""
        return self.loop.messages

    @messages.setter
    def messages(self, value: list[Any]) -> None:
        if value is not self.messages:  # `run.messages += [...]` assigns the list to itself
            self.messages[:] = value

    def now(self) -> float:
        """Seconds since 1970, as they were when this line first ran."""
        return float(self._value("now", time.time))

    def random(self) -> float:
        """A random number in [0, 1), the same on replay."""
        return float(self._value("random", a_number))

    def uuid(self) -> str:
        """A new UUID, the same on replay."""
        return str(self._value("uuid", an_id))

    def usage(self) -> Usage:
        """What the run has used so far, over all its lives; the same on replay."""
        return Usage(*self._value("usage", lambda: list(astuple(self.used()))))

    def used(self) -> Usage:
        """The same, now; for the runtime, as an agent would see something else on replay."""
        return self.tallies.progress.usage(self._log.time_ns())

    def _value(self, name: str, ask: Callable[[], Any]) -> Any:
        with self.mutex:
            self.act()
            scope = self.here()
            occurrence = scope.next_occurrence(name)
            recorded = self.replay.take_value(scope.path, name, occurrence)
            if recorded is not None:
                return recorded.value
            value = ask()
            self.note(ValueRecorded(scope.path, name, occurrence, value))
            return value

    # -- steps

    def next_step(self) -> int:
        """End the step, if one has begun, and begin the next: here a checkpoint may be taken."""
        with self.mutex:
            self.safe_point()
            if not self.loop.entered:
                self.step = self._history.step
                self.loop.enter()
                self._leave_scope()
            else:
                left = ref(self.scope)
                self._leave_scope()
                # A task that was started in the step has its scope: where nobody has it, there is
                # none.
                held = (*self.steps_held, left)
                self.steps_held = [one for one in held if one() is not None]
                self._checkpoint_if_due()
            self.step += 1
            self.scope.path = step_scope(self.step)
            if not self.replay.take_step(self.step):
                admit(self, "step")
                self.emit(StepStarted(self.step))
            return self.step

    def _leave_scope(self) -> None:
        # The next step's, which is called by its name once the step begins.
        self.scope = Scope(self, self.scope.path)
        current_scope.set(self.scope)

    @property
    def before_loop(self) -> bool:
        """Whether the code before the loop of steps is at work again, in a resumed run."""
        return self.loop.is_before

    def _checkpoint_if_due(self) -> None:
        # Not while tasks started in a step are at work (resuming behind it would lose them), and
        # not while the record is being replayed (the records of later steps stand before the
        # checkpoint in the log): then at a later step.
        steps = self.step - self._checkpointed
        if not self.settings.is_due(steps, self._history.size):
            return
        replay = self.replay
        if self.in_flight or self.outlived() or not replay.used_up or replay.later_steps(self.step):
            return
        if self._in_place is not None:
            self.attempt(self._in_place.look)
        self._write_pending()  # first, so that the checkpoint knows of it
        what = Checkpointed(self.run_id, self.step, time.time(), recoveries=self.recovery_count,
                            prologue=tuple(self._prologue),
                            carried=self.tallies.carry(), grown=self._history.size,
                            removed=self.loop.removed())  # fmt: skip
        lsn = self.attempt(self.pruning.write, what, self.state, self.messages)
        self.loop.checkpointed()
        self.conversation.forget_before(self.pruning.first)
        self._checkpointed, self._history.size = self.step, 0
        if self._history.herald is not None:
            self._history.herald.checkpoint(lsn, self._log.last_time_ns, self.step)
        self._log.commit_behind()
        self.pruning.prune(self.mutex)

    # -- calls under way

    def enter(self, scope: Scope) -> None:
        """A call is under way in this scope."""
        self.in_flight += 1
        if scope.call is not None:
            self.inside[scope.call.lsn] += 1

    def leave(self, scope: Scope) -> None:
        """It is not any more."""
        self.in_flight -= 1
        if scope.call is not None:
            self.inside[scope.call.lsn] -= 1
            self.inside += Counter()  # forget what is zero

    def idle(self) -> bool:
        """Whether every call under way waits for something outside, or for a call that does."""
        busy = self.in_flight - len(self.inside)
        return busy <= self.waiting + self.children.idle()

    # -- what is missing, and the end

    def missing(self) -> tuple[int, str]:
        """What is recorded and the code has not done again: LSN and description; 0 if nothing."""
        for call in self.replay.unclaimed():
            return call.lsn, describe(call)
        for recorded in self.replay.changes:
            return recorded.lsn, self.conversation.shown(recorded)
        return 0, ""

    def finish(self, result: Any) -> RunFinished:
        """Record that the agent returned ``result``; durable when this returns."""
        with self.mutex:
            self.here().check()  # a gather may have made a result of what was to stop the agent
            self.act()
            check_open(self)
            lsn, recorded = self.missing()
            if lsn and not self.drift.may_finish():
                self.drift.diverge(Sides(lsn, recorded, "the agent returned"))
            packed = pack(result, "result")
            event = RunFinished(packed, self._history.step, self.recovery_count)
            self.emit(event)
            self.attempt(self._log.commit)
            return replace(event, result=unpack(packed))

    def landed(self) -> bool:
        """Whether no call is under way any more. The agent function has ended: nobody reads on in
        the streams that it left open, nor in one whose chunk has come only now."""
        for stream in [one for one in self.streams if one.is_left(ended=True)]:
            with suppress(Stop):
                stream.abandon() if sys.exc_info()[1] is not None else stream.refuse()
        return not self.in_flight

    def close(self) -> None:
        """Nothing that a left-over task of this execution does counts any more."""
        self._closed = True
        self.inbox.close()
        self.pruning.close()

    def cancel(self, error: Exception) -> None:
        """Stop the run, from outside and any thread, at the next thing that the agent does.

        A side effect that is under way gets to its end, and its outcome is recorded.
        """
        self._asked = self._asked or error
        self.children.stop(error)

    @property
    def stopped(self) -> Exception | None:
        """Why the run must not go on, whatever the agent made of it."""
        return self._stopped or self._asked

    @property
    def over(self) -> bool:
        """Whether nothing that the agent does counts any more."""
        return self._closed or self._stopped is not None

    def ends(self, scope: Scope) -> bool:
        """Whether the code in this scope is to stop now.

        Where the run is only asked to, from outside, a side effect gets to its end first, with all
        the calls that are made in it.
        """
        asked = self._asked is not None and self.under_way.keys().isdisjoint(scope.calls)
        return asked or self._stopped is not None

    def stop(self, error: Exception) -> NoReturn:
        """End the agent function, now and at whatever it tries next. The first reason counts."""
        if error is not self._asked:
            self._stopped = self._stopped or error
        self.here().stopped = True
        need_not_be_retrieved()
        raise Stop(error)

    def commit(self) -> None:
        """Make everything durable; a failure of the log ends the agent function."""
        self.attempt(self._log.commit)

    def caught_up(self) -> bool:
        """Whether no recorded call or message is left that the code may still come to."""
        return self.replay.used_up

    def here(self) -> Scope:
        scope = current_scope.get()
        return scope if scope is not None and scope.run is self else self.scope

    def safe_point(self) -> None:
        """Where the run can be stopped from outside: at a call, and between steps."""
        self.check()
        if not self.under_way or self.under_way.keys().isdisjoint(self.here().calls):
            self.inbox.look()
        self._go_on()

    def act(self) -> None:
        """The agent does something: so it goes on, and what it has cancelled is cancelled.

        Where it is only asked to stop, it may still do what is no call: the calls that are under
        way beside it are not to be cut short by a stop in the middle of their results. When none is
        left, code that goes on behind a call that was to stop it (a gather has made a result of
        that) is stopped again: what it does next is for a run in which that call has an outcome.
        """
        here = self.here()
        ended = here.stopped and self.under_way.keys() <= self.leaving
        if self._stopped is not None or self._closed or here.left_behind or ended:
            self.check()
        self._go_on()

    def _go_on(self) -> None:
        if self.streams:
            for stream in tuple(self.streams):
                if stream.is_left():
                    stream.refuse()
        if self.cut_short:
            park_for(self, let_go(self))

    def cut(self, one: Begun) -> None:
        """A call was cancelled: by the agent if it goes on after that, else with the run."""
        self.cut_short.append(one)

    def park(
        self, calls: list[Call], *, around: Iterable[int] = (), undo: bool = False
    ) -> NoReturn:
        """Stop the run until somebody says what became of these calls.

        So are those of the calls around them that park as well, for they stop here.
        """
        named = {call.lsn for call in calls}
        outer = {} if undo else {lsn: self.under_way.get(lsn)
                                 for lsn in (*around, *self.here().calls)}  # fmt: skip
        calls = [*calls, *(one.call for lsn, one in sorted(outer.items(), reverse=True)
                           if one is not None and one.spec.after_crash == "park"
                           and lsn not in named)]  # fmt: skip
        self.emit(RunParked([call.lsn for call in calls], undo))
        self.commit()
        self.stop(InDoubtError(self.run_id, calls))

    def check(self) -> None:
        """Raise what stops the run, if anything does: a call is where it can stop."""
        scope, stopped = self.here(), self._stopped or self._asked
        if stopped is not None and self.ends(scope):
            self.stop(stopped)
        if self._closed or scope.left_behind:
            if self.stopped is not None:
                need_not_be_retrieved()
            raise LeftBehindError(self.run_id)

    def note(self, event: ValueRecorded | MessagesChanged) -> int:
        """Record what replay comes upon again by itself; its LSN, or 0 while it is put off.

        It is put off while recorded ones are unclaimed. Should the code turn out to have changed,
        nothing that it has done may be in the record: else the code that made the record could not
        go on with it either.
        """
        if not self.replay.used_up:
            self._pending.append((event, self._is_prologue(event)))
            return 0
        return self.emit(event)

    def emit(self, event: Event) -> int:
        """Record an event; its LSN."""
        if self._pending and self.replay.used_up:
            self._write_pending()
        return self._write(event, self._is_prologue(event))

    def _write_pending(self) -> None:
        pending, self._pending = self._pending, []
        for event, is_prologue in pending:
            self._write(event, is_prologue)

    def _write(self, event: Event, is_prologue: bool) -> int:
        if self.pruning.step:
            self.attempt(self.pruning.check, event)
        lsn = self.attempt(record, self._log, self._history, event)
        if is_prologue:
            self._prologue[lsn] = None
        self._log.commit_behind()
        return lsn

    def _is_prologue(self, event: Event) -> bool:
        """Whether the code before the first step needs it on replay, whatever the checkpoint."""
        if isinstance(event, MessagesChanged):  # behind a checkpoint they are what that has
            return False
        if not self.loop.entered or getattr(event, "scope", "") == BEFORE_STEPS:
            return True
        return bool(self._prologue) and getattr(event, "call", 0) in self._prologue

    def attempt(self, write: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return write(*args, **kwargs)
        except RefusedValueError:
            raise
        except Exception as exc:  # the log is lost, fenced or full: no agent code can mend that
            self.stop(exc)

    def note_dropped(self, event: HistoryDropped) -> None:
        """Record what is waited for no more."""
        lsn = self.emit(event)
        if not self._prologue.keys().isdisjoint(event.records):
            self._prologue[lsn] = None
