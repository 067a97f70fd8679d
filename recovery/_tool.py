"""Tools: functions whose calls are recorded, and what to do about one that a crash cut short."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import replace
from types import FunctionType, MethodType
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    ParamSpec,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from eventlog._dataclass import dataclass
from recovery._declared import declare
from recovery._keys import is_idempotency_key
from recovery._options import check_names
from recovery._redact import check_parameters
from recovery._retry import Retry
from recovery._shorten import shorten
from recovery._tool_options import check_identity, checked
from recovery._usage import Usage

if TYPE_CHECKING:
    from recovery._core import RunCore

P = ParamSpec("P")
R = TypeVar("R")

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
_GENERATES = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR

AfterCrash = Literal["park", "retry", "report"]
WhenCut = Literal["in_doubt", "fail"]


@dataclass(frozen=True, slots=True)
class Resolution:
    """What became of a call in doubt: made by the class methods."""

    how: Literal["outcome", "retry", "fail", "unknown"]
    value: Any = None

    @classmethod
    def outcome(cls, value: Any) -> Resolution:
        """It happened, and this is its result. It is not executed again."""
        return cls("outcome", value)

    @classmethod
    def retry(cls) -> Resolution:
        """It did not happen (or is safe to repeat): execute it, under the same idempotency key."""
        return cls("retry")

    @classmethod
    def fail(cls, reason: str) -> Resolution:
        """Give up on it: the agent gets a ToolError with this reason."""
        return cls("fail", reason)

    @classmethod
    def unknown(cls) -> Resolution:
        """Nobody can tell yet: the call stays in doubt and the run parks."""
        return cls("unknown")


@dataclass(frozen=True, slots=True)
class Call:
    """A call as its tool, a reconcile hook or an operator sees it.

    ``idempotency_key`` is the same for every attempt; ``attempt`` counts from 1; ``lsn`` is the
    record of the intent; ``started_ns`` when it was first intended (wall clock, ns).
    """

    run_id: str
    lsn: int
    step: str
    tool: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    call_id: str
    idempotency_key: str
    attempt: int
    started_ns: int

    @property
    def headers(self) -> dict[str, str]:
        """The idempotency key as the HTTP header that services of that kind look at."""
        return {"Idempotency-Key": self.idempotency_key}

    def __str__(self) -> str:
        parts = [shorten(arg, 80) for arg in self.args]
        text = ", ".join(
            parts + [f"{name}={shorten(arg, 80)}" for name, arg in self.kwargs.items()]
        )
        return f"LSN {self.lsn}: {self.tool}({text}), idempotency key {self.idempotency_key}"


def check_call(call: object) -> None:
    """TypeError for what names no call."""
    if type(call) not in (Call, int) and not (isinstance(call, str) and is_idempotency_key(call)):
        raise TypeError(
            "call is a Call, as errors and pending() give it, its idempotency key (32 hexadecimal "
            f"digits) or its LSN (an int), not {call!r:.80}"
        )


Undo = Callable[[Call, Any], Any]
Combine = Callable[[list[Any]], Any]
Split = Callable[[Any], Iterable[Any]]
Reconcile = Callable[[Call], Resolution | Awaitable[Resolution]]


@dataclass(frozen=True, slots=True)
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
    # A built-in call that waits for something outside: its function makes, of the run and the
    # call, a generator of naps. It may be begun again at any time, so its policy is "retry".
    waits: bool = False
    # The id of the run that a call starts, from its idempotency key.
    child_id: Callable[[str], str] | None = None
    # Of a built-in call that does nothing but wait, and so is never in doubt: how many of its
    # arguments, from the first, tell such calls apart.
    identified_by: int | None = None
    identity: tuple[str, ...] | Callable[..., Any] | None = None
    # Whose code says what a call does, where that is not ``function``.
    acts: Callable[..., Any] | None = None
    # The class in whose body the function stands: called with an object of it first, it is that
    # object's method.
    owner: str = ""
    bound: tuple[Any, ...] = ()  # arguments that partials have bound

    @property
    def only_waits(self) -> bool:
        """Whether a call does nothing but wait."""
        return self.identified_by is not None

    @property
    def repeatable(self) -> bool:
        """Whether a call needs no durable intent, because making it twice does no harm."""
        return self.after_crash == "retry"

    @property
    def when_cut(self) -> WhenCut:
        """What a call is that was timed out or cancelled."""
        return self.on_timeout or ("fail" if self.repeatable else "in_doubt")


class Scope:
    """Where in a run the present code is: part of the identity of the calls it makes.

    Counts equal calls itself, so that the counts go when the last task of the scope has gone.
    ``calls``: the LSNs of the calls in which it is, the innermost last. ``outer``: the attempt in
    which the call was made, if it was made inside another one.
    """

    __slots__ = (
        "__weakref__", "_counts", "call", "calls", "metered", "origins", "outer", "over", "path",
        "raised",
        "run", "stopped",
    )  # fmt: skip

    def __init__(
        self, run: RunCore, path: str, call: Call | None = None, outer: Scope | None = None
    ) -> None:
        self.run, self.path, self.call = run, path, call
        around = outer.calls if outer is not None else ()
        self.outer = outer if around else None
        self.calls: tuple[int, ...] = (*around, call.lsn) if call is not None else around
        self.over = False  # whether the attempt is, and another follows
        self.stopped = False  # whether the run was stopped at a call made here
        self.metered = False  # whether a call made here said what it used
        self.raised = 0  # attempts at the call that have raised before this one
        self._counts: dict[object, int] = {}
        self.origins: dict[object, Any] = {}  # by call: what makes it, see _captured

    @property
    def used(self) -> bool:
        """Whether anything was recorded here that has an occurrence."""
        return bool(self._counts)

    @property
    def left_behind(self) -> bool:
        """Whether what is at work here belongs to an attempt that is over."""
        return self.over or (self.outer is not None and self.outer.left_behind)

    def check(self) -> None:
        """Stop again if a call made here did, whatever became of that; or if nobody waits for what
        comes of this."""
        if self.stopped or self.left_behind:
            self.run.check()

    def next_occurrence(self, what: object) -> int:
        """1 for the first of its kind here, then 2, 3, ..."""
        self._counts[what] = count = self._counts.get(what, 0) + 1
        return count


current_scope: ContextVar[Scope | None] = ContextVar("recovery_scope", default=None)
runs_at_work: set[Any] = set()  # those of this process whose agent function is being executed
NOWHERE = Scope(cast(Any, None), "")  # of the library's own code that is at work for many runs


def current_call() -> Call | None:
    """The recorded call inside which this code runs: its idempotency key, its attempt.

    None outside of one. Works in the tool itself and in all that it calls, also in threads started
    by ``asyncio.to_thread``.
    """
    scope = current_scope.get()
    return scope.call if scope is not None else None


class ToolOptions(TypedDict, total=False):
    """What a tool can be told, each by name.

    ``after_crash`` says what to do when a crash leaves it unknown whether a call took effect:
    "park" (the run stops until somebody resolves it), "retry" (the call is safe to repeat),
    "report" (the agent receives an OutcomeUnknown). ``reconcile`` asks the outside world instead: a
    function (sync or async) from the Call to a Resolution; if it raises or answers unknown, the run
    parks. ``raises`` names exceptions that the agent is to see as themselves (builtin ones need not
    be named; others become ToolError). ``name`` is the tool's name in the log, the function's by
    default.

    ``retry``: for calls that raise, a Retry, or how many attempts are made in all. ``timeout_s``:
    how long an attempt may take; then an async function is cancelled (a plain one is left alone in
    its thread). ``on_timeout``: what a
    call is that was timed out, or cancelled by the agent: "in_doubt" (the default of side effects)
    or "fail" (of those that are safe to repeat).

    ``undo``: the function (sync or async, a tool or not) that undoes a call; it gets the Call and
    its outcome, see ``Run.undo``. The arguments of such calls are recorded whole.

    ``redact``: names of parameters whose values are kept out of the log. A Redacted stands for
    each, in what is recorded, shown, and handed to ``reconcile`` and ``undo``; equal values have
    equal ones, so the call is known again. Texts of 4 characters or more in them are removed from
    recorded exceptions, too. What the tool returns is recorded as ever.

    ``identity``: what tells calls of the tool apart, in place of all its arguments: names of
    parameters, or of what is in them (``["url", "request.body"]``, ``["self.account"]`` of a
    method), or a function of the arguments (of a method, of the object first), which gives a value
    that can be carried. The other arguments are recorded and not compared. A call that needs
    approval is known by all its arguments besides.

    ``usage``: a function from what the tool returned to the Usage of the call, for budgets and
    progress. Replies of the shapes of OpenAI and Anthropic are known without it.

    ``combine`` and ``split``, of a tool that streams: what its chunks make up (from the list of
    them), which is what is recorded; and chunks that make up such a value again, for replay.
    ``needs_approval``: whether a call begins only when somebody has said yes to it
    (``recovery.approve``), with exactly its arguments; or a function that tells, from the Call (its
    ``lsn`` is 0, for nothing is recorded yet). The agent gets an ApprovalDeniedError for a no, and
    when nobody has decided ``approval_timeout_s`` after it was asked for.
    """

    after_crash: AfterCrash
    reconcile: Reconcile
    raises: Sequence[type[Exception]]
    name: str
    retry: Retry | int
    timeout_s: float
    on_timeout: WhenCut
    undo: Undo
    redact: Sequence[str]
    identity: Sequence[str] | Callable[..., Any]
    usage: Callable[[Any], Usage]
    combine: Combine
    split: Split
    needs_approval: bool | Callable[[Call], bool]
    approval_timeout_s: float


def _adapted(function: Callable[..., Any], options: ToolOptions) -> ToolSpec:
    """The spec of a function, or of a tool that is to differ in these options."""
    check_names("@tool", options, ToolOptions.__annotations__)
    spec = spec_of(function)
    if isinstance(function, functools.partial):  # of a tool, maybe
        spec = replace(spec_of(_inside(function)), function=function, owner="")
    elif spec.function is function:
        spec = replace(spec, owner=_class_around(function))
    given: dict[str, Any] = {"name": spec.name} | dict(options)
    checked(given)
    if "after_crash" in given:
        given["reconcile"] = None
    elif given.get("reconcile") is not None:
        given["after_crash"] = "reconcile"
    if is_async(given.get("needs_approval", bool)):
        raise TypeError("needs_approval= is a plain function of the Call, not an async one")
    if is_async(given.get("identity", bool)):
        raise TypeError("identity= is a plain function of the arguments, not an async one")
    if callable(given.get("identity")):
        check_identity(given["name"], given["identity"], _inside(spec.function))
    for option in ("redact", "identity"):
        names = given.get(option)
        if names is not None and not (option == "identity" and callable(names)):
            given[option] = check_parameters(_inside(spec.function), names, option)
    return replace(spec, **given)


@overload
def tool(function: Callable[P, R], /) -> Callable[P, R]: ...


@overload
def tool(
    **options: Unpack[ToolOptions],
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def tool(function: Callable[..., Any] | None = None, /, **options: Unpack[ToolOptions]) -> Any:
    """Make a function a tool: called inside a run it is recorded and never executed twice.

    Called outside of a run it is the plain function. See ToolOptions for the options. Given a tool,
    makes another of it that differs in these options: for one call, or one agent.
    """

    def decorate(function: Any) -> Any:
        if isinstance(function, classmethod | staticmethod):
            return type(function)(decorate(function.__func__))
        if not callable(function):
            what = (
                f"a {type(function).__name__}" if isinstance(function, property) else repr(function)
            )
            raise TypeError(f"@tool is for functions, not {what:.80}; a name is @tool(name=...)")
        if isinstance(function, type):
            raise TypeError(
                f"@tool is for functions, not the class {function.__name__}: decorate its methods, "
                "or a function that makes one"
            )
        spec = _adapted(function, options)
        function = spec.function
        register(spec)
        if current_scope.get() is None:  # else what a later process does not know before it runs
            declare(function)
        if is_generator(function):

            @functools.wraps(function)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                scope = current_scope.get()
                if scope is None:
                    return function(*args, **kwargs)
                return scope.run.open_stream(spec, (args, kwargs), "")
        elif is_async(function):

            @functools.wraps(function)
            async def wrapper(*args: Any, **kwargs: Any) -> Any:
                scope = current_scope.get()
                if scope is None:
                    return await function(*args, **kwargs)
                return await scope.run.perform_async(spec, (args, kwargs), "")
        else:

            @functools.wraps(function)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                scope = current_scope.get()
                if scope is None:
                    if runs_at_work:
                        from recovery._told_once import warn_of_thread  # noqa: PLC0415 - rare

                        warn_of_thread(spec.name, function)
                    return function(*args, **kwargs)
                return scope.run.perform_sync(spec, (args, kwargs), "")

        wrapper.tool_spec = spec  # type: ignore[attr-defined]
        return wrapper

    return decorate if function is None else decorate(function)


# By name, those of modules: what a run that has been resumed may not have called itself.
# None where two have the same name.
undoable_tools: dict[str, ToolSpec | None] = {}


def register(spec: ToolSpec) -> None:
    """Have ``run.undo()`` know of a tool, if there is no other one of its name.

    One that is made inside a function may belong to one run alone, so it is left out.
    """
    where = getattr(spec.function, "__qualname__", "<locals>")
    if spec.undo is None or "<locals>" in where:
        return
    other = undoable_tools.setdefault(spec.name, spec)
    is_same = other is not None and _place(other) == _place(spec)  # its module was loaded again
    undoable_tools[spec.name] = spec if is_same else None


def _place(spec: ToolSpec) -> list[object]:
    names = ("__module__", "__qualname__")
    return [getattr(what, name, what) for what in (spec.function, spec.undo) for name in names]


def spec_of(function: Callable[..., Any]) -> ToolSpec:
    """The spec of a tool; for any other function that of a side effect that parks."""
    spec = getattr(function, "tool_spec", None)
    if isinstance(spec, ToolSpec):
        if type(function) is MethodType:
            return replace(spec, function=MethodType(spec.function, function.__self__), owner="")
        return spec
    if not callable(function):
        raise _no_function(function)
    return ToolSpec(function_name(function), function)


def _no_function(given: Any) -> TypeError:
    if inspect.iscoroutine(given):
        name = given.__name__
        given.close()  # it will never be awaited, and that is said here
        what = f"{name}(...) was called already. Write run.call({name}, ...)"
    elif inspect.isgenerator(given) or inspect.isasyncgen(given):
        what = f"{given.__name__}(...) was called already. Write run.stream({given.__name__}, ...)"
    else:
        what = f"not {given!r:.80}. Write run.call(f, 1), not run.call(f(1))"
    return TypeError(f"a call takes a function, and then its arguments: {what}")


def function_name(function: Callable[..., Any]) -> str:
    """The name under which calls of a function are recorded."""
    function = _inside(function)
    return getattr(function, "__name__", None) or type(function).__name__


def _inside(function: Callable[..., Any]) -> Callable[..., Any]:
    """What partials are made of."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _class_around(function: Callable[..., Any]) -> str:
    """The class in whose body a function stands, "" if in none."""
    owner = getattr(function, "__qualname__", "").rpartition(".")[0]
    is_function = isinstance(function, FunctionType)
    return owner if is_function and not owner.endswith("<locals>") else ""


def is_generator(function: Callable[..., Any]) -> bool:
    """Whether calling the function runs none of its code yet, for it generates."""
    function = _inside(function)
    if type(function) is FunctionType and not function.__dict__:  # nor does that say anything
        return bool(function.__code__.co_flags & _GENERATES)
    return inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function)


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling the function gives something to await."""
    function = _inside(function)
    if type(function) is FunctionType and function.__code__.co_flags & inspect.CO_COROUTINE:
        return True
    if inspect.iscoroutinefunction(function):  # also one that is only marked as such
        return True
    called = getattr(function, "__call__", None)  # noqa: B004 - an object whose call is async
    return inspect.iscoroutinefunction(called)
