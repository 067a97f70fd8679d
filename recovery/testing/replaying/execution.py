"""Executes an agent on a recorded run, and stops it before any call that has no outcome there."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn, cast

from eventlog import Packed, WritableLog
from recovery.agent.drivers import Drivers
from recovery.agent.executions import AsyncExecution, SyncExecution
from recovery.agent_code.call_site import call_site
from recovery.declare.settings import Settings
from recovery.declare.spec import ToolSpec
from recovery.engine.call_in_progress import Identified
from recovery.engine.conversation import Conversation
from recovery.engine.divergence import Drift, messages_text
from recovery.engine.driver_effects import Effect, Invoke
from recovery.errors import DivergenceError, Sides
from recovery.history.checkpoint_store_base import CheckpointStoreBase
from recovery.history.load import History
from recovery.journal.call_key import CallKey
from recovery.journal.events import (
    CallFailed,
    CallIntended,
    CallResolved,
    CallReturned,
    MessagesChanged,
)
from recovery.journal.failure import failure
from recovery.replay.call_view import CallOutcome, Outcome, call_text
from recovery.replay.decide_call import Again, Answered, InDoubt, New, Recorded
from recovery.replay.recorded_call import RecordedCall, RecordedChange
from recovery.testing.replaying.recorded_run import RecordedRun
from recovery.text import shorten
from recovery.values.backrefs import refs_of
from recovery.values.diff import differing
from recovery.values.model_data import pack_result
from recovery.values.pack import unpack
from recovery.values.render import HIDDEN
from recovery.values.types import Ref

LAST = 1 << 62  # after all LSNs


class RecordEndError(Exception):
    """The record of a replayed run ends here."""


@dataclass(eq=False)
class Plan:
    """One replay. ``swap``: functions that are called in place of tools, by the tool's name.

    ``lenient``: from now on arguments and messages are not compared. ``differences``: those that
    were found since. ``on_call`` and ``on_step`` are called where the agent makes a call (the
    record that answers it: its LSN; 0 for none) and begins a step; ``on_end`` where the record
    ends.
    """

    recorded: RecordedRun
    swap: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    lenient: bool = False
    differences: list[str] = field(default_factory=list)
    on_call: Callable[[Drivers, int], None] = lambda run, lsn: None
    on_step: Callable[[Drivers, int], None] = lambda run, step: None
    on_end: Callable[[Drivers, str], None] = lambda run, where: None
    run: Drivers | None = None


class _ReplayDrift(Drift):
    def judge(
        self, spec: ToolSpec, key: CallKey, sides: Sides, compared: Callable[[Any], Any]
    ) -> RecordedCall | None:
        plan = _plan_of(self._run)
        if plan.lenient and key.tool in plan.swap:
            return None
        return super().judge(spec, key, sides, compared)

    def may_finish(self) -> bool:
        plan, replay = _plan_of(self._run), self._replay
        if not plan.lenient:
            return super().may_finish()
        left = replay.unmatched()
        plan.differences += [f"LSN {one.lsn}, {call_text(one)}: not made" for one in left]
        replay.pass_over()
        return True


class _ReplayConversation(Conversation):
    def _match(self, start: int, stop: int, packed: list[bytes]) -> list[Ref | None] | None:
        plan, changes = _plan_of(self._run), self._run.replay.changes
        if not (plan.lenient and changes):
            return super()._match(start, stop, packed)
        same = (one for one in changes if self._known(one.change) == packed)
        taken = next(same, None) or _like(changes, len(packed)) or changes[0]
        known = self._known(taken.change)
        if differs([unpack(one) for one in known], [unpack(one) for one in packed]):
            was = messages_text(taken.change, known)
            now_text = messages_text(MessagesChanged(start, stop), packed)
            plan.differences.append(f"LSN {taken.lsn}: {was} is {now_text}")
        self._take(taken)
        return refs_of([None] * len(packed), 0)


def _like(changes: Iterable[RecordedChange], size: int) -> RecordedChange | None:
    return next((one for one in changes if len(one.change.new) == size), None)


def differs(recorded: Any, now: Any) -> bool:
    """Whether two values differ elsewhere than where the recorded one is hidden."""
    return any(HIDDEN not in str(one) for _, one, _ in differing(recorded, now))


def _plan_of(run: Any) -> Plan:
    return cast(Plan, run.plan)


def _no_look(*, at_once: bool = False) -> None: ...


class _Replayed(Drivers):
    drift_kind, conversation_kind = _ReplayDrift, _ReplayConversation

    def __init__(
        self,
        plan: Plan,
        log: WritableLog,
        history: History,
        store: CheckpointStoreBase,
        settings: Settings,
    ) -> None:
        self.plan = plan
        super().__init__(log, history, store, settings)
        plan.run = self
        self.inbox.look = _no_look  # type: ignore[method-assign]  # the record has what it took
        if plan.lenient:
            self.replay.match_any_arguments()

    def next_step(self) -> int:
        step = super().next_step()
        self.plan.on_step(self, step)
        return step

    # -- calls

    def on_answer(
        self, found: Answered, key: CallKey, made: Identified
    ) -> Generator[Effect, Any, Answered]:
        """See Execution. Ends the replay at a call without an outcome, after all that is recorded
        was replayed."""
        plan, known = self.plan, isinstance(found, Recorded)
        plan.on_call(self, 0 if isinstance(found, New) else found.call.lsn)
        if plan.lenient and isinstance(found, Recorded) and found.call.key.digest != key.digest:
            self._note_arguments(found.call, made)
        if key.tool in plan.swap and (known or isinstance(found, New)):
            return (yield from self._swapped(found, key, made))
        if known:
            return found
        yield from self.wait_until(self._is_at_end, turn=0)
        self._end(found, key, made)

    def _is_at_end(self) -> bool:
        """Whether all that is recorded was replayed, and served."""
        return self.caught_up() and self.replay.is_next(LAST)

    def _note_arguments(self, recorded: RecordedCall, made: Identified) -> None:
        known, args = recorded.intent.args, unpack(made.packed)
        if known is None or differs(known, args):
            where = f"LSN {recorded.lsn}, {call_text(recorded)}"
            self.plan.differences.append(f"{where}: {shorten(args)}")

    def _swapped(
        self, found: Answered, key: CallKey, made: Identified
    ) -> Generator[Effect, Any, Recorded]:
        """The outcome that the function gives which is swapped for a tool. Calls that the function
        makes are of no run."""
        if isinstance(found, Recorded):
            call, was, turn = found.call, found.outcome.event, found.turn
        else:
            now = time.time_ns()
            call, was, turn = (
                RecordedCall(0, now, CallIntended(*key, "retry", None, 0), key, now),
                None,
                0,
            )
        event: CallReturned | CallFailed
        cause = None
        try:
            value = yield Invoke(self.plan.swap[key.tool], *made.given, None)
            event = CallReturned(call.lsn, pack_result(value, f"result of {key.tool}"))
        except Exception as exc:
            event, cause = failure(call.lsn, exc, self.secrets), exc
        if not self.plan.lenient and _value(event) != _value(was):
            self.plan.lenient = True
            self.replay.match_any_arguments()
        if _value(event) != _value(was):
            old = "new" if was is None else shorten(_value(was))
            text = f"{call_text(call)}: {old} is {shorten(_value(event))}"
            self.plan.differences.append(f"LSN {call.lsn}, {text}" if call.lsn else text)
        return Recorded(call, CallOutcome(call.last_lsn, event, cause), turn)

    def _end(self, found: Answered, key: CallKey, made: Identified) -> NoReturn:
        what = f"{key.tool}: {shorten(unpack(made.packed))}"
        lsn, missing = self.missing()
        finished = self.plan.recorded.finished
        if not lsn and finished is not None and isinstance(found, New):
            lsn, missing = finished[0], "the run finished"
        if lsn:
            sides = Sides(lsn, missing, f"{what}, {call_site()}")
            self.stop(DivergenceError(self.run_id, self.step, sides))
        match found:
            case InDoubt(call):
                where = f"LSN {call.lsn}, a call without a recorded outcome"
            case Again(call, why):
                where = f"LSN {call.lsn}, a call that is to be executed ({why})"
            case _:
                where = f"LSN {self.plan.recorded.records}, before a new call"
        where = f"step {self.step}, {where}: {what}"
        self.plan.on_end(self, where)
        self.stop(RecordEndError(where))


def _value(event: Outcome | None) -> Any:
    """What the agent gets of an outcome, to compare."""
    match event:
        case CallFailed():
            return event.type, event.message
        case CallReturned() | CallResolved():
            return unpack(event.value) if type(event.value) is Packed else event.value
    return None


class ReplayedAsync(_Replayed, AsyncExecution):
    """A replay of an async agent."""


class ReplayedSync(_Replayed, SyncExecution):
    """A replay of a plain agent."""


KINDS: dict[Any, Any] = {AsyncExecution: ReplayedAsync, SyncExecution: ReplayedSync}
