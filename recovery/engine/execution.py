"""Executes an agent on a run: its steps, its state, and the calls in flight."""

from __future__ import annotations

import sys
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol
from weakref import ref

from eventlog import WritableLog
from recovery.declare.scope import Scope, current_scope
from recovery.declare.settings import Settings
from recovery.engine.call_in_progress import Identified
from recovery.engine.changed_in_place import InPlaceChanges
from recovery.engine.conversation import Conversation
from recovery.engine.divergence import Drift, change_text
from recovery.engine.driver_effects import Effect, WaitForTurn, Waiting
from recovery.engine.execution_base import ExecutionBase
from recovery.engine.inbox import Inbox
from recovery.engine.metering import admit
from recovery.engine.step_loop import Loop
from recovery.errors import Sides, Stop
from recovery.history.checkpoint_store_base import CheckpointStoreBase
from recovery.history.load import History
from recovery.history.write_checkpoint import CheckpointMeta
from recovery.journal.call import Call
from recovery.journal.call_key import CallKey, step_scope
from recovery.journal.events import RunFinished, StepStarted, ValueRecorded
from recovery.journal.messages import Messages
from recovery.replay.call_view import call_text
from recovery.replay.decide_call import Answered
from recovery.values.pack import pack, unpack
from recovery.values.sealed import Personal


class ChildRuns(Protocol):
    """The child runs of a run, as its calls need them."""

    def idle(self) -> int:
        """How many calls in flight wait for children that only wait themselves."""

    def stop(self, error: Exception) -> None:
        """Stop them all."""

    def cancelled(self, call: Call) -> None:
        """Cancel the child of a call that the agent has cancelled."""

    def cancel_child(self, call: Call) -> None:
        """Cancel the child that this call has started."""

    def note_retry(self, call: int, lsn: int) -> None:
        """Note that the record ``lsn`` retries the call (LSN)."""

    def any_in(self, scope: Scope) -> bool:
        """Whether a call of this scope has started a child that is executing."""


class Execution(ExecutionBase):
    """One execution of an agent on a run; each recovery makes a new one."""

    children: ChildRuns
    drift_kind, conversation_kind = Drift, Conversation

    def __init__(
        self, log: WritableLog, history: History, store: CheckpointStoreBase, settings: Settings
    ) -> None:
        super().__init__(log, history, store, settings)
        self.in_flight = 0
        self.waiting = 0  # calls in flight that wait for an event outside the run
        self.waits: list[Waiting] = []  # those of them that run.sleep and the like make
        self.idle_since: tuple[float, object] | None = None  # since when it only waits
        self.inside: Counter[int] = Counter()  # calls in flight, by the call around them
        self._checkpointed = history.step
        self.steps_held: list[ref[Scope]] = []  # scopes of former steps that tasks still hold
        self.drift = self.drift_kind(self, history)
        self.conversation = self.conversation_kind(self, history, self.drift)
        self.inbox = Inbox(self)
        self.loop = Loop(self, history, self.conversation.record)
        self.conversation.check = self.loop.check_messages
        self._in_place = InPlaceChanges(self) if settings.check_locals else None
        self.messages.on_change = self._snapshots.messages_changed
        for listener in history.listeners:
            listener.count_served(lambda: self.served)

    def outlived(self) -> bool:
        """Whether a task that was started in a step is still running when the step ends."""
        return False

    @abstractmethod
    def check_open(self) -> None:
        """Park the run, which is about to end, if a side effect is open."""

    # -- the agent's side, by its Run

    @property
    def state(self) -> dict[str, Any]:
        """The values that must survive a crash between steps: a dict, saved with each
        checkpoint."""
        return self.loop.state

    @property
    def messages(self) -> Messages:
        """The conversation: a list of which every change is recorded."""
        return self.loop.messages

    def recorded_value(self, name: str, ask: Callable[[], Any]) -> Any:
        """The answer of the outside world, as it was when this line first ran."""
        with self.mutex:
            self.before_action()
            scope = self.current_scope()
            occurrence = scope.next_occurrence(name)
            recorded = self.replay.take_value(scope.path, name, occurrence)
            if recorded is not None:
                return recorded.value
            value = ask()
            self.record_when_caught_up(ValueRecorded(scope.path, name, occurrence, value))
            return value

    # -- steps

    def next_step(self) -> int:
        """End the step, if one has begun, and begin the next: here a checkpoint may be taken."""
        with self.mutex:
            self.safe_point()
            if not self.in_loop:
                self.step = self._history.step
                self.loop.enter()
                self._leave_scope()
            else:
                left = ref(self.scope)
                self._leave_scope()
                # A task that was started in the step holds its scope: if no object holds the
                # scope, there is no such task.
                held = (*self.steps_held, left)
                self.steps_held = [one for one in held if one() is not None]
                self._checkpoint_if_due()
            self.step += 1
            self.scope.path = step_scope(self.step)
            if not self.replay.take_step(self.step):
                admit(self, "step")
                self.record(StepStarted(self.step), hold=True)
            return self.step

    def wait_until(
        self, ready: Callable[[], bool], turn: int
    ) -> Generator[WaitForTurn, Any, bool | None]:
        """Wait until ``ready()``, or until the caller is to stop: then raise what stops it. The
        answer and ``turn``: see WaitForTurn."""
        scope = self.current_scope()

        def is_ready() -> bool:
            with self.mutex:  # drivers ask while threads make calls
                return self.must_stop(scope) or ready()

        answer = yield WaitForTurn(is_ready, turn)
        self.check()
        return answer  # type: ignore[no-any-return]

    def _leave_scope(self) -> None:
        # The scope of the next step, which is named once the step begins.
        self.scope = Scope(self, self.scope.path)
        current_scope.set(self.scope)

    @property
    def before_loop(self) -> bool:
        """Whether a resumed run executes the code before the loop of steps again."""
        return self.loop.is_before

    def safe_point(self) -> None:
        """Stop here if the run was stopped from outside: at a call, and between steps."""
        self.check()
        if self.side_effects_in_flight.keys().isdisjoint(self.current_scope().calls):
            self.inbox.look()
        self._go_on()

    def _checkpoint_if_due(self) -> None:
        # Take none while tasks that were started in a step are running, because a resumed run would
        # lose them. Take none during replay, because the records of later steps would come before
        # the checkpoint in the log. A later step takes it.
        steps = self.step - self._checkpointed
        if not self.settings.is_due(steps, self._history.size):
            return
        replay = self.replay
        if (
            self.in_flight
            or self.outlived()
            or not replay.exhausted
            or replay.later_steps(self.step)
        ):
            return
        if self._in_place is not None:
            self.write_or_stop(self._in_place.look)
        self._write_pending()  # first, so that the checkpoint covers it
        what = CheckpointMeta(
            self.run_id,
            self.step,
            time.time(),
            recoveries=self.recovery_count,
            prologue=tuple(self._prologue),
            carried=self.tallies.to_checkpoint(),
            bytes_since=self._history.size,
            removed=self.loop.removed(),
        )
        lsn = self.write_or_stop(self.pruning.write, what, self.state, self.messages)
        self.loop.checkpointed()
        self.conversation.forget_before(self.pruning.first)
        self._checkpointed, self._history.size = self.step, 0
        for listener in self._history.listeners:
            listener.checkpoint(lsn, self.log.last_time_ns, self.step)
        self.log.commit_behind()
        self.pruning.prune(self.mutex)

    # -- calls in flight

    def on_answer(
        self, found: Answered, key: CallKey, made: Identified
    ) -> Generator[Effect, Any, Answered]:
        """What becomes of a call instead of ``found``. A replay that executes nothing stops the run
        at calls that have no outcome."""
        return found
        yield  # a generator, as the ones that replace it are

    def enter(self, scope: Scope) -> None:
        """Note that a call of this scope is in flight."""
        self.in_flight += 1
        if scope.call is not None:
            self.inside[scope.call.lsn] += 1

    def leave(self, scope: Scope) -> None:
        """Note that a call of this scope has ended."""
        self.in_flight -= 1
        if scope.call is not None:
            self.inside[scope.call.lsn] -= 1
            self.inside += Counter()  # forget what is zero

    def idle(self) -> bool:
        """Whether every call in flight waits for an event outside, or for a call that does."""
        busy = self.in_flight - len(self.inside)
        return busy <= self.waiting + self.children.idle()

    def drained(self) -> bool:
        """Whether no call is in flight any more; then none begins either. The agent function has
        ended: the streams that it left open have no consumer, not even for a chunk that has just
        come."""
        with self.mutex:
            for stream in [one for one in self.streams if one.is_left(ended=True)]:
                with suppress(Stop):
                    stream.abandon() if sys.exc_info()[1] is not None else stream.refuse()
            if not self.in_flight:
                # Invariant: no call of a thread begins beside the record of how the agent ended.
                self._closed = True
            return not self.in_flight

    # -- the end

    def missing(self) -> tuple[int, str]:
        """The first record that the code has not replayed: LSN and description; 0 if none."""
        with self.mutex:
            for call in self.replay.unmatched():
                return call.lsn, call_text(call)
            for recorded in self.replay.changes:
                return recorded.lsn, change_text(self._history, recorded)
            return 0, ""

    def finish(self, result: Any) -> RunFinished:
        """Record that the agent returned ``result``; durable by the next commit. No action of tasks
        that it left running is recorded after that."""
        with self.mutex:
            self._closed = False  # for what the agent's end records itself
            try:
                return self._finish(result)
            finally:
                self._closed = True

    def _finish(self, result: Any) -> RunFinished:
        # A gather may have turned the exception that stops the agent into a result.
        self.current_scope().check()
        self.before_action()
        self.check_open()
        lsn, recorded = self.missing()
        if lsn and not self.drift.may_finish():
            self.drift.diverge(Sides(lsn, recorded, "the agent returned"))
        marked = type(result) is Personal
        packed = pack(result.value if marked else result, "result")
        event = RunFinished(packed, self._history.step, self.recovery_count)
        self.record(replace(event, result=result.of(packed)) if marked else event)
        return replace(event, result=unpack(packed))

    def cancel(self, error: Exception) -> None:
        super().cancel(error)
        self.children.stop(error)

    def close(self) -> None:
        super().close()
        self.inbox.close()
