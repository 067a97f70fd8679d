"""Computes the identity of a call from its tool and its arguments, for all kinds of calls.

A call is identified by the name of its tool, its call id, and its arguments as the tool's
parameters take them. So these are the same call:

    f(1, b=2) and f(a=1, b=2)          by position or by name
    f(1) and f(1, b=DEFAULT)           what equals a default counts as not given
    partial(f, 1)(2) and f(1, 2)       what a partial binds are arguments
    mail.send(1)                       the object that a method belongs to is no argument
    f(run.messages) and f(list(run.messages))

``@tool(identity=...)`` computes the value that counts instead. Values that a function captures are
not recorded: see agent_code.closures.

The digest is made of the arguments without defaults. The arguments as they were given are recorded,
shown, and handed to the tool. Runs that were begun under the first rules keep their digests.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from eventlog import Packed, RefusedValueError
from recovery.agent_code.closures import Origin, differing, origin_of, where_of
from recovery.declare.parameters import Form, equals, form_of
from recovery.declare.scope import Scope
from recovery.declare.spec import ToolSpec, function_name, spec_to_call
from recovery.engine.call_in_progress import Identified
from recovery.errors import Ambiguity
from recovery.journal.call import Arguments
from recovery.journal.call_key import UNDO_PREFIX, CallKey, number_of
from recovery.journal.messages import digests_of
from recovery.values.frozen import FrozenDict
from recovery.values.pack import pack, pack_arguments
from recovery.values.sealed import (
    KeyIds,
    Sealed,
    SubjectError,
    checked_subject,
    hiding,
    is_forgotten,
)
from recovery.values.type_names import public_name
from recovery.values.types import MessagesDigest, digest

if TYPE_CHECKING:
    from recovery.engine.execution import Execution

LAMBDA = "<lambda>"
KEY = "recovery_key"  # the attribute that distinguishes an object from others of its class


def identify(run: Execution, spec: ToolSpec, given: Arguments, call_id: str) -> Identified:
    """The identity of a call of this run; RefusedValueError for arguments that cannot be
    carried."""
    subjects, around = run.subjects, run.current_scope().calls
    keys = subjects.of_call(around[-1]) if around else subjects.run
    undone = (number_of(call_id) or 0) if spec.name.startswith(UNDO_PREFIX) else 0
    keys = subjects.of_call(undone) or keys
    if keys or spec.subject is not None:
        root = f"an argument of {spec.name}"
        made = hiding(partial(_identified, run, spec, given, call_id), root)
    else:
        made = _identified(run, spec, given, call_id)
    if made.spec.subject is not None:
        named = _subject_of(made)
        if isinstance(named, str) and not subjects.has_key(named):
            forgotten = _forgotten_like(run, made)
            if forgotten is not None:
                return forgotten
        if isinstance(named, str):
            named = run.write_or_stop(subjects.ids_of, named)
        keys = named
    if undone and is_forgotten(keys):  # its arguments are gone
        return _forgotten_like(run, made) or made
    if not keys:
        return made
    subjects.note(made.packed, keys)  # also on replay: the agent has them again
    found = run.write_or_stop(subjects.call_digest, keys, made.digest)
    return made._replace(subject=keys, digest=found)


def _forgotten_like(run: Execution, made: Identified) -> Identified | None:
    """The call as it is recorded for a subject that was forgotten since. Without the key, its
    arguments are not compared; and no new key is made because a run is replayed."""
    place = run.current_scope().path, made.spec.name, made.call_id
    for one in run.replay.unmatched():
        if one.is_forgotten and (one.key.scope, one.key.tool, one.key.call_id) == place:
            return made._replace(subject=one.intent.subject.keys, digest=one.key.digest)
    return None


def _subject_of(made: Identified) -> str | KeyIds:
    """The subject that the tool names for this call; no keys if it names none; the keys of a value
    that is forgotten itself."""
    spec, (args, kwargs) = made.spec, made.given
    if callable(spec.subject):
        method = spec.function if type(spec.function) is MethodType else None
        own = () if method is None else (method.__self__,)
        found: Any = spec.subject(*own, *args, **kwargs)
    else:
        assert spec.subject is not None
        form = form_of(spec.function)
        values = {**form.defaults, **(form.arguments(made.given) or {})}
        found = values.get(spec.subject, values.get(form.others, {}).get(spec.subject))
    if found is None or isinstance(found, Sealed):
        return () if found is None else found.keys
    try:
        return checked_subject(found)
    except SubjectError as exc:
        raise SubjectError(f"subject= of {spec.name}: {exc}. The call was not made") from None


def _identified(run: Execution, spec: ToolSpec, given: Arguments, call_id: str) -> Identified:
    if run.rules < 2:
        return _under_first_rules(run, run.settings.adapted(spec), given, call_id)
    if spec.owner or isinstance(spec.function, partial):
        spec, given = plainly(spec, given)
    spec = run.settings.adapted(spec)
    if spec.waits:
        return _built_in(spec, given, call_id)
    form, function = form_of(spec.function), spec.acts or spec.function
    if form.has_call_id:
        given, call_id = form.with_call_id(given, call_id)
    args, kwargs = shown = given
    if (
        type(function) is FunctionType
        and not kwargs
        and len(args) == form.exact
        and not spec.redact
        and spec.identity is None
        and list not in map(type, args)
        and not spec.bound
    ):  # as of most calls: what is given is what is recorded, and tells them apart
        packed = pack_arguments(args, kwargs, f"{spec.name}(...)")
        origin = origin_of(function)
        return Identified(spec, given, given, packed, digest(packed), call_id, origin)
    shown = form.bound(given)
    if spec.redact:
        shown = run.secrets.hide(spec, shown)
    beside: dict[str, Any] = {}
    try:
        packed = pack_arguments(*shown, f"{spec.name}(...)")
    except RefusedValueError:
        shown, beside = _stood_in(spec, shown)
        packed = pack_arguments(*shown, f"{spec.name}(...)")
    distinguishing, unkeyed = _distinguishing(spec, form, shown)
    made = _digest(spec, form, shown, packed, distinguishing)
    if distinguishing:
        shown = shown[0], {**shown[1], **distinguishing}
        packed = pack_arguments(*shown, f"{spec.name}(...)")
    # A function that says what identifies calls says all of it: what is captured does not count.
    is_said = callable(spec.identity) and type(function) is FunctionType
    origin = function.__code__ if is_said else origin_of(function, beside)
    if distinguishing and isinstance(origin, Origin):
        origin.values.pop("self", None)
    unkeyed = unkeyed or next(map(_class_of, beside.values()), "")
    return Identified(spec, given, shown, packed, made, call_id, origin, distinguishing, unkeyed)


def _built_in(spec: ToolSpec, given: Arguments, call_id: str) -> Identified:
    """The identity of a call of the library's own tools, whose functions take run and call."""
    origin = None
    if spec.acts is not None:  # of a child run: the task of its agent function
        agent, bound, beside = _bound_by(spec.acts)
        given, origin = (given[0], {**given[1], **bound}), origin_of(agent, beside)
        if "self" in bound and isinstance(origin, Origin):
            origin.values.pop("self", None)
    packed = pack_arguments(*given, f"{spec.name}(...)")
    known = packed
    if spec.identified_by is not None:
        known = pack_arguments(given[0][: spec.identified_by], {}, spec.name)
    return Identified(spec, given, given, packed, digest(known), call_id, origin)


def _bound_by(function: Callable[..., Any]) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """A function without its partials; the arguments that these bind, by parameter; and those of
    them that are not carried."""
    spec, (args, kwargs) = plainly(ToolSpec(function_name(function), function), ((), {}))
    form, values = form_of(spec.function), {"args": args, **kwargs} if args else kwargs
    if form.signature is not None:
        values = dict(form.signature.bind_partial(*args, **kwargs).arguments)
    defaults = form.defaults
    values = {
        name: value
        for name, value in values.items()
        if not (name in defaults and equals(value, defaults[name]))
    }
    (_, shown), beside = _stood_in(spec, ((), values))
    distinguishing, _ = _distinguishing(spec, form, ((), {}))
    return spec.function, {**shown, **distinguishing}, beside


def _under_first_rules(
    run: Execution, spec: ToolSpec, given: Arguments, call_id: str
) -> Identified:
    if spec.waits:
        return _built_in(replace(spec, acts=None), given, call_id)
    shown = run.secrets.hide(spec, given) if spec.redact else given
    with suppress(TypeError):  # one that has no hash was called with what it was given
        hash(spec.function)
        shown = form_of(spec.function).bound(shown)
    packed = pack_arguments(*shown, f"{spec.name}(...)")
    return Identified(spec, given, shown, packed, digest(packed), call_id)


def _digest(
    spec: ToolSpec, form: Form, shown: Arguments, packed: Packed, distinguishing: Mapping[str, Any]
) -> bytes:
    """The digest of the values that distinguish calls of the tool."""
    name = f"{spec.name}(...)"
    if spec.identity is not None:
        value = _chosen(spec, form, shown)
        if not spec.needs_approval:
            return digest(
                pack_arguments((value,), dict(distinguishing), f"identity of {spec.name}")
            )
        distinguishing = {**distinguishing, "identity": value}  # an approval covers all arguments
    args, kwargs = form.distinct(shown)
    if any(map(_is_conversation, (*args, *kwargs.values()))):
        args = tuple(map(_by_content, args))
        kwargs = {key: _by_content(value) for key, value in kwargs.items()}
    elif args is shown[0] and not distinguishing:
        return digest(packed)
    return digest(pack_arguments(args, {**kwargs, **distinguishing}, name))


def digest_now(run: Execution, call: Identified, recorded: Arguments) -> bytes | None:
    """The digest that a call with these recorded arguments would have now; None if it has none."""
    if call.spec.waits:
        return None
    spec, form = call.spec, form_of(call.spec.function)
    try:
        shown, distinguishing = _of_now(run, call, form, recorded)
        found = _digest(spec, form, shown, pack_arguments(*shown, spec.name), distinguishing)
        return run.subjects.call_digest(call.subject, found) if call.subject else found
    except Exception:  # the identity= of today, given arguments of an older version
        return None


def compared(run: Execution, call: Identified, recorded: Arguments) -> Arguments:
    """What of recorded arguments is compared with this call: all, or what ``identity=`` says of
    them, by its names."""
    spec, form = call.spec, form_of(call.spec.function)
    if spec.identity is None or spec.waits:
        return recorded
    try:
        value = _chosen(spec, form, _of_now(run, call, form, recorded)[0])
    except Exception:  # as above
        return recorded
    if callable(spec.identity):
        return (), {"identity": value}
    return (), dict(zip(spec.identity, value, strict=True))


def _of_now(
    run: Execution, call: Identified, form: Form, recorded: Arguments
) -> tuple[Arguments, dict[str, Any]]:
    """Recorded arguments, for the function of now; and what is recorded of its object."""
    args, kwargs = recorded
    distinguishing = {name: kwargs[name] for name in call.distinguishing if name in kwargs}
    kwargs = {name: value for name, value in kwargs.items() if name not in distinguishing}
    shown = form.bound(form.refitted((args, kwargs)))
    return (run.secrets.hide(call.spec, shown) if call.spec.redact else shown), distinguishing


# -- values besides the arguments


def ambiguity(scope: Scope, key: CallKey, call: Identified) -> Ambiguity | None:
    """Why this call could be confused, after a crash, with another one of its scope."""
    origin = call.origin
    if origin is None:
        return None
    name, call_id = (key.tool, key.call_id) if not call.spec.waits else call.given[0][::2]
    if name == LAMBDA and not call_id:
        return Ambiguity(name, "", where_of(origin))
    first = scope.origins.setdefault((key.tool, key.call_id, key.digest), origin)
    names = None if first is origin else differing(first, origin)
    if names is None:
        return None
    return Ambiguity(name, where_of(first), where_of(origin), tuple(names))


def known_by(spec: ToolSpec, shown: Arguments) -> bytes:
    """The digest of the values that distinguish the call, computed from its shown arguments."""
    if spec.identity is None:
        return digest(pack_arguments(*shown, spec.name))
    args, kwargs = shown
    distinguishing = [name for name in kwargs if name == "self" or "." in name]
    given = args, {name: value for name, value in kwargs.items() if name not in distinguishing}
    return digest(pack(_chosen(spec, form_of(spec.function), given), spec.name))


def _distinguishing(spec: ToolSpec, form: Form, shown: Arguments) -> tuple[dict[str, Any], str]:
    """The values, by name, that distinguish the object that the function belongs to from others of
    its class; and the name of its class where nothing does."""
    function = spec.acts or spec.function  # of a child run, its agent's
    if isinstance(function, FunctionType | type):
        return {}, ""
    of = getattr(function, "__self__", None)
    if of is None and hasattr(function, "__qualname__"):  # a function, as by functools.wraps
        return {}, ""
    receiver = function if of is None else of
    if isinstance(receiver, type | ModuleType):
        return {}, ""
    if callable(spec.identity):
        return {"self": _chosen(spec, form, shown)}, ""
    if spec.identity is not None and type(function) is MethodType:
        own = f"{_first_parameter(function)}."
        distinguishing = {
            name: _at(receiver, name.removeprefix(own))
            for name in spec.identity
            if name.startswith(own)
        }
        if distinguishing:
            return distinguishing, ""
    key = getattr(receiver, KEY, None)
    return ({}, _class_of(receiver)) if key is None else ({"self": key}, "")


def _chosen(spec: ToolSpec, form: Form, shown: Arguments) -> Any:
    """The result of ``identity=`` for these arguments."""
    args, kwargs = shown
    function = spec.acts or spec.function
    method = function if type(function) is MethodType else None
    if callable(spec.identity):
        own = () if method is None else (method.__self__,)
        return spec.identity(*own, *args, **kwargs)
    assert spec.identity is not None
    values = {**form.defaults, **(form.arguments(shown) or {})}
    values.update(values.get(form.others, {}))
    if method is not None:
        values[_first_parameter(method)] = method.__self__
    names = (name.partition(".") for name in spec.identity)
    return [_at(values.get(root), path) for root, _, path in names]


def _at(value: Any, path: str) -> Any:
    for name in filter(None, path.split(".")):
        value = value[name] if isinstance(value, Mapping) else getattr(value, name)
    return value


def _first_parameter(method: MethodType) -> str:
    return method.__func__.__code__.co_varnames[0]


def _stood_in(spec: ToolSpec, shown: Arguments) -> tuple[Arguments, dict[str, Any]]:
    """The arguments of a partial, with a key or a class in place of each value that cannot be
    carried; and the values that no record distinguishes from others."""
    beside: dict[str, Any] = {}

    def stand_in(name: str, value: Any) -> Any:
        if not any(value is one for one in spec.bound) or _is_carried(value):
            return value
        key = getattr(value, KEY, None)
        if key is not None:
            return key
        beside[name] = value
        return f"<{_class_of(value)}>"

    args = tuple(stand_in(f"args[{i}]", value) for i, value in enumerate(shown[0]))
    return (args, {name: stand_in(name, value) for name, value in shown[1].items()}), beside


def _is_carried(value: Any) -> bool:
    try:
        pack_arguments((value,), {}, "")
    except RefusedValueError:
        return False
    return True


def _class_of(value: Any) -> str:
    kind = type(value)
    return public_name(f"{kind.__module__}.{kind.__qualname__}")


def _is_conversation(value: Any) -> bool:
    """Whether it is a list of messages, as ``list(run.messages)`` is."""
    return type(value) is list and bool(value) and all(type(one) is FrozenDict for one in value)


def _by_content(value: Any) -> Any:
    if not _is_conversation(value):
        return value
    return MessagesDigest(len(value), digests_of(value)[1])


# -- the function that is called


def plainly(spec: ToolSpec, given: Arguments) -> tuple[ToolSpec, Arguments]:
    """The plain form of a call of a partial, or of a method that is called by way of its class."""
    function = spec.function
    if not isinstance(function, partial):
        if not spec.owner or not given[0] or not _belongs(given[0][0], spec.owner):
            return spec, given
        bound = replace(spec, function=MethodType(function, given[0][0]), owner="")
        return bound, (given[0][1:], given[1])
    if spec.waits:
        return spec, given
    is_plain = spec == ToolSpec(function_name(function), function)
    args, kwargs = given
    while isinstance(function, partial):
        args, kwargs = _filled(function, args), {**function.keywords, **kwargs}
        spec = replace(spec, bound=(*spec.bound, *function.args, *function.keywords.values()))
        function = function.func
    inner = spec_to_call(function)
    settings = inner if is_plain else spec
    spec = replace(
        settings, function=inner.function, owner=inner.owner, bound=(*inner.bound, *spec.bound)
    )
    return plainly(spec, (args, kwargs))


def _filled(function: partial[Any], args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The positional arguments of a call of a partial."""
    hole = getattr(functools, "Placeholder", None)  # of Python 3.14
    if hole is None or not any(one is hole for one in function.args):
        return *function.args, *args
    rest = list(args)
    return *(rest.pop(0) if one is hole and rest else one for one in function.args), *rest


def _belongs(first: Any, owner: str) -> bool:
    kind = first if isinstance(first, type) else type(first)
    return any(base.__qualname__ == owner for base in kind.__mro__)
