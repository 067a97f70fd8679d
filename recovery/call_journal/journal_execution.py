"""Executes the calls of a foreign loop: with what runs have, and without replay.

The policies, attempts, doubts and approvals are those of calls in a run (calls/). What differs: no
call waits for its turn in the record, none diverges, and an outcome is durable before the loop has
it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Generator, Iterable
from dataclasses import replace
from functools import partial
from threading import get_ident
from typing import Any

from eventlog import WritableLog
from recovery.agent.drivers import Drivers, refuse_generator
from recovery.agent.shared_commits import GroupCommit
from recovery.call_journal.begun_in_plain_code import SleepInLoop, begun
from recovery.call_journal.finished_call import FinishedCall
from recovery.call_journal.known_calls import Identity, KnownCall, KnownCalls
from recovery.calls.carry_out_call import (
    assumed_made,
    begin_call,
    call_steps,
    check_distinct,
    resume_call,
)
from recovery.calls.identity import digest_now, identify
from recovery.calls.intent import COMPARED_IN_PART_MAX, intent_of
from recovery.calls.serve_outcome import serve
from recovery.declare.scope import Scope
from recovery.declare.settings import Settings
from recovery.declare.spec import ToolSpec
from recovery.engine.call_in_progress import CallInProgress, Identified
from recovery.engine.drive import drive, drive_async
from recovery.engine.driver_effects import Commit, Effect, Sleep, WaitForTurn
from recovery.engine.per_event_loop import of_loop
from recovery.errors import RecoveryError
from recovery.history.checkpoint_store_base import CheckpointStoreBase
from recovery.history.load import History
from recovery.history.write_checkpoint import CheckpointMeta
from recovery.journal.call import Arguments
from recovery.journal.call_key import CallKey, outer_call, step_scope
from recovery.journal.events import (
    HistoryDropped,
    MessagesChanged,
    RunFinished,
    StepStarted,
    ValueRecorded,
)
from recovery.replay.call_view import CallOutcome, recorded_call_view
from recovery.replay.decide_call import (
    Again,
    CancelledAgain,
    InDoubt,
    Recorded,
    RequestedCall,
    answer_of,
)
from recovery.replay.recorded_call import RecordedCall
from recovery.values.pack import pack, unpack
from recovery.values.types import OutcomeUnknown

NAP_S = 0.005  # how soon a call that is asked for twice sees that the first one has its outcome
CHECKPOINT_SIZE = 256 << 10  # so much is read when it is opened again, and what is not forgotten


class JournalExecution(Drivers):
    """One opening of a journal of calls."""

    # To finish a call, the loop may have the record alone: it need not make the call again.
    recorded_args_size = COMPARED_IN_PART_MAX

    def __init__(
        self, log: WritableLog, history: History, store: CheckpointStoreBase, settings: Settings
    ) -> None:
        events = [event for _, _, event in history.entries]
        super().__init__(log, history, store, settings)
        self.in_loop = True
        self.step = max((one.step for one in events if isinstance(one, StepStarted)), default=0)
        self.known = KnownCalls(
            [call for call in self.replay.unmatched() if not outer_call(call.key.scope)],
            step_scope(self.step),
        )
        self.scope.path = step_scope(self.step)
        self._restore_memory(events)
        if not self.step:
            self.step = history.step
            self._begin_step()

    # -- what a run has in another way

    @property
    def before_loop(self) -> bool:
        """True, as of a run that is resumed: no new call diverges from what is recorded."""
        return True

    def alone(self) -> bool:
        """False: what else the loop does is unknown."""
        return False

    def open_stream(self, spec: ToolSpec, given: Arguments, call_id: str) -> Any:
        """RecoveryError: a journal records what functions return."""
        raise RecoveryError(
            f"{spec.name} is a generator function: a journal of calls records what functions "
            "return. Have a function collect what it yields"
        )

    async def perform_async(self, spec: ToolSpec, given: Arguments, call_id: str) -> Any:
        refuse_generator(spec)
        return await drive_async(self._steps(spec, given, call_id), self._perform_async, self.mutex)

    def perform_sync(self, spec: ToolSpec, given: Arguments, call_id: str) -> Any:
        refuse_generator(spec)
        return drive(self._steps(spec, given, call_id), self._perform_sync, self.mutex)

    def start(self, spec: ToolSpec, given: Arguments, call_id: str) -> Any:
        """See CallJournal.start."""
        refuse_generator(spec)
        steps = self._steps(spec, given, call_id)
        return begun(steps, self._perform_sync, self._perform_async, self.mutex)

    def _perform_async(self, effect: Effect) -> Awaitable[Any]:
        if isinstance(effect, WaitForTurn):
            return _answered(effect)
        return super()._perform_async(effect)

    def _perform_sync(self, effect: Effect) -> Any:
        if isinstance(effect, WaitForTurn):
            return effect.ready()
        if isinstance(effect, SleepInLoop):
            raise RecoveryError(
                "this call is in flight in the event loop of this thread, which cannot continue "
                "before call_sync returns: use `await journal.call(...)`"
            )
        return super()._perform_sync(effect)

    async def _commit(self) -> None:
        await of_loop(GroupCommit).commit(self.commit)

    # -- calls

    def _steps(self, spec: ToolSpec, given: Arguments, call_id: str) -> Generator[Effect, Any, Any]:
        """The life of a call: one of the loop's, or one made inside such a call."""
        is_nested = bool(self.current_scope().calls)
        return call_steps(self, spec, given, call_id, None if is_nested else self._call)

    def _call(self, spec: ToolSpec, given: Arguments, call_id: str) -> Generator[Effect, Any, Any]:
        self.safe_point()
        made = identify(self, spec, given, call_id)
        spec = made.spec
        identity = Identity(spec.name, made.call_id, made.digest)
        scope = self.current_scope()
        while True:
            found = self.known.find(identity, partial(digest_now, self, made))
            if found is None or not found.in_flight:
                break
            beside = found.thread == get_ident()  # as another task of its event loop
            yield SleepInLoop(NAP_S) if beside else Sleep(NAP_S)
            self.check()
        if found is not None and found.left is None:  # asked for again
            assert found.outcome is not None
            if self.log.durable_lsn < found.outcome.lsn:  # the loop cancelled the wait for that
                yield Commit()
            self.served += 1
            return serve(self, spec, found.lsn, found.outcome)
        key = CallKey(scope.path, *identity)
        if not identity.call_id:
            check_distinct(self, scope, key, made)
        if found is None:
            found = KnownCall(identity)
            self.known.add(found)
        elif found.identity != identity:
            self._rename(found, identity)
        found.thread = get_ident()
        self.enter(scope)
        try:
            lsn, outcome = yield from self._outcome(found, key, made)
            self.replay.forget(lsn)
            found.lsn, found.outcome = lsn, outcome
            # Invariant: no outcome reaches the loop before it is durable.
            yield Commit()
        finally:
            found.thread = 0
            self.leave(scope)
            if found.outcome is None:  # in doubt, until the journal is opened again
                self.known.discard(found)
        return serve(self, spec, found.lsn, found.outcome)

    def _outcome(
        self, known: KnownCall, key: CallKey, made: Identified
    ) -> Generator[Effect, Any, tuple[int, CallOutcome]]:
        """How the call ended: by the record, or because it was made now."""
        spec, left = made.spec, self.known.take(known)
        key = key.nth(self.known.occurrence(key)) if left is None else left.key
        asked = RequestedCall(key, spec.repeatable, spec.when_cut == "fail", True, lambda _: None)
        if left is None:
            losses = self.replay.losses
            if losses is None or not losses.may_contain(key.scope):
                return (yield from begin_call(self, key, made))
            left = assumed_made(self, key, made)
        else:
            self.replay.match(left.key)
        found = answer_of(left, asked)
        if isinstance(found, CancelledAgain):  # the loop need not cancel it again
            found = found.then
        if isinstance(found, Recorded):
            self.served += 1
            return found.call.lsn, found.outcome
        assert isinstance(found, Again | InDoubt)
        return (yield from resume_call(self, found, made))

    def _rename(self, known: KnownCall, identity: Identity) -> None:
        """From here on the recorded call is the one that the loop asks for: as the record says,
        for else a later process would have the outcome for either."""
        assert known.left is not None
        # Its LSN, for no other call of that step can have the same number.
        key = CallKey(known.left.key.scope, *identity, known.lsn)
        self.record(HistoryDropped([], None, known.lsn, key.call_id, key.digest, key.occurrence))
        self.replay.rename(known.left, key)
        self.known.rename(known, identity)

    def doubt(self, spec: ToolSpec, given: Arguments, call_id: str) -> None:
        """See CallJournal.doubt."""
        with self.mutex:
            self.safe_point()
            made = identify(self, spec, given, call_id)
            key = CallKey(self.scope.path, made.spec.name, made.call_id, made.digest)
            key = key.nth(self.known.occurrence(key))
            event, _ = intent_of(self, key, made)
            lsn, now = self.record(event), time.time_ns()
            shown = replace(event, args=None if event.args is None else unpack(event.args))
            self.known.add_left(RecordedCall(lsn, now, shown, key, now))
            self.commit()

    def finished(self, ids: Iterable[str] | None) -> list[FinishedCall]:
        """See CallJournal.finished."""
        with self.mutex:
            named = None if ids is None else frozenset(ids)
            return sorted(map(self._finished, self.known.finished(named)), key=lambda one: one.lsn)

    def _finished(self, known: KnownCall) -> FinishedCall:
        value, error, ended = None, None, 0
        if known.outcome is not None:
            ended = known.outcome.lsn
            spec = ToolSpec(known.identity.tool, serve)  # its function is not known here
            try:
                value = serve(self, spec, known.lsn, known.outcome)
            except Exception as exc:
                error = exc
        elif known.made is not None:
            ended = known.made.last_lsn
            key = recorded_call_view(self, known.made).idempotency_key
            value = OutcomeUnknown(known.identity.tool, key)
        given = known.made.arguments if known.made is not None else None
        tool, call_id, _ = known.identity
        return FinishedCall(known.lsn, ended, tool, call_id, given, value, error)

    def note_cancelled(self, one: CallInProgress, cause: BaseException) -> None:
        # Else the process is about to end: the loop has not continued without the call.
        if one.in_doubt or isinstance(cause, asyncio.CancelledError | GeneratorExit):
            super().note_cancelled(one, cause)

    # -- what the loop keeps in the journal

    def _restore_memory(self, events: Iterable[Any]) -> None:
        self.values: dict[str, Any] = dict(self.state)
        self.messages.is_past = False
        if self.replay.losses is not None:  # each change says what differs from before
            self.values = {}
            self.replay.changes.clear()
            self.messages.clear()
            return
        self.conversation.restore()
        for event in events:
            if isinstance(event, ValueRecorded) and not outer_call(event.scope):
                self.values[event.name] = event.value

    def keep(self, name: str, value: Any) -> None:
        """See CallJournal.keep."""
        with self.mutex:
            self.safe_point()
            packed = pack(value, name)
            if name in self.values and pack(self.values[name], name) == packed:
                return
            self.record(ValueRecorded(self.scope.path, name, 0, packed))
            self.values[name] = unpack(packed)

    def record_when_caught_up(self, event: ValueRecorded | MessagesChanged) -> int:
        """Record it now: the loop makes no change again."""
        return self.record(event)

    # -- steps: from one checkpoint of the loop to the next

    def _begin_step(self) -> None:
        losses = self.replay.losses
        # Invariant: calls of a step that begins now are not among records that are lost.
        self.step = 1 + max(self.step, losses.last_step if losses is not None else 0)
        self.record(StepStarted(self.step))
        self.scope = Scope(self, step_scope(self.step))
        self.known.begin_step()

    def forget(self, calls: Iterable[str | FinishedCall] | None) -> int:
        """See CallJournal.forget."""
        named: frozenset[str | int] | None = None
        if calls is not None:
            named = frozenset(one if isinstance(one, str) else one.lsn for one in calls)
        with self.mutex:
            self.safe_point()
            gone = self.known.finished(named)
            for known in gone:
                if known.left is not None:
                    self.replay.match(known.left.key)
                self.known.discard(known)
            checkpointed = self._checkpoint()
            # Invariant: the step begins first. A call that is forgotten and made again is another
            # one, and has another idempotency key.
            self._begin_step()
            if gone and not checkpointed:
                self.record(HistoryDropped(sorted(known.lsn for known in gone)))
            return len(gone)

    def _checkpoint(self) -> bool:
        # After a checkpoint nothing would know of calls before it.
        history = self._history
        if history.size < CHECKPOINT_SIZE or self.in_flight or not self.known.is_empty:
            return False
        what = CheckpointMeta(
            self.run_id,
            self.step,
            self.wall_clock(),
            recoveries=self.recovery_count,
            prologue=tuple(history.prologue),
            carried=self.tallies.to_checkpoint(),
            bytes_since=history.size,
        )
        self.write_or_stop(self.pruning.write, what, self.values, self.messages)
        self.conversation.forget_before(self.pruning.first)
        history.size = 0
        self.log.commit_behind()
        self.pruning.prune(self.mutex)
        return True

    def end(self) -> None:
        """The loop has ended in good order, if nothing is left that it may ask for."""
        with self.mutex:
            self.check()
            self.before_action()
            if self.known.is_empty and not self.in_flight:
                self.record(RunFinished(None, 0, self.recovery_count))
            self.commit()


async def _answered(effect: WaitForTurn) -> bool:
    return effect.ready()
