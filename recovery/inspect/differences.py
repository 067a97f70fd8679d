"""Finds the differences of two runs in their outlines, one after the other."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from itertools import islice, zip_longest
from typing import Any

from eventlog import Packed
from eventlog.light_dataclass import light_dataclass
from recovery.errors import UnreadableValueError
from recovery.inspect.outline import CallOutline, EndDetail, MessageChange, RunOutline, StoredValue
from recovery.text import shorten
from recovery.values.diff import Alike, differing, same
from recovery.values.pack import unpack
from recovery.values.render import Term, readable

LOST = Term("(lost)")
MORE = Term("(and more)")

Pair = tuple[Any, Any, Alike]
Read = Callable[[Packed, Packed], Pair]


class Ended(dict[str, Any]):
    """How a call or a run ended: a word for it, and the value or the reason."""

    def __repr__(self) -> str:
        return ", ".join(f"{end}: {shorten(what)}" for end, what in self.items())


@light_dataclass
class Side:
    """The side of one run in a difference: the record, and the value there.

    ``head``: text to show before the value. The value of a call is its arguments, [positional, by
    name]; of a change of messages, the new messages, from ``start`` on; else a Term.
    """

    lsn: int
    value: Any
    head: str = ""
    dropped: bool = False
    start: int = 0


@light_dataclass
class FoundDifference:
    """A difference. ``name``: of the call, if it is in one; ``path``: where in the value.

    ``a`` and ``b``: the sides of the runs, None where one has nothing.
    """

    step: int
    what: str
    name: str
    path: str
    a: Side | None
    b: Side | None


def as_types(a: Packed, b: Packed) -> Pair:
    """Two values with their types; rendered if a type is not registered."""
    try:
        return unpack(a), unpack(b), same
    except (UnreadableValueError, ValueError):
        return rendered(a, b)


def rendered(a: Packed, b: Packed) -> Pair:
    """Two rendered values, whatever their types."""
    return readable(a), readable(b), read_alike


def read_alike(a: Any, b: Any) -> bool:
    """Whether two rendered values are equal."""
    # A Term differs from equal text, and 1 from True.
    return repr(a) == repr(b)


class RunComparison:
    """Compares two runs. ``alike``: equal calls with equal outcomes, so far; ``before``: the last
    of them before the first difference.

    ``read``: how values are read. ``paths_max``: differences shown of two values.
    """

    def __init__(self, a: RunOutline, b: RunOutline, read: Read, paths_max: int) -> None:
        self.a, self.b, self.from_step = a, b, max(a.from_step, b.from_step)
        self.alike = 0
        self.before: tuple[int, CallOutline, CallOutline] | None = None
        self._last: tuple[int, CallOutline, CallOutline] | None = None
        self._read, self._paths_max = read, paths_max

    def found(self) -> Iterator[FoundDifference]:
        """The differences, in the order of the steps."""
        for i, one in enumerate(self._found()):
            if not i:
                self.before = self._last
            yield one

    def _found(self) -> Iterator[FoundDifference]:
        a, b, from_step = self.a, self.b, self.from_step
        for path, one, other in self._paths(a.task, b.task):
            yield FoundDifference(
                0, "task", "", path, Side(a.started_lsn, one), Side(b.started_lsn, other)
            )
        last = max(a.reached, b.reached)
        yield from self._calls(a.step(0).calls, b.step(0).calls, 0, "")
        yield from self._boundary() if from_step else self._changes(0)
        for number in range(from_step + 1, last + 1):
            if number > min(a.reached, b.reached):
                ends = (Side(0, Term(f"{run.reached} steps")) for run in (a, b))
                where = f"{number} to {last}" if number < last else ""
                yield FoundDifference(number, "steps", where, "", *ends)
                break
            yield from self._calls(a.step(number).calls, b.step(number).calls, number, "")
            yield from self._changes(number)
        for path, one, other in self._ends(a.end, b.end):
            yield FoundDifference(
                last, "end", "", path, Side(a.end_lsn, one), Side(b.end_lsn, other)
            )

    def _boundary(self) -> Iterator[FoundDifference]:
        """Differences at the end of the step after which both logs have everything."""
        a, b, from_step = self.a, self.b, self.from_step
        if a.state is not None and b.state is not None:
            for key in dict.fromkeys([*a.state, *b.state]):
                for path, one, other in self._paths(a.state.get(key), b.state.get(key)):
                    yield FoundDifference(
                        from_step, "state", "", f".{key}{path}", Side(0, one), Side(0, other)
                    )
        pairs = zip_longest(a.messages_at(from_step), b.messages_at(from_step))
        for i, (mine, theirs) in enumerate(pairs):
            if mine and theirs and mine.digest == theirs.digest:
                continue
            sides = mine.lsn if mine else 0, theirs.lsn if theirs else 0
            for path, one, other in self._paths(*self._packed(mine, theirs)):
                yield FoundDifference(
                    from_step,
                    "messages",
                    "",
                    f"[{i}]{path}",
                    Side(sides[0], one),
                    Side(sides[1], other),
                )

    def _changes(self, step: int) -> Iterator[FoundDifference]:
        for one, other in zip_longest(self.a.step(step).changes, self.b.step(step).changes):
            if one is None or other is None or one.comparison_key != other.comparison_key:
                yield FoundDifference(
                    step, "messages", "", "", self._change(self.a, one), self._change(self.b, other)
                )
                return

    def _calls(
        self, a: list[CallOutline], b: list[CallOutline], step: int, inside: str
    ) -> Iterator[FoundDifference]:
        for one, other in paired(a, b):
            name = f"{inside}{(one or other).name}"  # type: ignore[union-attr]
            if one is None or other is None:
                yield FoundDifference(
                    step, "call", name, "", self._call(self.a, one), self._call(self.b, other)
                )
                continue
            if one.identity != other.identity:
                for path, here, there in self._arguments(one, other):
                    yield FoundDifference(
                        step, "arguments", name, path, Side(one.lsn, here), Side(other.lsn, there)
                    )
            elif one.outcome == other.outcome:
                self.alike += 1
                self._last = step, one, other
            else:
                for path, here, there in self._outcomes(one.end, other.end):
                    yield FoundDifference(
                        step,
                        "outcome",
                        name,
                        path,
                        Side(one.outcome_lsn, here),
                        Side(other.outcome_lsn, there),
                    )
            yield from self._calls(one.inside, other.inside, step, f"{name} > ")

    def _outcomes(
        self, a: tuple[str, EndDetail], b: tuple[str, EndDetail]
    ) -> list[tuple[str, Any, Any]]:
        """How the ends of two calls differ."""
        return self._ends((a[0], _detail(self.a, a[1])), (b[0], _detail(self.b, b[1])))

    def _ends(
        self, a: tuple[str, Packed | str | None], b: tuple[str, Packed | str | None]
    ) -> list[tuple[str, Any, Any]]:
        """How the ends of two calls, or two runs, differ."""
        packed = isinstance(a[1], Packed) and isinstance(b[1], Packed)
        if a[0] == b[0] and packed:
            return self._paths(a[1], b[1])  # type: ignore[arg-type]
        if a == b:
            return []
        if a[0] == b[0] and not isinstance(a[1], Packed) and not isinstance(b[1], Packed):
            return [("", a[1], b[1])]
        one, other = (
            Term(end)
            if what is None
            else Ended({end: self._one(what) if isinstance(what, Packed) else what})
            for end, what in (a, b)
        )
        return [("", one, other)]

    def _arguments(self, a: CallOutline, b: CallOutline) -> list[tuple[str, Any, Any]]:
        if a.arguments is not None and b.arguments is not None:
            found = self._paths(*self._packed(a.arguments, b.arguments))
            if found:  # they are [positional, by name]
                return [
                    (f"args{path[3:]}" if path[:3] != "[1]" else path[4:], one, other)
                    for path, one, other in found
                ]
        here, there = (
            Term(f"digest {digest.hex()[:8]}, occurrence {nth}")
            for *_, digest, nth in (a.identity, b.identity)
        )
        return [("", here, there)]

    # -- values

    def _packed(
        self, a: StoredValue | None, b: StoredValue | None
    ) -> tuple[Packed | Term | None, ...]:
        return (
            None if a is None else self.a.value(a) or LOST,
            None if b is None else self.b.value(b) or LOST,
        )

    def _paths(
        self, a: Packed | Term | None, b: Packed | Term | None
    ) -> list[tuple[str, Any, Any]]:
        """The first few paths at which two values differ."""
        if a == b:
            return []
        if not isinstance(a, Packed) or not isinstance(b, Packed):
            return [("", self._one(a), self._one(b))]
        one, other, alike = self._read(a, b)
        found = list(islice(differing(one, other, "", alike), self._paths_max + 1))
        found = found or [("", one, other)]  # different bytes with equal renderings
        if len(found) > self._paths_max:
            found[-1] = "", MORE, MORE
        return [
            (f".{path}" if path[:1] not in ("", "[") else path, here, there)
            for path, here, there in found
        ]

    def _one(self, packed: Packed | Term | None) -> Any:
        if packed is None:
            return Term("(absent)")
        return self._read(packed, packed)[0] if isinstance(packed, Packed) else packed

    def _call(self, run: RunOutline, call: CallOutline | None) -> Side | None:
        if call is None:
            return None
        value: Any = Term(f"arguments of {call.size} bytes")
        if call.arguments is not None:
            value = self._one(run.value(call.arguments) or LOST)
        return Side(call.lsn, value, call.name, call.dropped)

    def _change(self, run: RunOutline, change: MessageChange | None) -> Side | None:
        if change is None:
            return None
        new = [self._one(run.value(stored) or LOST) for stored in change.new]
        return Side(change.lsn, new, change.head, start=change.start)


def _detail(run: RunOutline, what: EndDetail) -> Packed | str | None:
    return (run.value(what) or LOST) if isinstance(what, StoredValue) else what


def paired(
    a: list[CallOutline], b: list[CallOutline]
) -> Iterator[tuple[CallOutline | None, CallOutline | None]]:
    """The calls of a step, each with its counterpart: an equal call, else one with the same id,
    else one of the same tool, in the order of the first run."""
    partner: dict[int, CallOutline] = {}
    taken: set[int] = set()
    for alike in (_identity, _id, _tool):
        left: defaultdict[Any, deque[CallOutline]] = defaultdict(deque)
        for other in sorted(b, key=_is_dropped):  # calls that count come first
            if other.lsn not in taken:
                left[alike(other)].append(other)
        for one in sorted(a, key=_is_dropped):
            if one.lsn not in partner and alike(one) is not None and left[alike(one)]:
                partner[one.lsn] = left[alike(one)].popleft()
                taken.add(partner[one.lsn].lsn)
    for one in a:
        yield one, partner.get(one.lsn)
    for other in sorted(b, key=_is_dropped):
        if other.lsn not in taken:
            yield None, other


def _identity(call: CallOutline) -> Any:
    return call.identity


def _id(call: CallOutline) -> Any:
    return call.identity[:2] if call.identity[1] else None


def _is_dropped(call: CallOutline) -> bool:
    return call.dropped


def _tool(call: CallOutline) -> Any:
    return call.identity[0]
