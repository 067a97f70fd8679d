"""Digests what an agent function does, to see whether its code has changed.

The digest covers the function and the user's own functions that it refers to by name: helpers,
tools, nodes, and constants in capital letters. It does not cover comments, line numbers, installed
packages, and references that exist only when the code runs.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterator
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import xxhash

from recovery.journal.user_code import is_the_users
from recovery.text import written
from recovery.values.declared_types import closure_of

FUNCTIONS_MAX = 2000  # that are examined
_CONSTANTS = (str, bytes, int, float, bool, tuple, frozenset, type(None))

_CALL = "__call__"
_known: WeakKeyDictionary[FunctionType, str] = WeakKeyDictionary()


def digest_of(agent_fn: Any) -> str:
    """16 hex digits for the code of an agent function; "" where there is no code."""
    made_of = getattr(getattr(agent_fn, "__self__", None), "made_of", None)
    if made_of is not None:  # a graph: its functions are nodes
        text, functions = made_of()
        return _digest(functions, text)
    first = next(functions_of(agent_fn), None)
    if first is None or not is_the_users(first.__code__.co_filename):
        return ""
    if first not in _known:
        _known[first] = _digest([agent_fn])
    return _known[first]


def _digest(functions: list[Any], text: str = "") -> str:
    hasher = xxhash.xxh3_64(text.encode("utf-8", "surrogatepass"))
    for part in sorted({part for function in reached(*functions) for part in _parts(function)}):
        hasher.update(part.encode("utf-8", "surrogatepass"))
    return str(hasher.hexdigest())


def reached(*first: Any) -> Iterator[FunctionType]:
    """The user's functions that these functions refer to, themselves first."""
    seen: set[CodeType] = set()
    to_see = deque(one for function in first for one in functions_of(function))
    while to_see and len(seen) < FUNCTIONS_MAX:
        function = to_see.popleft()
        if function.__code__ in seen or not is_the_users(function.__code__.co_filename):
            continue
        seen.add(function.__code__)
        yield function
        for _, value in named_in(function):
            to_see.extend(functions_of(value))


def functions_of(value: Any) -> Iterator[FunctionType]:
    """The functions in a value: a partial, a tool, a method, a class. Of a decorated function, the
    inner one first."""
    if isinstance(value, functools.partial):
        yield from functions_of(value.func)
    elif isinstance(value, MethodType | staticmethod | classmethod):
        yield from functions_of(value.__func__)
    elif isinstance(value, FunctionType):
        inner = getattr(value, "__wrapped__", None)
        if inner is not None:
            yield from functions_of(inner)
        if inner is None or is_the_users(value.__code__.co_filename):
            yield value
    elif isinstance(value, type):
        for one in vars(value).values():
            if isinstance(one, FunctionType | staticmethod | classmethod):
                yield from functions_of(one)
    elif not isinstance(value, ModuleType):
        called = getattr(type(value), _CALL, None)
        if isinstance(called, FunctionType):
            yield called


def named_in(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The objects that a function refers to by name: in its module, and in functions around it."""
    for code in codes_in(function.__code__):
        for name in code.co_names:
            if name in function.__globals__:
                yield name, function.__globals__[name]
    yield from closure_of(function)


def codes_in(code: CodeType) -> Iterator[CodeType]:
    """A function's code, and that of all functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes_in(constant)


def _parts(function: FunctionType) -> Iterator[str]:
    """The actions of a function, as text."""
    for code in codes_in(function.__code__):
        constants = [_plain(one) for one in code.co_consts if not isinstance(one, CodeType)]
        names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        yield repr((code.co_name, code.co_code, constants, names, code.co_exceptiontable))
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    yield repr((function.__name__, [_plain(one) for one in defaults]))
    for name, value in named_in(function):
        if name.isupper() and isinstance(value, _CONSTANTS):
            yield repr((name, _plain(value)))


def _plain(value: Any) -> str:
    if isinstance(value, frozenset):  # its order differs between processes
        return repr(sorted(map(written, value)))
    return written(value) if isinstance(value, _CONSTANTS) else type(value).__qualname__
