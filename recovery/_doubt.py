"""Calls in doubt: what became of one that was started and of which nothing says how it ended."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from eventlog import RefusedValueError
from eventlog._dataclass import dataclass
from recovery._effects import Effect, Invoke
from recovery._events import CallFailed, CallIntended, CallResolved, CallReturned
from recovery._letting_go import park_for
from recovery._refused import refuse_result
from recovery._shorten import shorten
from recovery._tool import AfterCrash, Arguments, Call, Resolution, ToolSpec
from recovery._values import OutcomeUnknown, pack

if TYPE_CHECKING:
    from recovery._compensation import Made
    from recovery._core import RunCore
    from recovery._history import History
    from recovery._recorded import RecordedCall
    from recovery._skimmed import Skimmed

_logger = logging.getLogger("recovery")

Outcome = CallReturned | CallFailed | CallResolved


class Settled(NamedTuple):
    """How a call ended: its event, where that is, and the exception if it was raised just now.

    ``raised``: how many attempts at it have raised, in whatever process.
    """

    lsn: int
    event: Outcome
    cause: Exception | None = None
    raised: int = 0


class Failure(NamedTuple):
    """An exception of a call as the agent got it; the call (LSN), and how often it has raised."""

    error: Exception
    call: int
    raised: int


@dataclass(frozen=True, slots=True, eq=False)
class Begun:
    """A call of which nothing is known to have become yet.

    ``calls``: the calls around it (LSNs), itself the last. ``begun``: whether its tool may have
    been at work.
    """

    spec: ToolSpec
    call: Call
    calls: tuple[int, ...]
    begun: bool = True

    @property
    def doubtful(self) -> bool:
        """Whether the agent cannot go on without knowing what became of it."""
        return self.spec.when_cut == "in_doubt" and self.spec.after_crash != "report"


def call_of(
    run: RunCore | History | Skimmed,
    lsn: int,
    intent: CallIntended,
    given: Arguments,
    attempt: tuple[int, int],
) -> Call:
    """The call as its tool or an operator sees it; ``attempt`` is its number and when it began."""
    number, started_ns = attempt
    return Call(run.run_id, lsn, intent.scope, intent.tool, *given, intent.call_id,
                intent.idempotency_key(run.uid), number, started_ns)  # fmt: skip


def recorded_call(run: RunCore | History, made: RecordedCall | Made) -> Call:
    """The same of a recorded call, with the arguments that its record has."""
    given = made.intent.arguments or ((), {})
    return call_of(run, made.lsn, made.intent, given, (made.attempts, made.time_ns))


def settle(run: RunCore, spec: ToolSpec, call: Call) -> Generator[Effect, Any, Settled | None]:
    """A call in doubt: what its policy says became of it; None if it is to be made again.

    One that is not made again has its end when what is in doubt inside it has one.
    """
    how, who = yield from _decided(run, spec, call)
    if how.how == "unknown":
        run.park([call, *_others_in_doubt(run, call.lsn)])
    if how.how == "retry" and spec.repeatable:
        return None
    if how.how != "retry":
        yield from settle_all(run, recorded_inside(run, call.lsn))
    settled = _resolved(run, spec, call, (how, who))
    return None if how.how == "retry" else settled


def settle_all(run: RunCore, in_doubt: Iterable[Begun]) -> Generator[Effect, Any, None]:
    """Settle side effects in doubt, each by its policy; the run parks if one cannot be.

    Those inside others first: what is around one that is open stays open.
    """
    unknown: list[Begun] = []
    around: set[int] = set()
    for one in sorted(in_doubt, key=lambda one: -one.call.lsn):
        how, who = Resolution.unknown(), ""
        if one.call.lsn not in around:
            how, who = yield from _decided(run, one.spec, one.call)
        if how.how == "unknown":
            unknown.append(one)
            around.update(one.calls)
        else:
            settled = _resolved(run, one.spec, one.call, (how, who))
            run.replay.settled(settled.lsn, settled.event)
    park_for(run, unknown)


def settle_covered(run: RunCore) -> None:
    """Before the agent goes on: side effects in doubt inside calls that have an outcome already.

    Nobody makes these again. They are there in older logs, where somebody has resolved the call
    around them first, and where a tool that had returned was at work still.
    """
    with run.mutex:
        found = [_recorded(run, one) for one in run.replay.covered_in_doubt()]
        for _ in settle_all(run, found):
            raise AssertionError("nobody is asked about a call whose tool is not known")


def recorded_inside(run: RunCore, lsn: int) -> list[Begun]:
    """Side effects in doubt that were recorded inside a call, and that it has not made again."""
    return [_recorded(run, one) for one in run.replay.in_doubt_inside(lsn)]


def _recorded(run: RunCore, made: RecordedCall) -> Begun:
    policy: AfterCrash = "report" if made.intent.after_crash == "report" else "park"
    spec = ToolSpec(made.intent.tool, recorded_call, policy)  # its function is not to be had
    return Begun(spec, recorded_call(run, made), (*run.replay.around(made), made.lsn))


def _resolved(run: RunCore, spec: ToolSpec, call: Call, decided: tuple[Resolution, str]) -> Settled:
    """Record what was decided about a call in doubt."""
    how, who = decided
    assert how.how != "unknown"
    path = f"resolution of {spec.name}"
    try:
        event = CallResolved(call.lsn, how.how, pack(how.value, path), who)
        return Settled(run.emit(event), event)
    except RefusedValueError as exc:
        where = exc.value_path if exc.value_path.startswith(path) else path
        refuse_result(run, spec, call, RefusedValueError(where, exc.reason), how.value)


def _decided(
    run: RunCore, spec: ToolSpec, call: Call
) -> Generator[Effect, Any, tuple[Resolution, str]]:
    """What the policy of a call in doubt says became of it, and who says so."""
    who = f"after_crash={spec.after_crash}"
    match spec.after_crash:
        case "retry":
            how = Resolution.retry()
        case "report" if _is_behind_a_loss(run, call):
            how = Resolution.unknown()
        case "report":
            how = Resolution.outcome(OutcomeUnknown(spec.name, call.idempotency_key))
        case "reconcile":
            how = yield from _reconcile(run, spec, call)
            who = "reconcile"
        case "park":
            how = Resolution.unknown()
    run.settled.append(f"{call}: {how.how} ({who})")
    _logger.info("run %s: was in doubt: %s", run.run_id, run.settled[-1])
    return how, who


def _is_behind_a_loss(run: RunCore, call: Call) -> bool:
    """Whether the agent may have had the outcome and gone on with it: without it, it would do
    something else than it did. And an agent that tries again whatever it is told nothing of would
    do so for ever, for nobody knows of which call that is true."""
    losses = run.replay.losses
    return losses is not None and (call.lsn in losses.presumed or not run.replay.used_up)


def _others_in_doubt(run: RunCore, but: int) -> list[Call]:
    """Calls that would park next, so that all of them can be resolved at once."""
    return [recorded_call(run, other) for other in run.replay.in_doubt()
            if other.intent.after_crash == "park" and other.lsn != but]  # fmt: skip


def _reconcile(run: RunCore, spec: ToolSpec, call: Call) -> Generator[Effect, Any, Resolution]:
    assert spec.reconcile is not None
    try:
        # In no scope: what it finds out is true now, and is not to be served from the log later.
        how = yield Invoke(spec.reconcile, (call,), {}, None)
    except Exception:
        _logger.exception("run %s: reconciling failed, the call stays in doubt: %s",
                          run.run_id, call)  # fmt: skip
        return Resolution.unknown()
    if not isinstance(how, Resolution):
        _logger.error("run %s: reconcile of %s is to return a Resolution, not %r; the call stays "
                      "in doubt", run.run_id, spec.name, how)  # fmt: skip
        return Resolution.unknown()
    return how


def describe(recorded: RecordedCall) -> str:
    """A recorded call for a person: with its arguments where the log has them."""
    args = recorded.intent.args
    shown = f"arguments of {recorded.intent.size} bytes" if args is None else shorten(args)
    return f"{recorded.key}: {shown}, {'with an outcome' if recorded.done else 'in doubt'}"
