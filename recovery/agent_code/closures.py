"""Compares what a function has besides its arguments: captured variables, and its object.

None of this is recorded. So two calls with one name and equal arguments are the same call only if
the same code makes them, with the same captured variables, on the same object. This can be checked
within one session of a scope. It is remembered without keeping any object alive.
"""

from __future__ import annotations

from functools import partial
from itertools import zip_longest
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, ref

from eventlog import RefusedValueError
from recovery.text import written
from recovery.values.codec import codec_of
from recovery.values.pack import UNCHANGING, pack
from recovery.values.types import digest

SIZE_MAX = 100  # of texts and containers that are compared by value
DEPTH_MAX = 4  # of functions that capture functions

_CONTAINERS = (list, tuple, dict, set, frozenset)


class Unheld(NamedTuple):
    """A value that is not kept alive: its identity and, where that is known, its content."""

    place: int
    parts: Any


class Origin(NamedTuple):
    """The origin of a call: the code, and by name what it has besides its arguments.

    A value that is compared directly is stored with its type, any other as the result of
    ``_token``.
    """

    code: CodeType | None
    values: dict[str, Any]


# By function, weakly: its origin when it was first called.
_known: WeakKeyDictionary[Any, Origin] = WeakKeyDictionary()


def origin_of(function: Any, beside: dict[str, Any] | None = None) -> CodeType | Origin:
    """The origin of the calls of a function. ``beside``: other objects that it is given, by name.

    Only the code for most functions, which have nothing else.
    """
    if type(function) is FunctionType and not beside:
        if not _captures(function):
            return function.__code__
        known = _known.get(function)
        if known is None:
            known = _known[function] = _origin(function, 0)
        return known
    found = _origin(function, 0)
    found.values.update({name: _token(value, 1) for name, value in (beside or {}).items()})
    return found


def differing(one: CodeType | Origin, other: CodeType | Origin) -> list[str] | None:
    """The names of the differences between two origins; None where they are equal, and empty for
    different code."""
    if one is other:
        return None
    first, second = (
        origin if isinstance(origin, Origin) else Origin(origin, {}) for origin in (one, other)
    )
    if first.code != second.code:
        return []
    names = [*first.values, *(name for name in second.values if name not in first.values)]
    return [
        name
        for name in names
        if not _same(first.values.get(name, _token), second.values.get(name, _token))
    ] or None


def where_of(origin: CodeType | Origin | None) -> str:
    """File and line of the code; "" where it is not Python's."""
    code = origin.code if isinstance(origin, Origin) else origin
    return "" if code is None else f"{code.co_filename}:{code.co_firstlineno}"


def _captures(function: FunctionType) -> bool:
    if function.__closure__ is not None:
        return True
    # The defaults of a function that is made once are part of its code.
    defaults = function.__defaults__ is not None or function.__kwdefaults__ is not None
    return defaults and "<locals>" in function.__qualname__


def _origin(function: Any, depth: int) -> Origin:
    values: dict[str, Any] = {}
    if type(function) is MethodType:
        receiver = function.__self__
        function = function.__func__
        values["self"] = _token(receiver, depth + 1)
    if type(function) is FunctionType:
        code = function.__code__
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
            try:
                values[name] = _token(cell.cell_contents, depth + 1)
            except ValueError:  # no value yet
                values[name] = None
        for name, value in _defaults(function).items():
            values.setdefault(name, _token(value, depth + 1))
        return Origin(code, values)
    if type(function) is BuiltinFunctionType:
        values["function"] = function.__qualname__
        if not isinstance(function.__self__, ModuleType):
            values["self"] = _token(function.__self__, depth + 1)
        return Origin(None, values)
    values["self"] = _token(function, depth + 1)
    return Origin(None, values)


def _defaults(function: FunctionType) -> dict[str, Any]:
    code, values = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount]
    positional = zip(names[len(names) - len(values) :], values, strict=True)
    return {**dict(positional), **(function.__kwdefaults__ or {})}


def _token(value: Any, depth: int = 0) -> Any:
    """What is remembered of a value."""
    kind = type(value)
    if kind in UNCHANGING:
        if kind in (str, bytes) and len(value) > SIZE_MAX:
            return kind, len(value), hash(value)
        return kind, written(value)  # NaN is NaN, and 1 is not True
    if kind in (FunctionType, MethodType):
        return _origin(value, depth) if depth < DEPTH_MAX else getattr(value, "__code__", kind)
    if isinstance(value, type):
        return value.__module__, value.__qualname__  # a class that is defined again is the same
    if kind is partial:
        return tuple(
            _token(part, depth + 1)
            for part in (value.func, *value.args, *value.keywords, *value.keywords.values())
        )
    if kind not in _CONTAINERS and codec_of(kind) is None:
        try:
            return ref(value)
        except TypeError:
            return Unheld(id(value), None)
    return Unheld(id(value), _parts_of(value, depth))


def _parts_of(value: Any, depth: int) -> Any:
    """The digest of a value; of a container that cannot be recorded, its content."""
    is_container = type(value) in _CONTAINERS
    if is_container and len(value) > SIZE_MAX:
        return None
    try:
        return digest(pack(value, ""))
    except RefusedValueError:
        pass
    if not is_container or isinstance(value, set | frozenset) or depth >= DEPTH_MAX:
        return None
    parts = (*value, *value.values()) if isinstance(value, dict) else value
    return tuple(_token(part, depth + 1) for part in parts)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Unheld) and isinstance(other, Unheld):
        if one.place == other.place:
            return True
        return one.parts is not None and _same(one.parts, other.parts)
    if isinstance(one, Origin) and isinstance(other, Origin):
        return differing(one, other) is None
    if type(one) is tuple and type(other) is tuple:
        return all(_same(*pair) for pair in zip_longest(one, other))
    if isinstance(one, ref) or isinstance(other, ref):  # an object has only one
        return one is other
    return bool(one == other)
