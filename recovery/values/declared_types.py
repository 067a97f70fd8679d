"""Finds the types that the user's code names, so that values of them need no registration.

A type is known once the tool or the agent function whose code names it is declared in this process:
in an annotation, or anywhere in its body. Code is read, never run, and nothing is imported. The
search begins when a value or a record has an unknown type.
"""

from __future__ import annotations

import enum
import functools
import re
import sys
import threading
import types
import typing
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import is_dataclass, replace
from types import FunctionType
from typing import Any

from recovery.values import codec as coded_module
from recovery.values.codec import BY_NAME, BY_TYPE
from recovery.values.type_names import subclasses, type_name

FUNCTIONS_MAX = 5000  # whose code is read for one search
ITEMS_MAX = 1000  # of a list or dict that the code names
_WORDS = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_lock = threading.RLock()
_pending: dict[int, weakref.ref[Any]] = {}
_known: dict[str, type] = {}  # by their recorded names


def declare(function: Callable[..., Any]) -> None:
    """Make the types that a tool or an agent function names known, from the next search on."""
    target = _function_of(function)
    # A function made from another one, such as a bound method, is garbage-collected soon.
    kept = target if target is not None else type(function)
    _pending[id(kept)] = weakref.ref(kept)


def _find(wanted: type | str) -> None:
    """Add the codec of this type, or of the type with this recorded name, if the user's code names
    it or a base class of it."""
    with _lock:
        pending, before = list(_pending.items()), len(_known)
        for key, ref in pending:
            _pending.pop(key, None)
            found = ref()
            if found is not None and not _Search(found).run():
                _pending[key] = ref  # an annotation names a class that does not exist yet
        if isinstance(wanted, type):
            if wanted not in BY_TYPE and any(
                _known.get(type_name(one)) is one for one in wanted.__mro__
            ):
                _add(wanted)
        elif wanted not in BY_NAME and len(_known) >= before:
            named = tuple(_known.values())
            for one in (*named, *subclasses(named)):
                if type_name(one) == wanted:
                    _add(one)


def _add(kind: type) -> None:
    """Make values of a type recorded under its module and name."""
    from recovery.values.registered import NAME_SIZE_MAX, codec_for  # noqa: PLC0415 - only where needed

    name = type_name(kind)
    known = BY_NAME.get(name)
    if kind in BY_TYPE or len(name) > NAME_SIZE_MAX or (known is not None and not known.declared):
        return
    try:
        codec = codec_for(kind, name)
    except Exception:  # it has more state than its fields, or is an unusual class
        return
    if codec is not None:
        # By name first: what is written must be readable.
        BY_NAME[name] = BY_TYPE[kind] = replace(codec, declared=True)
        _known[name] = kind


def _function_of(what: Any) -> types.FunctionType | None:
    """The function behind partials, methods, decorators and objects that can be called."""
    for _ in range(100):
        if isinstance(what, functools.partial):
            what = what.func
        elif isinstance(what, types.MethodType | staticmethod | classmethod):
            what = what.__func__
        elif isinstance(what, property):
            what = what.fget
        elif isinstance(what, types.FunctionType):
            inner = what.__dict__.get("__wrapped__")
            if inner is None:
                return what
            what = inner
        else:
            call = vars(type(what)).get("__call__") if not isinstance(what, type) else None
            if not isinstance(call, types.FunctionType):
                return None
            what = call
    return None


class _Search:
    """Reads the code of a function, and of the functions that this names."""

    def __init__(self, start: Any) -> None:
        self._todo: list[types.FunctionType] = []
        self._seen: set[int] = set()
        self._types: set[int] = set()
        self._is_whole = True
        self._take(start, frozenset())

    def run(self) -> bool:
        """Add all types; whether every annotation could be read."""
        for _ in range(FUNCTIONS_MAX):
            if not self._todo:
                break
            self._read(self._todo.pop())
        return self._is_whole

    def _read(self, function: types.FunctionType) -> None:
        closure = dict(closure_of(function))
        for hint in self._hints(function, function.__globals__, closure):
            self._annotation(hint)
        names: set[str] = set()
        for code in _codes(function.__code__):
            names.update(code.co_names)
            if code is not function.__code__:
                # Annotations of the functions inside it, where they are kept as text.
                names.update(
                    word
                    for text in _texts(code, function.__code__)
                    for word in _WORDS.findall(text)
                )
        known = {
            **{name: function.__globals__[name] for name in names if name in function.__globals__},
            **closure,
        }
        for found in known.values():
            self._take(found, frozenset(names))

    def _take(self, found: Any, names: frozenset[str]) -> None:
        """Add the types that the code names; ``names``: all names in it, to find attributes."""
        with suppress(Exception):  # an object that refuses inspection names no type
            self._look_at(found, names)

    def _look_at(self, found: Any, names: frozenset[str]) -> None:
        if isinstance(found, types.ModuleType):
            if _is_users(found.__name__):
                held = object.__getattribute__(found, "__dict__")
                for name in names & held.keys():
                    if not isinstance(held[name], types.ModuleType):
                        self._take(held[name], names)
            return
        if isinstance(found, dict | list | tuple | set | frozenset):
            items = list(found.values() if isinstance(found, dict) else found)[:ITEMS_MAX]
            for one in items:
                if callable(one):
                    self._take_callable(one, names)
            return
        self._take_callable(found, names)

    def _take_callable(self, found: Any, names: frozenset[str]) -> None:
        if isinstance(found, functools.partial):
            for one in (*found.args, *found.keywords.values()):
                if not isinstance(one, functools.partial):
                    self._take_callable(one, names)
        function = _function_of(found)
        if function is not None:
            self._queue(function)
            return
        kind = found if isinstance(found, type) else type(found)
        if isinstance(found, type) or not isinstance(found, types.BuiltinFunctionType):
            self._annotation(found if isinstance(found, type) else None)
            if _is_users(kind.__module__):
                for one in kind.__mro__:
                    for name in names & vars(one).keys():
                        method = _function_of(vars(one)[name])
                        if method is not None:
                            self._queue(method)

    def _queue(self, function: types.FunctionType) -> None:
        if id(function) not in self._seen and _is_users(function.__module__ or ""):
            self._seen.add(id(function))
            self._todo.append(function)

    # -- annotations

    def _hints(self, holder: Any, names: dict[str, Any], local: dict[str, Any]) -> list[Any]:
        try:
            return list(typing.get_type_hints(holder, names, local).values())
        except Exception:  # a text annotation that names a missing class, or no type
            pass
        hints: list[Any] = []
        for name, hint in getattr(holder, "__annotations__", {}).items():
            alone: Any = types.SimpleNamespace(__annotations__={name: hint})
            try:
                hints += typing.get_type_hints(alone, names, local).values()
            except Exception:
                self._is_whole = False
        return hints

    def _annotation(self, hint: Any) -> None:
        """Add the types in an annotation, and those in their fields."""
        todo = [hint]
        while todo:
            one = todo.pop()
            if id(one) in self._types:
                continue
            self._types.add(id(one))
            value = getattr(one, "__value__", None) or getattr(one, "__supertype__", None)
            if value is not None and not isinstance(one, type):  # `type X = ...`, NewType
                todo.append(value)
            todo += typing.get_args(one)
            origin = typing.get_origin(one)
            if origin is not None:
                todo.append(origin)
            elif isinstance(one, typing.TypeVar):
                todo += [part for part in (one.__bound__, *one.__constraints__) if part]
            elif isinstance(one, enum.Enum):  # in a Literal
                todo.append(type(one))
            elif isinstance(one, type) and not isinstance(one, types.GenericAlias):
                todo += self._class(one)

    def _class(self, kind: type) -> list[Any]:
        """Add a class; returns its fields."""
        if kind.__module__.partition(".")[0] in ("builtins", "recovery", "eventlog", "typing"):
            return []
        is_typed_dict = typing.is_typeddict(kind)
        model = getattr(kind, "__pydantic_fields__", None)
        if not is_typed_dict:
            _add(kind)
            if kind not in BY_TYPE:
                return []
        if isinstance(model, dict):
            generic = getattr(kind, "__pydantic_generic_metadata__", {})
            return [*(one.annotation for one in model.values()), *generic.get("args", ())]
        has_fields = is_typed_dict or is_dataclass(kind) or hasattr(kind, "_fields")
        module = sys.modules.get(kind.__module__)
        names = vars(module) if module is not None else {}
        return self._hints(kind, names, {}) if has_fields else []


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    todo = [code]
    while todo:
        one = todo.pop()
        yield one
        todo += [part for part in one.co_consts if isinstance(part, types.CodeType)]


def _texts(code: types.CodeType, outer: types.CodeType) -> Iterator[str]:
    for held in (*code.co_consts, *outer.co_consts):
        for part in held if isinstance(held, tuple) else (held,):
            if isinstance(part, str) and len(part) < 200:
                yield part


def _is_users(module: str) -> bool:
    """Whether the code of a module is read: neither the standard library nor an installed package,
    because they do not name the user's types."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or top in ("recovery", "eventlog"):
        return top == "__main__"
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return "site-packages" not in file and "dist-packages" not in file


coded_module.FINDERS.append(_find)


def closure_of(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The variables of the functions around a function that it uses, and that have a value."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not assigned yet
            continue
