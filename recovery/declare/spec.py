"""Describes how calls of a function are recorded."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from types import FunctionType, MethodType
from typing import Any, Literal

from eventlog.light_dataclass import light_dataclass
from recovery.declare.retry import Retry
from recovery.journal.call import Call, Resolution
from recovery.journal.usage import Usage

_GENERATES = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR
AfterCrash = Literal["park", "retry", "report"]
WhenCut = Literal["in_doubt", "fail"]
Undo = Callable[[Call, Any], Any]
Combine = Callable[[list[Any]], Any]
Split = Callable[[Any], Iterable[Any]]
Reconcile = Callable[[Call], Resolution | Awaitable[Resolution]]


@light_dataclass
class ToolSpec:
    """How calls of a function are recorded."""

    name: str
    function: Callable[..., Any]
    after_crash: AfterCrash | Literal["reconcile"] = "park"
    reconcile: Reconcile | None = None
    raises: tuple[type[Exception], ...] = ()
    retry: Retry | None = None
    timeout_s: float | None = None  # of an attempt
    on_timeout: WhenCut | None = None
    undo: Undo | None = None
    redact: tuple[str, ...] = ()
    usage: Callable[[Any], Usage] | None = None
    combine: Combine | None = None
    split: Split | None = None
    needs_approval: bool | Callable[[Call], bool] = False
    approval_timeout_s: float | None = None
    # A built-in call that waits for something outside. From the run and the call its function makes
    # a generator of pauses. It may be begun again at any time, so its policy is "retry".
    waits: bool = False
    # The id of the run that a call starts, from its idempotency key.
    child_id: Callable[[str], str] | None = None
    # Of a built-in call that only waits, and so is never in doubt: the number of arguments, from
    # the first, that identify such calls.
    identified_by: int | None = None
    identity: tuple[str, ...] | Callable[..., Any] | None = None
    # The function whose code decides what a call does, where that is not ``function``.
    acts: Callable[..., Any] | None = None
    # The class in whose body the function is defined: called with an object of it first, it is that
    # object's method.
    owner: str = ""
    bound: tuple[Any, ...] = ()  # arguments that partials have bound
    call_id: str = ""  # of one call, see calls.carry_out_call
    subject: str | Callable[..., str | None] | None = None  # to whom calls of it belong

    @property
    def only_waits(self) -> bool:
        """Whether a call only waits."""
        return self.identified_by is not None

    @property
    def repeatable(self) -> bool:
        """Whether a call needs no durable intent, because repeating it does no harm."""
        return self.after_crash == "retry"

    @property
    def when_cut(self) -> WhenCut:
        """The state of a call that was timed out or cancelled."""
        return self.on_timeout or ("fail" if self.repeatable else "in_doubt")


def spec_of(function: Callable[..., Any]) -> ToolSpec:
    """The spec of a tool; for any other function, of a side effect that parks."""
    spec = getattr(function, "tool_spec", None)
    if isinstance(spec, ToolSpec):
        if type(function) is MethodType:
            return replace(spec, function=MethodType(spec.function, function.__self__), owner="")
        return spec
    if not callable(function):
        raise _no_function(function)
    return ToolSpec(function_name(function), function)


def spec_to_call(function: Callable[..., Any]) -> ToolSpec:
    """The spec of a function that is to be called by it. TypeError for a decorator around a tool:
    ``functools.wraps`` gives it the mark of the tool, so the call would leave the decorator out."""
    spec = spec_of(function)
    inner = getattr(function, "__wrapped__", None)
    if inner is not None and getattr(inner, "tool_spec", None) is getattr(function, "tool_spec", 0):
        code = getattr(function, "__code__", None)
        around = code.co_qualname.partition(".")[0] if code else type(function).__name__
        raise TypeError(
            f"{spec.name} is a @tool with a decorator above it, {around}, which this call would "
            f"leave out. Write @tool once, above {around}; or call {spec.name}(...) itself"
        )
    return spec


def _no_function(given: Any) -> TypeError:
    if inspect.iscoroutine(given):
        name = given.__name__
        given.close()  # avoids a warning that it was never awaited
        what = f"{name}(...) was called already. Write run.call({name}, ...)"
    elif inspect.isgenerator(given) or inspect.isasyncgen(given):
        what = f"{given.__name__}(...) was called already. Write run.stream({given.__name__}, ...)"
    else:
        what = f"not {given!r:.80}. Write run.call(f, 1), not run.call(f(1))"
    return TypeError(f"a call takes a function, and then its arguments: {what}")


def function_name(function: Callable[..., Any]) -> str:
    """The name under which calls of a function are recorded."""
    function = inside_partials(function)
    return getattr(function, "__name__", None) or type(function).__name__


def inside_partials(function: Callable[..., Any]) -> Callable[..., Any]:
    """What partials are made of."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def class_around(function: Callable[..., Any]) -> str:
    """The class in whose body a function is defined, "" if in none."""
    owner = getattr(function, "__qualname__", "").rpartition(".")[0]
    is_function = isinstance(function, FunctionType)
    return owner if is_function and not owner.endswith("<locals>") else ""


def is_generator(function: Callable[..., Any]) -> bool:
    """Whether calling the function runs none of its code yet, because it is a generator."""
    function = inside_partials(function)
    if type(function) is FunctionType and not function.__dict__:  # no marks, so the code decides
        return bool(function.__code__.co_flags & _GENERATES)
    return inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function)


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling the function returns an awaitable."""
    function = inside_partials(function)
    if type(function) is FunctionType and function.__code__.co_flags & inspect.CO_COROUTINE:
        return True
    if inspect.iscoroutinefunction(function):  # also one that is only marked as such
        return True
    called = getattr(function, "__call__", None)  # noqa: B004 - an object whose call is async
    return inspect.iscoroutinefunction(called)
