"""What two runs did differently: the first difference first."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, zip_longest
from typing import Any

from eventlog._dataclass import dataclass
from recovery._checkpoint import CheckpointStore
from recovery._difference import differing, same
from recovery._existing import reader_of
from recovery._lineage import ForkedFrom
from recovery._shorten import shorten
from recovery._told import CallTold, ChangeTold, RunTold, tell
from recovery.stores.protocol import RunStore

PATHS_MAX = 5  # differences that are shown of two values
WIDTH_MAX = 56  # of a column of text


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two runs are not alike.

    ``what``: "task", "state", "messages", "call" (made by one alone), "arguments", "outcome",
    "steps" or "end". ``where`` says it more closely. ``a`` and ``b``: what the runs have there, as
    text, empty where one has nothing; ``lsn_a`` and ``lsn_b``: the records that say so, or 0.
    """

    step: int
    what: str
    where: str
    a: str
    b: str
    lsn_a: int = 0
    lsn_b: int = 0


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """A run that was compared: how far it is, how it ended ("open": it has not), its origin.

    ``since``: the step behind which its log tells of it; what a fork began with is not in it.
    ``damage``: what of the log could not be read, and so was not compared.
    """

    run_id: str
    steps: int
    calls: int
    end: str
    since: int
    forked_from: ForkedFrom | None
    damage: tuple[str, ...]

    def __str__(self) -> str:
        text = f"{self.run_id}: {self.steps} steps, {self.calls} calls, {self.end}"
        if self.forked_from is not None:
            link = self.forked_from
            text += f"; forked from {link.run_id} at the end of step {link.step} (LSN {link.lsn})"
        return text + "".join(f"\n  DAMAGE: {found}" for found in self.damage)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs and their differences, in the order of the steps. ``str()`` shows it side by side.

    ``since``: steps up to this one were not compared, since one of the logs does not hold them.
    """

    a: ComparedRun
    b: ComparedRun
    since: int
    differences: tuple[Difference, ...]

    @property
    def alike(self) -> bool:
        """Whether no difference was found."""
        return not self.differences

    def __str__(self) -> str:
        lines = [str(self.a), str(self.b)]
        if self.since:
            lines.append(f"compared from the end of step {self.since} on")
        if self.alike:
            return "\n".join([*lines, "no difference"])
        rows = [("step", "", self.a.run_id, self.b.run_id)]
        for one in self.differences:
            what = f"{one.what} {one.where}".strip()
            rows.append((str(one.step), what, _cell(one.a, one.lsn_a), _cell(one.b, one.lsn_b)))
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        count = len(self.differences)
        many = "one difference, in" if count == 1 else f"{count} differences, the first in"
        lines.append(f"{many} step {rows[1][0]}:")
        for row in rows:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
            lines.append("  ".join([*cells, row[3]]).rstrip())
        return "\n".join(lines)


def compare(store: CheckpointStore | RunStore, run_a: str, run_b: str) -> Comparison:
    """Say what two runs did differently, the first difference first.

    Compared are the task, each step's calls (those inside other calls too) with their arguments
    and outcomes, the changes of the messages, and the end. Calls are matched by what they are, so
    the order in which concurrent ones were made is no difference; nor is the time, or what
    ``run.now()`` and its like gave. Arguments that were recorded by digest differ by digest.

    Only reads: the runs may be live, dead or damaged. Of a fork, what it began with is compared as
    state and messages, with those of the other run at the same step. RecoveryError when there is
    no such run.
    """
    a, b = _told(store, run_a, 0), _told(store, run_b, 0)
    since = max(a.since, b.since)
    if since:
        a, b = _told(store, run_a, since), _told(store, run_b, since)
    found = list(_differences(a, b, since))
    return Comparison(_compared(a), _compared(b), since, tuple(found))


def _told(store: CheckpointStore | RunStore, run_id: str, state_at: int) -> RunTold:
    with reader_of(store, run_id) as reader:
        return tell(reader, run_id, state_at)


def _compared(told: RunTold) -> ComparedRun:
    calls = sum(1 for step in told.steps.values() for call in step.calls for _ in call.all())
    return ComparedRun(told.run_id, told.reached, calls, told.end[0], told.since, told.origin,
                       tuple(map(str, told.damage)))  # fmt: skip


def _differences(a: RunTold, b: RunTold, since: int) -> Iterator[Difference]:
    for where, one, other in _paths(a.task, b.task):
        yield Difference(0, "task", where, one, other)
    last = max(a.reached, b.reached)
    yield from _calls(a.step(0).calls, b.step(0).calls, 0, "")
    yield from _boundary(a, b, since) if since else _changes(a, b, 0)
    for number in range(since + 1, last + 1):
        if number > min(a.reached, b.reached):
            ends = f"{a.reached} steps", f"{b.reached} steps"
            where = f"{number} to {last}" if number < last else ""
            yield Difference(number, "steps", where, *ends)
            break
        yield from _calls(a.step(number).calls, b.step(number).calls, number, "")
        yield from _changes(a, b, number)
    for where, one, other in _ends(a.end, b.end):
        yield Difference(last, "end", where, one, other, a.end_lsn, b.end_lsn)


def _boundary(a: RunTold, b: RunTold, since: int) -> Iterator[Difference]:
    """What the runs had at the end of a step behind which both logs tell of them."""
    if a.state is not None and b.state is not None:
        for where, one, other in _paths(a.state, b.state):
            yield Difference(since, "state", where, one, other)
    for where, one, other in _paths(a.messages_at(since), b.messages_at(since)):
        yield Difference(since, "messages", where, one, other)


def _changes(a: RunTold, b: RunTold, step: int) -> Iterator[Difference]:
    for one, other in zip_longest(a.step(step).changes, b.step(step).changes):
        if one is None or other is None or not same(one.compared, other.compared):
            yield _aside(step, "messages", "", one, other)
            return


def _calls(a: list[CallTold], b: list[CallTold], step: int, inside: str) -> Iterator[Difference]:
    for one, other in _paired(a, b):
        name = f"{inside}{(one or other).name}"  # type: ignore[union-attr]
        if one is None or other is None:
            yield _aside(step, "call", name, one, other)
            continue
        if one.identity != other.identity:
            for where, here, there in _arguments(one, other):
                yield Difference(step, "arguments", f"{name}{where}", here, there,
                                 one.lsn, other.lsn)  # fmt: skip
        else:
            for where, here, there in _ends(one.outcome, other.outcome):
                yield Difference(step, "outcome", f"{name}{where}", here, there,
                                 one.outcome_lsn, other.outcome_lsn)  # fmt: skip
        yield from _calls(one.inside, other.inside, step, f"{name} > ")


def _aside(
    step: int, what: str, where: str,
    a: CallTold | ChangeTold | None, b: CallTold | ChangeTold | None,
) -> Difference:  # fmt: skip
    return Difference(step, what, where, a.shown if a else "", b.shown if b else "",
                      a.lsn if a else 0, b.lsn if b else 0)  # fmt: skip


def _ends(a: tuple[str, Any], b: tuple[str, Any]) -> list[tuple[str, str, str]]:
    """How two calls, or two runs, ended otherwise."""
    if a[0] == b[0]:
        return _paths(a[1], b[1])
    one, other = (end if what is None else f"{end}: {shorten(what)}" for end, what in (a, b))
    return [("", one, other)]


def _arguments(a: CallTold, b: CallTold) -> list[tuple[str, str, str]]:
    if a.arguments is not None and b.arguments is not None:
        found = _paths(a.arguments, b.arguments)
        if found:  # they are [positional, by name]
            return [(f" args{where[3:]}" if where[:3] != "[1]" else f" {where[4:]}", one, other)
                    for where, one, other in found]  # fmt: skip
    here, there = (f"digest {digest.hex()[:8]}, occurrence {nth}"
                   for *_, digest, nth in (a.identity, b.identity))  # fmt: skip
    return [("", here, there)]


def _paired(
    a: list[CallTold], b: list[CallTold]
) -> Iterator[tuple[CallTold | None, CallTold | None]]:
    """The calls of a step, each with its counterpart: the same call, else one of the same id, else
    of the same tool, in the order of the first run."""
    partner: dict[int, CallTold] = {}
    left = sorted(b, key=_is_dropped)  # what counts first
    for alike in (_identity, _id, _tool):
        for one in sorted(a, key=_is_dropped):
            if one.lsn in partner or alike(one) is None:
                continue
            found = next((other for other in left if alike(other) == alike(one)), None)
            if found is not None:
                partner[one.lsn] = found
                left.remove(found)
    for one in a:
        yield one, partner.get(one.lsn)
    for other in left:
        yield None, other


def _identity(call: CallTold) -> Any:
    return call.identity


def _id(call: CallTold) -> Any:
    return call.identity[:2] if call.identity[1] else None


def _is_dropped(call: CallTold) -> bool:
    return call.dropped


def _tool(call: CallTold) -> Any:
    return call.identity[0]


def _paths(a: Any, b: Any) -> list[tuple[str, str, str]]:
    """Where two values differ, behind the name of what they are: the first few."""
    return [(f".{path}" if path[:1] not in ("", "[") else path, shorten(one), shorten(other))
            for path, one, other in islice(differing(a, b), PATHS_MAX)]  # fmt: skip


def _cell(text: str, lsn: int) -> str:
    text = " ".join(text.split())
    half = WIDTH_MAX // 2 - 2
    text = text if len(text) <= WIDTH_MAX else f"{text[:half]} .. {text[-half:]}"
    return f"{text} (LSN {lsn})" if lsn and text else text or "-"
