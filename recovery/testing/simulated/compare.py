"""Compares a run that died with the one that never did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from recovery.errors import DivergenceError, RunFailedError
from recovery.testing.crash_report import Finding
from recovery.testing.processes.trial import End, Trial
from recovery.testing.simulated.simulated_life import Execution
from recovery.text import shorten

SHOWN_SIZE = 160


def judge(reference: Trial, trial: Trial, point: str, steady: bool) -> Iterator[Finding]:
    """The findings about a run that died. ``steady``: two runs without a crash were equal."""
    yield from _doubts(trial, point)
    wrong = list(_executions(reference, trial, point, steady))
    yield from wrong
    if steady and all(found.allowed for found in wrong):  # else it would be reported twice
        yield from _effects(reference, trial, point)
    if trial.end.how == "stuck":
        yield Finding("stuck", point, "", str(trial.end.value))
    elif trial.end.how != "parked":
        yield from _end(reference, trial, point, steady)
    yield from lost_signals(trial, point)


def lost_signals(trial: Trial, point: str) -> Iterator[Finding]:
    """Signals that the agent took and never read. (Those of a session that died are replayed.)"""
    if trial.end.how == "finished":
        for what in dict.fromkeys(trial.lives[-1].waits.signals.unread()):
            yield Finding("lost", point, "", what)


def ended_alike(one: Trial, other: Trial) -> list[str]:
    """The difference of two runs that never died, in words; "" if they are equal."""
    if one.end.how != other.end.how or one.end.value != other.end.value:
        return [f"{told(one.end)} and {told(other.end)}"]
    found = _difference(one, other)
    if found:
        return [
            f"{found[0]} is {shorten(found[1], SHOWN_SIZE)} and {shorten(found[2], SHOWN_SIZE)}"
        ]
    made, again = _counted(one.executions), _counted(other.executions)
    differing = {**(made - again), **(again - made)}
    if differing:
        names = {one.identity: one.shown for one in (*one.executions, *other.executions)}
        return [f"calls: {names[identity]} in one of them only" for identity in differing]
    return (
        [] if one.effects == other.effects else [f"effects: {_apart(one.effects, other.effects)}"]
    )


def told(end: End) -> str:
    """How a run ended, shortened."""
    match end.how:
        case "finished":
            return shorten(end.value, SHOWN_SIZE)
        case "failed":
            return f"failed with {end.value[0]}: {end.value[1]}"[:SHOWN_SIZE]
    return end.how if end.error is None else f"{type(end.error).__name__}: {end.error}"


# -- what tools did


def _counted(executions: list[Execution]) -> Counter[object]:
    """Side effects that took place, with their number."""
    return Counter(one.identity for one in executions if one.done and one.policy != "retry")


def _executions(reference: Trial, trial: Trial, point: str, steady: bool) -> Iterator[Finding]:
    again = Counter((one.tool, one.key) for one in trial.executions if one.policy == "retry")
    for tool in {tool for (tool, _), times in again.items() if times > 1}:
        yield Finding(
            "ran twice",
            point,
            tool,
            "a call cut short was made again, as @tool(after_crash='retry') allows",
            allowed=True,
        )
    made, wanted = _counted(trial.executions), _counted(reference.executions)
    shown = {one.identity: one for one in (*reference.executions, *trial.executions)}
    keys = Counter(
        (one.identity, one.key)
        for one in trial.executions
        if one.done and one.policy != "retry" and one.key
    )
    twice = {identity for (identity, _), times in keys.items() if times > 1}
    for identity in made:
        one, extra = shown[identity], made[identity] - wanted[identity]
        if identity in twice or (steady and extra > 0 and wanted[identity]):
            yield Finding(
                "ran twice",
                point,
                one.tool,
                f"{one.shown} took place "
                f"{_times(made[identity])}{_instead(wanted[identity], steady)}; "
                f"{_why(one)}",
                allowed=_harmless(one, trial),
            )
        elif steady and extra > 0:
            yield Finding(
                "differs",
                point,
                one.tool,
                f"{one.shown} took place; without a crash it does not",
                allowed=_harmless(one, trial),
            )
    if not steady or trial.end.how not in ("finished", "failed"):
        return
    begun = Counter(one.identity for one in trial.executions)
    told_unknown = _told_unknown(trial)
    for identity in wanted:
        if begun[identity] < wanted[identity] and shown[identity].tool not in told_unknown:
            one = shown[identity]
            yield Finding(
                "lost", point, one.tool, _lost(one.shown, begun[identity], wanted[identity])
            )


def _why(one: Execution) -> str:
    """Why an effect could take place again, by what its author has declared."""
    return {
        "plain": "it is called outside of recorded calls, so a resumed run calls it again",
        "reconcile": "its reconcile function said that it had not happened",
        "report": "the agent made it again after the result that the outcome is unknown",
        "inside": "the recorded call around it was made again",
    }.get(one.policy, "nothing declares that to be harmless")


def _harmless(one: Execution, trial: Trial) -> bool:
    """Whether it is part of a call that its author has declared safe to repeat."""
    if one.policy != "inside":
        return False
    around = {
        other.policy
        for other in trial.executions
        if other.key == one.key and other.policy != "inside"
    }
    return around == {"retry"}


def _doubts(trial: Trial, point: str) -> Iterator[Finding]:
    for tool in sorted(set(trial.doubtful)):
        yield Finding(
            "in doubt",
            point,
            tool,
            "it may or may not have taken effect, so the run waits until a person resolves it",
        )
    yield from forgotten(trial, point)
    for tool in sorted(_told_unknown(trial)):
        yield Finding(
            "in doubt",
            point,
            tool,
            "the agent gets an OutcomeUnknown as its result and continues with it",
        )


def forgotten(trial: Trial, point: str) -> Iterator[Finding]:
    """The tools of calls that were in doubt and not in the status of their run."""
    for tool in sorted(set(trial.forgotten)):
        yield Finding(
            "forgotten",
            point,
            tool,
            "it may have taken effect, and no person is asked about it",
        )


def _effects(reference: Trial, trial: Trial, point: str) -> Iterator[Finding]:
    """The effects that ``effects`` has returned."""
    wanted, found = reference.effects, trial.effects
    if not isinstance(wanted, Counter) or not isinstance(found, Counter):
        if wanted != found and trial.end.how == "finished":
            yield _differs(point, "what effects= gives", wanted, found)
        return
    for effect, times in found.items():
        if wanted[effect] and times > wanted[effect]:
            yield Finding(
                "ran twice",
                point,
                "",
                f"outside, {effect[:SHOWN_SIZE]} took place "
                f"{_times(times)}{_instead(wanted[effect], True)}",
            )
        elif times > wanted[effect]:
            yield Finding(
                "differs",
                point,
                "",
                f"outside, {effect[:SHOWN_SIZE]} took place; without a crash it does not",
            )
    if trial.end.how in ("finished", "failed") and not _told_unknown(trial):
        for effect in wanted - found:
            what = f"outside, {effect[:SHOWN_SIZE]}"
            yield Finding("lost", point, "", _lost(what, found[effect], wanted[effect]))


def _lost(what: str, times: int, wanted: int) -> str:
    how = f"took place {_times(times)}" if times else "did not take place"
    return f"{what} {how}{_instead(wanted, True)}"


def _apart(one: Any, other: Any) -> str:
    if isinstance(one, Counter) and isinstance(other, Counter):
        one, other = list((one - other).elements()), list((other - one).elements())
    return f"{shorten(one, SHOWN_SIZE)} and {shorten(other, SHOWN_SIZE)}"


def _told_unknown(trial: Trial) -> set[str]:
    """The tools whose calls gave the agent an OutcomeUnknown."""
    return {tool for life in trial.lives for tool in life.reported}


# -- how it ended


def _end(reference: Trial, trial: Trial, point: str, steady: bool) -> Iterator[Finding]:
    end = trial.end
    if end.how == "raised" or (end.how == "failed" and reference.end.how != "failed"):
        yield Finding("raised", point, "", _raised(end.error))
    elif not steady or _told_unknown(trial):
        return  # the agent knows less than the one that never crashed, and may act differently
    elif end.how != reference.end.how or end.value != reference.end.value:
        where, wanted, found = difference("the result", reference.end.value, end.value)
        yield _differs(point, where, wanted, found)
    elif end.how == "finished":
        found_one = _difference(reference, trial)
        if found_one:
            yield _differs(point, *found_one)


def _differs(point: str, where: str, wanted: Any, found: Any) -> Finding:
    return Finding(
        "differs",
        point,
        "",
        f"{where} is {shorten(found, SHOWN_SIZE)}; "
        f"without a crash it is {shorten(wanted, SHOWN_SIZE)}",
    )


def _raised(error: BaseException | None) -> str:
    match error:
        case DivergenceError():
            return (
                "the resumed run stopped with a DivergenceError, for the agent did something else "
                f"than the first time.\nrecorded: {error.recorded}\nnow: {error.found}"
            )
        case RunFailedError():
            return f"the resumed run failed: {error.type_name}: {error.message}"
    return f"the resumed run raised {type(error).__name__}: {error}"


def _difference(one: Trial, other: Trial) -> tuple[str, Any, Any] | None:
    """The first difference of state or messages, if any."""
    if one.final is None or other.final is None or one.final == other.final:
        return None
    names = ("the result", "run.state", "run.messages")
    return next(
        difference(name, *pair)
        for name, *pair in zip(names, one.final, other.final, strict=True)
        if pair[0] != pair[1]
    )


def difference(path: str, one: Any, other: Any) -> tuple[str, Any, Any]:
    """The deepest common path at which two values differ, and the value of each."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        for key in one:
            if one[key] != other[key]:
                return difference(f"{path}[{key!r}]", one[key], other[key])
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for index, pair in enumerate(zip(one, other, strict=True)):
            if pair[0] != pair[1]:
                return difference(f"{path}[{index}]", *pair)
    return path, one, other


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def _instead(count: int, steady: bool) -> str:
    return f"; without a crash {_times(count)}" if steady else " under one idempotency key"
