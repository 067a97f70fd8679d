"""Recognises values that are recorded already: by object and structure, else by their bytes.

A list is compared element by element. Most elements are the objects of the step before. A copy of
an element's containers tells whether the object was changed in place; the leaves are shared. That
takes 0.3 us a message, and its bytes 3 us. Not seen is a value that was replaced in place by an
equal one of another type (1 by True).
"""

from __future__ import annotations

from operator import attrgetter, is_
from typing import Any, NamedTuple

from langchain_core.messages import BaseMessage

from recovery.integrations.langgraph.serializer import Stored


class Address(NamedTuple):
    """Where a value is: record, write (its position) or channel (its name), position in the list.

    ``at`` is -1 for a value that is no element of a list. ``id``: the id that the message got after
    it was recorded, "" for none.
    """

    lsn: int
    part: int | str
    at: int = -1
    id: str = ""


_fields, _extra = attrgetter("__dict__"), attrgetter("__pydantic_extra__")


class _UnsafeError(Exception):
    """The value holds something that may change unseen."""


_SHARED = {str, bytes, int, float, bool, type(None)}
_EMPTY: dict[type, Any] = {dict: {}, list: [], tuple: ()}  # most containers of a message are empty


def _copied(value: Any) -> Any:
    kind = type(value)
    if kind in _SHARED:
        return value
    if kind in _EMPTY and not value:
        return _EMPTY[kind]
    if kind is dict:
        copy = {}
        for key, part in value.items():
            if type(key) is not str:
                raise _UnsafeError
            copy[key] = part if type(part) in _SHARED else _copied(part)
        return copy
    if kind is list:
        return [_copied(part) for part in value]
    if kind is tuple:
        return tuple(_copied(part) for part in value)
    raise _UnsafeError


def _are_equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:  # of a value put there since: an array has no truth value
        return False


class Element:
    """A value that is recorded, or about to be.

    ``value``: the object, if this process has it; ``structure`` and ``extra``: copies of what it
    held; ``structure`` is None when only its bytes tell. ``digest``: of its plain bytes.
    ``stored``: what is to be written, until it is, and ``new_id`` the id that belongs to it.
    """

    __slots__ = ("address", "digest", "extra", "kind", "new_id", "stored", "structure", "value")

    def __init__(self, address: Address | None, digest: bytes = b"") -> None:
        self.address, self.digest = address, digest
        self.stored: Stored | None = None
        self.new_id = ""
        self.value: Any = None
        self.kind: type | None = None
        self.structure: Any = None
        self.extra: Any = None

    def hold(self, value: Any) -> Element:
        """Remember the object and its structure."""
        self.value, self.kind = value, type(value)
        try:
            if isinstance(value, BaseMessage):
                if value.__pydantic_private__:
                    raise _UnsafeError
                self.extra = _copied(value.__pydantic_extra__)
                self.structure = _copied(value.__dict__)
            else:
                self.extra, self.structure = None, (_copied(value),)
        except (_UnsafeError, RecursionError):
            self.structure = None
        return self

    def hold_as(self, other: Element) -> None:
        """Hold what another one holds."""
        self.value, self.kind = other.value, other.kind
        self.structure, self.extra = other.structure, other.extra

    def is_unchanged(self, value: Any) -> bool:
        """Whether ``value`` is the object, as it was. False is no proof that it is not."""
        structure = self.structure
        if value is not self.value or structure is None or type(value) is not self.kind:
            return False
        if type(structure) is tuple:
            return _are_equal(structure[0], value)
        return _are_equal(_fields(value), structure) and _are_equal(_extra(value), self.extra)

    def with_id(self, value: Any) -> Element | None:
        """The message with the id that it has got since, when nothing else of it has changed."""
        structure, address = self.structure, self.address
        if (
            value is not self.value
            or type(structure) is not dict
            or structure.get("id") is not None
            or address is None
            or address.id
        ):
            return None
        made = Element(None).hold(value)
        if type(made.structure) is not dict or type(new_id := made.structure.get("id")) is not str:
            return None
        if not _are_equal([made.structure, made.extra], [{**structure, "id": new_id}, self.extra]):
            return None
        made.address = address._replace(id=new_id)
        return made


class Elements:
    """The elements of a list, and what they held, in parallel lists: to compare all at once.

    Lists that only grow share one: each is as many of the first of these as it had.
    """

    __slots__ = ("_are_messages", "_extras", "_objects", "_structures", "all")

    def __init__(self, elements: list[Element]) -> None:
        self.all: list[Element] = []
        self._objects: list[Any] = []
        self._structures: list[Any] = []
        self._extras: list[Any] = []
        self._are_messages = True
        self.extend(elements)

    def extend(self, elements: list[Element]) -> None:
        """More of them."""
        self.all += elements
        for element in elements:
            self._objects.append(element.value)
            self._structures.append(element.structure)
            self._extras.append(element.extra)
            if type(element.structure) is not dict:
                self._are_messages = False  # or not all of them are known as objects

    def unchanged(self, values: list[Any], start: int, count: int) -> int:
        """Where the first value from ``start`` on is that is not its element, as it was; of the
        first ``count``."""
        end = min(len(values), count)
        if start == 0 and end == count and self._are_all_unchanged(values, end):
            return end
        for at in range(start, end):
            if not self.all[at].is_unchanged(values[at]):
                return at
        return end

    def _are_all_unchanged(self, values: list[Any], end: int) -> bool:
        # Without a step of Python for each message.
        if not self._are_messages:
            return False
        objects, structures, extras = self._objects, self._structures, self._extras
        if len(objects) > end:
            objects, structures, extras = objects[:end], structures[:end], extras[:end]
        if not all(map(is_, values, objects)):
            return False
        if len(values) > end:
            values = values[:end]
        fields, extra = list(map(_fields, values)), list(map(_extra, values))
        return _are_equal(fields, structures) and _are_equal(extra, extras)


class Recorded:
    """Elements that a later checkpoint may hold, found by object or by bytes."""

    def __init__(self, elements: list[Element]) -> None:
        self._by_object: dict[int, Element] = {}
        self._by_digest: dict[bytes, Element] = {}
        self.add(elements)

    def add(self, elements: list[Element]) -> None:
        """More of them."""
        for element in elements:
            if element.kind is not None:
                self._by_object[id(element.value)] = element  # which keeps the object alive
            if element.digest:
                self._by_digest[element.digest] = element

    def same(self, value: Any) -> Element | None:
        """The element whose object this is, unchanged or with a new id."""
        element = self._by_object.get(id(value))
        if element is None:
            return None
        return element if element.is_unchanged(value) else element.with_id(value)

    def equal(self, digest: bytes) -> Element | None:
        """The element of these bytes."""
        return self._by_digest.get(digest)
