"""Compares a run that was killed with one that was not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from recovery.testing.crash_report import Finding
from recovery.testing.processes.watch import Effect, Moment, short

RESULT_SIZE_MAX = 200  # shown characters

Volatile = frozenset[tuple[str, str]]  # tool and argument


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one run, over all of its sessions.

    ``result``: as text, None if there is none. ``failed``: why the run did not end, "" if it did;
    ``stuck``: because it took too long. ``parked``: the calls for which it waits for a person.
    ``point``: where it was killed, "" if it was not. ``said``: the end of the output of its last
    session.
    """

    point: str
    effects: tuple[Effect, ...]
    moments: tuple[Moment, ...]
    result: str | None
    failed: str = ""
    stuck: bool = False
    parked: str = ""
    lives: int = 1
    kills: int = 0
    time_s: float = 0.0
    said: str = ""


def volatile(one: Outcome, other: Outcome) -> Volatile:
    """The arguments that differ between two runs without a kill: ids, times, keys."""
    return frozenset(
        place
        for place in _values(one) | _values(other)
        if _values(one).get(place) != _values(other).get(place)
    )


def _values(outcome: Outcome) -> dict[tuple[str, str], Counter[str]]:
    found: dict[tuple[str, str], Counter[str]] = {}
    for effect in outcome.effects:
        for arg, value in effect.args.items():
            found.setdefault((effect.name, arg), Counter())[value] += 1
    return found


def counted(effects: Iterable[Effect], ignored: Volatile) -> Counter[tuple[str, str]]:
    """How often each thing was done: by tool, and by call as text.

    Requests under one idempotency key count once: that is the purpose of such keys.
    """
    keys: set[tuple[str, str]] = set()
    counts: Counter[tuple[str, str]] = Counter()
    for effect in effects:
        if effect.key:
            if (effect.name, effect.key) in keys:
                continue
            keys.add((effect.name, effect.key))
        counts[short(effect.name), _call(effect, ignored)] += 1
    return counts


def _call(effect: Effect, ignored: Volatile) -> str:
    args = [
        (name, value) for name, value in effect.args.items() if (effect.name, name) not in ignored
    ]
    if "/" in effect.name:
        return " ".join([effect.name, *(value for _, value in args)])
    return f"{short(effect.name)}({', '.join(f'{name}={value}' for name, value in args)})"


def judge(
    reference: Outcome, outcome: Outcome, ignored: Volatile, repeatable: frozenset[str]
) -> Iterator[Finding]:
    """The findings about a run that was killed."""
    yield from _effects(reference, outcome, ignored, repeatable)
    point = outcome.point
    if outcome.parked:
        what = "the run stops, and waits for a person to say whether it happened"
        yield Finding("in doubt", point, short(outcome.parked), what)
    elif outcome.failed:
        yield Finding("stuck" if outcome.stuck else "raised", point, "", outcome.failed)
    elif reference.result is not None and outcome.result != reference.result:
        was, found = _shown(reference.result), _shown(outcome.result)
        yield Finding("differs", point, "", f"the result is {found}; without a crash it is {was}")


def _effects(
    reference: Outcome, outcome: Outcome, ignored: Volatile, repeatable: frozenset[str]
) -> Iterator[Finding]:
    """Each effect that took place too often, or not often enough.

    An effect that was cut short may have taken place. It is counted in favour of the agent. If it
    was begun again after that, it is reported as in doubt.
    """
    point = outcome.point
    wanted = counted(reference.effects, ignored)
    done = counted((effect for effect in outcome.effects if effect.done), ignored)
    begun = counted(outcome.effects, ignored)
    over = not (outcome.parked or outcome.failed)
    for tool, call in wanted | begun:
        times, certain, at_most = (of[tool, call] for of in (wanted, done, begun))
        allowed = tool in repeatable
        without = f"without a crash {_times(times)}"
        if certain > times > 0:
            what = f"{call} took place {_times(certain)}; {without}"
            yield Finding("ran twice", point, tool, what, allowed)
        elif certain > times:
            what = f"{call} took place, and does not without a crash"
            yield Finding("differs", point, tool, what)
        elif at_most > times:
            what = f"{call} was cut short and begun again: it may have taken place twice"
            yield Finding("in doubt", point, tool, what, allowed)
        elif at_most < times and over:
            yield Finding("lost", point, tool, f"{call} took place {_times(at_most)}; {without}")
    yield from _under_one_key(reference, outcome)


def _under_one_key(reference: Outcome, outcome: Outcome) -> Iterator[Finding]:
    for tool, times in _repeats(outcome).items():
        if times > _repeats(reference)[tool]:
            yield Finding(
                "ran twice",
                outcome.point,
                tool,
                "was requested again under the same idempotency key: right if the service knows it",
                True,
            )


def _repeats(outcome: Outcome) -> Counter[str]:
    keys = Counter((effect.name, effect.key) for effect in outcome.effects if effect.key)
    counts: Counter[str] = Counter()
    for (name, _), times in keys.items():
        counts[name] += times - 1
    return counts


def _times(n: int) -> str:
    return {0: "not at all", 1: "once", 2: "twice"}.get(n, f"{n} times")


def _shown(result: str | None) -> str:
    if result is None:
        return "missing"
    return result if len(result) <= RESULT_SIZE_MAX else result[:RESULT_SIZE_MAX] + "…"
