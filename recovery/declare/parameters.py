"""Decides which arguments of a function are the same, by its parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import MethodType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from eventlog import RefusedValueError
from recovery.values.pack import pack

if TYPE_CHECKING:
    from recovery.journal.call import Arguments


class Form:
    """The parameters of a function. Keeps their defaults, and no other object of the function."""

    __slots__ = (
        "alone",
        "by_name",
        "defaults",
        "exact",
        "has_call_id",
        "is_simple",
        "names",
        "needed",
        "others",
        "positional",
        "required",
        "rest",
        "signature",
    )

    def __init__(self, signature: inspect.Signature | None) -> None:
        self.signature = signature
        kinds = inspect.Parameter
        parameters = list(signature.parameters.values()) if signature is not None else []
        given = [p for p in parameters if p.kind <= kinds.POSITIONAL_OR_KEYWORD]
        needed = [p for p in parameters if p.default is p.empty]
        alone = signature is not None and all(p in given for p in needed)
        # So many positional arguments are the same as bind() would return, which is slow.
        self.alone = range(len(needed), len(given) + 1) if alone else range(0)
        self.defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        self.exact = len(needed) if alone else -1  # this number, when all parameters are required
        self.required = sum(p in needed for p in given)
        self.positional = [p.name for p in given]
        self.by_name = [p.name for p in parameters if p.kind is kinds.KEYWORD_ONLY]
        self.rest = next((p.name for p in parameters if p.kind is kinds.VAR_POSITIONAL), "")
        self.others = next((p.name for p in parameters if p.kind is kinds.VAR_KEYWORD), "")
        named = {
            p.name
            for p in parameters
            if p.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)
        }
        self.has_call_id = "call_id" in named
        self.names, self.needed = named, [p.name for p in needed]
        self.is_simple = signature is not None and len(named) == len(parameters)

    def arguments(self, given: Arguments) -> dict[str, Any] | None:
        """The arguments by parameter; None where they do not fit, as in a call that is about to
        fail."""
        args, kwargs = given
        if self.is_simple and len(args) <= len(self.positional):
            found = dict(zip(self.positional, args, strict=False))
            if kwargs.keys() <= self.names and not kwargs.keys() & found.keys():
                found.update(kwargs)
                return found if all(name in found for name in self.needed) else None
            return None
        try:
            assert self.signature is not None
            return self.signature.bind(*args, **kwargs).arguments
        except (AssertionError, TypeError):  # no signature
            return None

    def bound(self, given: Arguments) -> Arguments:
        """Arguments in a normal form, so that giving them by position or by name is the same."""
        args, kwargs = given
        if not kwargs and len(args) in self.alone:
            return given
        arguments = self.arguments(given)
        if arguments is None:
            return given
        if not self.is_simple:
            assert self.signature is not None
            bound = inspect.BoundArguments(self.signature, arguments)
            return bound.args, bound.kwargs
        found = []
        for name in self.positional:
            if name not in arguments:
                break
            found.append(arguments.pop(name))
        return tuple(found), arguments

    def distinct(self, given: Arguments) -> Arguments:
        """The part of ``bound`` arguments that identifies a call: without those equal to a default.

        Arguments of parameters without a default are by position, also keyword-only ones. Arguments
        of the others are by name. So the identity stays when a parameter becomes keyword-only, or
        when one with a default is added.
        """
        args, kwargs = given
        if not kwargs and (not self.defaults or len(args) <= self.required):
            return given
        arguments = self.arguments(given)
        if arguments is None:
            return given
        rest, others = arguments.pop(self.rest, ()), arguments.pop(self.others, {})
        in_place = self.positional if rest else self.needed
        found = [arguments.pop(name) for name in in_place if name in arguments]
        named = {
            name: value
            for name, value in arguments.items()
            if name not in self.defaults or not equals(value, self.defaults[name])
        }
        if len(found) == len(args) and not rest and named.keys() | others == kwargs.keys():
            return given
        return (*found, *rest), {**named, **others}

    def refitted(self, given: Arguments) -> Arguments:
        """Recorded arguments, after parameters have become keyword-only. Unchanged if there are
        more of them than parameters: then they are another function's."""
        (args, kwargs), count = given, len(self.positional)
        named = dict(zip(self.by_name, args[count:], strict=False))
        if self.rest or len(args) <= count or len(args) > count + len(named):
            return given
        return args[:count], {**named, **kwargs}

    def with_call_id(self, given: Arguments, call_id: str) -> tuple[Arguments, str]:
        """For a function with a parameter of this name: its argument is the call's id as well, and
        the other way round."""
        args, kwargs = given
        at = self.positional.index("call_id") if "call_id" in self.positional else len(args)
        told = args[at] if at < len(args) else kwargs.get("call_id")
        if call_id and told is None:
            return (args, {**kwargs, "call_id": call_id}), call_id
        return given, call_id or (told if isinstance(told, str) else "")


# By function, weakly; a bound method, which is made again at each access, by the method's function.
_forms: WeakKeyDictionary[Any, Form] = WeakKeyDictionary()
_of_methods: WeakKeyDictionary[Any, Form] = WeakKeyDictionary()


def form_of(function: Callable[..., Any]) -> Form:
    """The parameters of a function, inspected once while the function exists."""
    forms, key = _forms, function
    if type(function) is MethodType:
        forms, key = _of_methods, function.__func__
    try:
        form = forms.get(key)
        if form is None:
            form = forms[key] = _read(function)
    except TypeError:  # an object that cannot be a key
        return _read(function)
    return form


def _read(function: Callable[..., Any]) -> Form:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # no signature
        return Form(None)
    # Annotations could keep the function alive.
    bare = [one.replace(annotation=one.empty) for one in signature.parameters.values()]
    return Form(inspect.Signature(bare))


def equals(value: Any, default: Any) -> bool:
    """Whether two values are recorded as the same bytes: NaN is NaN, and no __eq__ is called."""
    if value is default:
        return True
    kind = type(default)
    if kind in (str, int, bool, bytes, type(None)):
        return type(value) is kind and bool(value == default)
    try:
        return pack(value, "") == pack(default, "")
    except RefusedValueError:
        return False
