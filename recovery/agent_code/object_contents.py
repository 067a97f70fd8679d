"""Summarizes the content of an object, so that a change in place is noticed later.

It covers only objects that are cheap to read without running the user's code: lists, dicts, sets
and the like, iterators and generators by their position, queues, random generators, and the
attributes of objects of the user's classes. Other objects, such as a client of a package, are not
covered.
"""

from __future__ import annotations

import gc
import itertools
import operator
import sys
from collections import deque
from collections.abc import Container, Iterable, Iterator
from contextlib import suppress
from functools import cached_property
from itertools import islice
from types import AsyncGeneratorType, GeneratorType, MemberDescriptorType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from recovery.journal.user_code import is_the_users

ELEMENTS_MAX, PARTS_MAX, DEPTH_MAX, INSIDE_MAX = 100, 50, 4, 100_000
OPAQUE = object()  # stands for an element whose content is unknown
_PART = object()  # for an element that is a part of its own
_GONE = object()
_SCALARS = frozenset({int, float, complex, bool, str, bytes, type(None)})
_LISTS = (list, tuple, deque)
_CONTAINERS = (*_LISTS, dict, set, bytearray)
# By name, so that none of these modules is imported for this.
_RANDOM, _CSV = ("random", "Random"), (("_csv", "reader"), ("csv", "DictReader"))
_STATES = (_RANDOM, *_CSV, ("_io", "StringIO"), ("_io", "BytesIO"))
_QUEUES = ("queue", "_queue", "asyncio.queues")
_PLAIN_BASES = ("builtins", "typing", "abc", "collections", "collections.abc", "enum", "pydantic")
_ITERABLES: list[Any] = [
    [],
    (),
    "",
    "é",
    b"",
    bytearray(),
    set(),
    range(1),
    range(1 << 99),
    {},
    {}.values(),
    {}.items(),
    deque(),
    reversed([]),
    reversed({}),
    reversed(deque()),
]
_ITERATORS = frozenset(
    {type(iter(one)) for one in _ITERABLES}
    | {one for one in vars(itertools).values() if isinstance(one, type)}
    | {enumerate, zip, map, filter, reversed}
)
_NUMBERED = (itertools.count, itertools.repeat)  # whose repr has their position
_known: WeakKeyDictionary[type, bool] = WeakKeyDictionary()  # whether objects of a class are plain

Path = tuple[Any, ...]


class Part(NamedTuple):
    """A mutable object, and its direct content."""

    value: Any
    content: Any


def contents_of(value: Any) -> dict[Path, Part]:
    """The mutable parts of a value, by their path in it: ``()`` is the value itself."""
    parts: dict[Path, Part] = {}
    try:
        _walk(value, (), parts)
    except Exception:  # another thread changes it now, or it is an unusual object: not covered
        return {}
    return parts


def changed(before: dict[Path, Part], now: dict[Path, Part]) -> Iterator[tuple[Path, Any]]:
    """The path of the first change, and the changed object. For an object of the user's class the
    path ends with the attribute."""
    for path, (_, content) in before.items():
        part = now.get(path)
        if part is None or type(content) is not type(part.content):
            continue
        if isinstance(content, dict) and not isinstance(part.value, dict):
            for name in _attributes_changed(content, part):
                yield (*path, name), part.value
        elif _differ(content, part.content):
            yield path, part.value


def ids_inside(values: list[Any]) -> Container[int]:
    """The ids of these objects, and of all objects in them; of too many, None for all."""
    found: set[int] = set()
    to_see = list(values)
    while to_see:
        value = to_see.pop()
        if id(value) in found or type(value) in _SCALARS:
            continue
        if len(found) > INSIDE_MAX:
            return range(sys.maxsize)
        found.add(id(value))
        if isinstance(value, dict):
            to_see += dict.values(value)
        elif isinstance(value, (*_LISTS, set)):
            to_see += value
        elif is_instance(value):
            to_see += _attributes(value).values()
    return found


def _differ(before: Any, now: Any) -> bool:
    if isinstance(now, list):
        return len(before) != len(now) or any(map(_is_other, before, now))
    if isinstance(now, dict):
        return before.keys() != now.keys() or any(
            _is_other(one, now[key]) for key, one in before.items()
        )
    return bool(before != now)


def _attributes_changed(before: dict[str, Any], part: Part) -> list[str]:
    kind, now = type(part.value), part.content
    names = [*dict.fromkeys([*before, *now])]
    return [
        name
        for name in names
        if _is_other(before.get(name, _GONE), now.get(name, _GONE)) and not _is_computed(kind, name)
    ]


def _is_computed(kind: type, name: str) -> bool:
    """Whether an attribute is only a cache."""
    found = next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)
    return isinstance(found, cached_property)


def _is_other(one: Any, other: Any) -> bool:
    """Whether an element has changed. A new connection is no change."""
    return one is not OPAQUE and other is not OPAQUE and one is not other and bool(one != other)


def _walk(value: Any, path: Path, parts: dict[Path, Part]) -> None:
    content, inside = _look(value)
    if content is not None:
        parts[path] = Part(value, content)
    if len(path) < DEPTH_MAX:
        for key, one in inside:
            if len(parts) >= PARTS_MAX:
                return
            if type(one) not in _SCALARS:
                _walk(one, (*path, key), parts)


def _look(value: Any) -> tuple[Any, Iterable[tuple[Any, Any]]]:
    """The direct content of a value, None if unknown; and its elements."""
    kind = type(value)
    if isinstance(value, _CONTAINERS):
        return _look_into(value)
    if kind in _ITERATORS:
        return _position(value), enumerate(_sources(value))
    if kind in (GeneratorType, AsyncGeneratorType):
        frame = value.gi_frame if kind is GeneratorType else value.ag_frame
        return (frame.f_lasti if frame is not None else -1,), enumerate(_sources(value))
    if (kind.__module__, kind.__name__) in _STATES:
        return _state(value), ()
    if kind.__module__ in _QUEUES:
        inner = getattr(value, "queue", None) or getattr(value, "_queue", None)
        return ((value.qsize(),), ()) if inner is None else _look(inner)
    if is_instance(value):
        attributes = _attributes(value)
        return {key: _mark(one) for key, one in attributes.items()}, attributes.items()
    return None, ()


def _look_into(value: Any) -> tuple[Any, Iterable[tuple[Any, Any]]]:
    """The content of a container, by the methods of the builtin class; subclasses may override
    them."""
    if isinstance(value, bytearray):
        return (len(value), bytes(value[:ELEMENTS_MAX])), ()
    if isinstance(value, set):
        some = islice(set.__iter__(value), ELEMENTS_MAX)
        return (set.__len__(value), frozenset(map(_key, some))), ()
    if isinstance(value, dict):
        items = list(islice(dict.items(value), ELEMENTS_MAX))
        content = {_key(key): _mark(one) for key, one in items}
        content[_PART] = dict.__len__(value)
        return content, items
    base: Any = next(one for one in _LISTS if isinstance(value, one))
    elements = list(islice(base.__iter__(value), ELEMENTS_MAX))
    return [base.__len__(value), *map(_mark, elements)], enumerate(elements)


def _mark(value: Any) -> Any:
    """The summary of an element: its value, if that is immutable; else its type, because its
    content is a part of its own."""
    kind = type(value)
    if kind in _SCALARS:
        return value
    known = isinstance(value, _CONTAINERS) or kind in _ITERATORS
    return _PART if known or is_instance(value) else OPAQUE


def _key(value: Any) -> Any:
    return value if type(value) in _SCALARS else id(value)


def _position(value: Any) -> tuple[Any, ...]:
    """The position of an iterator."""
    if isinstance(value, _NUMBERED):
        return (repr(value),)
    if type(value) is itertools.cycle:  # the elements of its first round
        return tuple(len(one) for one in gc.get_referents(value) if type(one) is list)
    return (operator.length_hint(value),) if hasattr(value, "__length_hint__") else ()


def _sources(value: Any) -> Iterator[Any]:
    """The iterators that an iterator or a generator reads from."""
    for one in gc.get_referents(value):
        for source in one if type(one) is tuple else (one,):
            if type(source) in _ITERATORS or type(source) is GeneratorType:
                yield source


def _state(value: Any) -> tuple[Any, ...]:
    name = (type(value).__module__, type(value).__name__)
    if name == _RANDOM:
        return (hash(value.getstate()),)
    if name in _CSV:
        return (value.line_num,)
    return (-1,) if value.closed else (value.tell(), len(value.getvalue()))


def is_instance(value: Any) -> bool:
    """Whether it is an object of the user's class, without foreign state."""
    kind = type(value)
    found = _known.get(kind)
    if found is None:
        is_class = issubclass(kind, type) or kind.__module__ in _PLAIN_BASES
        found = _known[kind] = not is_class and all(map(_is_plain, kind.__mro__))
    return found


def _is_plain(kind: type) -> bool:
    module = kind.__module__
    if module in _PLAIN_BASES or module.partition(".")[0] == "pydantic":
        return True
    file = getattr(sys.modules.get(module), "__file__", None)
    return is_the_users(file) if file is not None else module == "__main__"


def _attributes(value: Any) -> dict[str, Any]:
    """The attributes of an object itself, read without running code of its class."""
    found: dict[str, Any] = {}
    for kind in type(value).__mro__:
        for name, one in vars(kind).items():
            if type(one) is MemberDescriptorType and not name.startswith("__"):
                with suppress(AttributeError):  # not assigned yet
                    found[name] = one.__get__(value)
    with suppress(AttributeError):  # it has only slots
        found.update(object.__getattribute__(value, "__dict__"))
    return dict(islice(found.items(), ELEMENTS_MAX))
