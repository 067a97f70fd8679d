"""Encodes the values of channels in records, as what is new and references to what is recorded.

A value is ``[encoding, bytes]``, or a reference ``[lsn, part, at]`` to one that another record has.
A list is a map: ``n`` has its new elements, and ``p`` pieces in order. A piece ``[start, count]``
is of the list that ``b`` names (LSN and part); ``[lsn, part, at, count]`` is of the new elements of
another record, LSN 0 for those of its own. A fifth item is the id that a message got since.

A list that only grows refers to the list 1, 2, 4, ... steps before it, as a Fenwick tree does
(``k`` counts the steps). So a step adds a few bytes, and a list of n steps is read from log2(n)
records, besides those of its elements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from recovery.integrations.langgraph.elements import Address, Element, Elements, Recorded
from recovery.integrations.langgraph.serializer import Codec, Stored, digest_of

Form = Any  # an encoded value
# An Address as a plain tuple, which the garbage collector need not follow: a list has thousands.
Place = tuple[int, "int | str", int, str]
FormOf = Callable[[int, "int | str"], Form]

HOPS_MAX = 64  # lists that a list is read through
RECORDS_MAX = 256  # in memory at once, of those that have the elements of a list
SMALL = 32  # bytes: less than what a reference saves


class Level(NamedTuple):
    """A recorded list that is the beginning of later ones."""

    steps: int
    lsn: int
    part: int | str
    length: int
    hops: int


class ListState:
    """A recorded list: its elements, and the lists that are its beginning, the shortest first.

    ``fresh``: the elements that the list before it has not, in order.
    """

    __slots__ = ("_held", "fresh", "length", "levels")

    def __init__(self, held: Elements, fresh: list[Element], levels: list[Level]) -> None:
        self._held, self.fresh, self.levels = held, fresh, levels
        self.length = len(held.all)

    def elements(self, start: int = 0, end: int | None = None) -> list[Element]:
        """Its elements from one position to another."""
        return self._held.all[start : self.length if end is None else end]

    def unchanged(self, values: list[Any], start: int) -> int:
        """See Elements."""
        return self._held.unchanged(values, start, self.length)

    def know(self) -> None:
        """From now on the elements are known as the objects that they hold."""
        self._held = Elements(self.elements())

    def grown(self, fresh: list[Element], levels: list[Level]) -> ListState:
        """The list with more elements, without a copy of those that it has."""
        held = self._held
        if len(held.all) > self.length:  # another list has grown from this one
            held = Elements(self.elements())
        held.extend(fresh)
        return ListState(held, fresh, levels)


State = Element | ListState


def list_state(elements: list[Element], levels: list[Level]) -> ListState:
    """A list that shares nothing with another."""
    return ListState(Elements(elements), elements, levels)


class Found:
    """A recorded value: where its elements are, and digests of those that were read.

    It becomes a State when it is first compared with. Until then a long list is a few objects for
    the garbage collector, whose full collection takes longer than to read the list.
    """

    __slots__ = ("digests", "levels", "places")

    def __init__(self, places: list[Place], levels: list[Level] | None) -> None:
        self.places, self.levels = places, levels  # no levels: a value that is no list
        self.digests: list[bytes] = []

    def state(self) -> State:
        """To compare with."""
        pairs = zip(self.places, self.digests, strict=True)
        elements = [Element(Address(*place), digest) for place, digest in pairs]
        return elements[0] if self.levels is None else list_state(elements, self.levels)

    def by_records(self) -> Iterator[tuple[set[int], list[Place]]]:
        """The places in order, those in so many records at a time."""
        lsns, places = set[int](), list[Place]()
        for place in self.places:
            if len(lsns) == RECORDS_MAX and place[0] not in lsns:
                yield lsns, places
                lsns, places = set(), []
            lsns.add(place[0])
            places.append(place)
        yield lsns, places


class _Encoded(NamedTuple):
    """A part of a record that is not written yet; ``level`` is None for a value that is no list.

    ``elements``: all, or those that ``grown`` has not.
    """

    part: int | str
    elements: list[Element]
    grown: ListState | None
    levels: list[Level]
    level: Level | None


class Encoder:
    """Encodes the values of one record, part by part.

    ``base``: the states of the checkpoint before it; ``recorded``: what was recorded since.
    """

    def __init__(self, codec: Codec, base: dict[str, State], recorded: list[Recorded]) -> None:
        self._codec, self._base, self._recorded = codec, base, recorded
        self._encoded: list[_Encoded] = []

    def encode(self, part: int | str, channel: str, value: Any) -> Form:
        """The value of a channel, as this part of the record has it."""
        base = self._base.get(channel)
        if type(value) is list and value:
            state = base if isinstance(base, ListState) else None
            if state is not None and 2 * len(value) < state.length:
                state = None  # too little of it can be there
            kept = 0 if state is None else self._kept(value, state)
            return self.list_of(part, self._others(value, state, kept), kept, state)
        if isinstance(base, ListState):
            base = None
        return self.whole(part, self._element(value, base))

    def whole(self, part: int | str, element: Element) -> Form:
        """A value that is not taken apart."""
        address, stored = element.address, element.stored
        self._encoded.append(_Encoded(part, [element], None, [], None))
        if address is not None:
            return list(address if address.id else address[:3])
        assert stored is not None
        return [*stored, element.new_id] if element.new_id else stored

    def list_of(
        self, part: int | str, others: list[Element], kept: int, base: ListState | None
    ) -> Form:
        """A list: the first ``kept`` elements of ``base``, and then these."""
        form: dict[str, Any] = {}
        levels: list[Level] = []
        steps = hops = 0
        grown = base if base is not None and kept == base.length else None
        if grown is not None:
            steps = grown.levels[-1].steps + 1
            levels = [level for level in grown.levels if level.steps <= steps & (steps - 1)]
            below = levels[-1]
            hops, form["b"] = below.hops + 1, [below.lsn, below.part]
            pieces = [[0, below.length], *_pieces(grown.elements(below.length) + others)]
        else:
            elements = others if base is None else base.elements(0, kept) + others
            if base is not None and base.levels[-1].hops < HOPS_MAX:
                below = base.levels[-1]
                hops, form["b"] = below.hops + 1, [below.lsn, below.part]
                pieces = _ranges(elements, base.elements())
            else:
                pieces = _pieces(elements)
        form |= {"k": steps, "h": hops, "p": pieces}
        fresh = [element.stored for element in others if element.address is None]
        if fresh:
            form["n"] = fresh
        length = kept + len(others)
        made = others if grown is not None else elements
        self._encoded.append(
            _Encoded(part, made, grown, levels, Level(steps, 0, part, length, hops))
        )
        return form

    def written(self, lsn: int) -> list[State]:
        """The states of the parts in order, once the record has this LSN."""
        states: list[State] = []
        for part, elements, grown, levels, level in self._encoded:
            fresh = [element for element in elements if element.address is None]
            for at, element in enumerate(fresh):
                place = -1 if level is None else at
                element.address = Address(lsn, part, place, element.new_id)
                element.stored = None
            if level is None:
                states.append(elements[0])
                continue
            levels.append(level._replace(lsn=lsn))
            if grown is None:
                states.append(list_state(elements, levels))
            else:
                states.append(grown.grown(elements, levels))
        return states

    def _kept(self, values: list[Any], base: ListState) -> int:
        """How many elements of ``base`` the list begins with."""
        end = min(len(values), base.length)
        kept, known = base.unchanged(values, 0), True
        before = [] if kept == end else base.elements()
        while kept < end and self._has_bytes(values[kept], before[kept]):
            known = before[kept].structure is None and known
            kept = base.unchanged(values, kept + 1)
        if not known:
            base.know()
        return kept

    def _others(self, values: list[Any], base: ListState | None, kept: int) -> list[Element]:
        """The elements of the values from there on."""
        others = None
        if base is not None and kept < min(base.length, len(values)):
            others = Recorded(base.elements(kept))
        return [self._element(value, None, others) for value in values[kept:]]

    # Invariant: an object is looked at before its bytes are made. The graph may change it
    # meanwhile, in another thread; it is then not what its element has held.

    def _has_bytes(self, value: Any, element: Element) -> bool:
        """Whether these are the element's bytes; it then holds the value."""
        if not element.digest:
            return False
        seen = Element(None).hold(value)
        if digest_of(self._codec.plain(value)) != element.digest:
            return False
        element.hold_as(seen)
        return True

    def _element(
        self, value: Any, before: Element | None, others: Recorded | None = None
    ) -> Element:
        known = [*self._recorded, others] if others is not None else self._recorded
        if before is not None and before.is_unchanged(value):
            return before
        for recorded in known:
            if found := recorded.same(value):
                return found
        made = Element(None).hold(value)
        typed = self._codec.plain(value)
        made.digest = digest = digest_of(typed)
        if before is not None and before.digest == digest:
            return before
        if len(typed[1]) > SMALL or others is not None:
            for recorded in known:
                if found := recorded.equal(digest):
                    return found
        made.stored = self._codec.sealed(typed)
        return made


def _ranges(elements: list[Element], base: list[Element]) -> list[list[Any]]:
    """Pieces of a list that shares elements with the list before it."""
    places = {id(element): at for at, element in enumerate(base)}
    pieces: list[list[Any]] = []
    others: list[Element] = []
    fresh = 0
    for element in [*elements, None]:
        at = None if element is None else places.get(id(element))
        if element is not None and at is None:
            others.append(element)
            continue
        if others:
            pieces += _pieces(others, fresh)
            fresh += sum(other.address is None for other in others)
            others = []
        if at is None:
            break
        if pieces and len(pieces[-1]) == 2 and sum(pieces[-1]) == at:
            pieces[-1][1] += 1
        else:
            pieces.append([at, 1])
    return pieces


def _pieces(elements: list[Element], fresh: int = 0) -> list[list[Any]]:
    """Pieces by addresses; those of new elements count from ``fresh``."""
    pieces: list[list[Any]] = []
    for element in elements:
        if element.address is None:
            address = Address(0, "", fresh, element.new_id)
            fresh += 1
        else:
            address = element.address
        if address.id:
            pieces.append([*address[:3], 1, address.id])
        elif pieces and _continues(pieces[-1], address):
            pieces[-1][3] += 1
        else:
            pieces.append([*address[:3], 1])
    return pieces


def _continues(piece: list[Any], address: Address) -> bool:
    lsn, part, at, _ = address
    return (
        len(piece) == 4
        and piece[:2] == [lsn, part]
        and at > 0
        and piece[2] >= 0
        and piece[2] + piece[3] == at
    )


def is_list(form: Form) -> bool:
    """Whether it encodes a list by its elements."""
    return type(form) is dict


def address_of(form: Form, lsn: int, part: int | str) -> Address:
    """Where a value is that is not taken apart."""
    if type(form[0]) is int:
        return Address(*form)
    return Address(lsn, part, -1, *form[2:])


def resolve(lsn: int, part: int | str, form_of: FormOf) -> tuple[list[Place], list[Level]]:
    """Where the elements of a recorded list are, and the lists that are its beginning."""
    chain = [(lsn, part, form_of(lsn, part))]
    while (base := chain[-1][2].get("b")) is not None:
        chain.append((base[0], base[1], form_of(base[0], base[1])))
    places: list[Place] = []
    levels: list[Level] = []
    for lsn, part, form in reversed(chain):
        below, places = places, []
        for piece in form["p"]:
            if len(piece) == 2:
                places += below[piece[0] : piece[0] + piece[1]]
            else:
                where, of, at, count, *more = piece
                if where == 0:
                    where, of = lsn, part
                new_id = more[0] if more else ""
                places += [(where, of, i, new_id) for i in range(at, at + count)]
        if not form["k"]:
            levels = []
        levels.append(Level(form["k"], lsn, part, len(places), form["h"]))
    return places, levels


def stored_at(place: Place, form_of: FormOf) -> Stored:
    """What is stored at a place."""
    lsn, part, at, _ = place
    form = form_of(lsn, part)
    stored: Stored = form[:2] if at < 0 else form["n"][at]
    return stored
