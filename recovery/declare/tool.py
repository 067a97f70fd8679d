"""Declares tools: functions whose calls are recorded, and how a call in doubt is resolved."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ParamSpec, TypedDict, TypeVar, Unpack, overload

from recovery.declare.retry import Retry
from recovery.declare.scope import current_scope, runs_at_work
from recovery.declare.spec import (
    AfterCrash,
    Combine,
    Reconcile,
    Split,
    ToolSpec,
    Undo,
    WhenCut,
    class_around,
    inside_partials,
    is_async,
    is_generator,
    spec_of,
    spec_to_call,
)
from recovery.declare.tool_options import check_identity, checked
from recovery.journal.call import Call
from recovery.journal.redaction import check_parameters
from recovery.journal.usage import Usage
from recovery.option_checks import check_names
from recovery.values.declared_types import declare

P = ParamSpec("P")
R = TypeVar("R")


class ToolOptions(TypedDict, total=False):
    """See tool."""

    after_crash: AfterCrash
    reconcile: Reconcile
    raises: Sequence[type[Exception]]
    name: str
    call_id: str
    retry: Retry | int
    timeout_s: float
    on_timeout: WhenCut
    undo: Undo
    redact: Sequence[str]
    identity: Sequence[str] | Callable[..., Any]
    subject: str | Callable[..., str | None]
    usage: Callable[[Any], Usage]
    combine: Combine
    split: Split
    needs_approval: bool | Callable[[Call], bool]
    approval_timeout_s: float


def _adapted(function: Callable[..., Any], options: ToolOptions) -> ToolSpec:
    """The spec of a function, or of a tool with changes of these options."""
    check_names("@tool", options, ToolOptions.__annotations__)
    spec = spec_to_call(function)
    if isinstance(function, functools.partial):  # of a tool, maybe
        spec = replace(spec_of(inside_partials(function)), function=function, owner="")
    elif spec.function is function:
        spec = replace(spec, owner=class_around(function))
    given: dict[str, Any] = {"name": spec.name} | dict(options)
    checked(given)
    if given.get("undo") is not None:
        spec_to_call(given["undo"])  # its TypeError here, and not when something is undone
    if "after_crash" in given:
        given["reconcile"] = None
    elif given.get("reconcile") is not None:
        given["after_crash"] = "reconcile"
    for option in ("needs_approval", "identity", "subject"):
        if is_async(given.get(option, bool)):
            what = "the Call" if option == "needs_approval" else "the arguments"
            raise TypeError(f"{option}= is a plain function of {what}, not an async one")
    for option in ("identity", "subject"):
        if callable(given.get(option)):
            inner = inside_partials(spec.function)
            check_identity(given["name"], given[option], inner, option)
    for option in ("redact", "identity"):
        names = given.get(option)
        if names is not None and not (option == "identity" and callable(names)):
            given[option] = check_parameters(inside_partials(spec.function), names, option)
    if isinstance(given.get("subject"), str):
        check_parameters(inside_partials(spec.function), [given["subject"]], "subject")
    return replace(spec, **given)


@overload
def tool(function: Callable[P, R], /) -> Callable[P, R]: ...


@overload
def tool(
    **options: Unpack[ToolOptions],
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def tool(function: Callable[..., Any] | None = None, /, **options: Unpack[ToolOptions]) -> Any:
    """Make a function a tool: inside a run, calls of it are recorded and never executed twice.

    Outside of a run it is the plain function. Given a tool, makes another tool that differs in
    these options: for one call, or one agent.

    Args:
        function: The function or tool; without it, a decorator with these options.
        after_crash: What to do when a crash leaves it unknown whether a call took effect. "park" is
            the default: the run stops until the call is resolved. "retry": the call is safe to
            repeat. "report": the agent receives an OutcomeUnknown.
        reconcile: Asks the outside world instead (none): a function, sync or async, from the Call
            to a Resolution. If it raises or answers unknown, the run parks.
        raises: Exceptions that the agent sees as themselves (none). Builtin ones, and those whose
            module is loaded, need not be named; others become a ToolError.
        name: The tool's name in the log (the function's). Keep it when you rename the function.
        call_id: For one call: the model's id for it (none), as ``run.call(..., call_id=...)`` takes
            it, for a tool that is called directly: ``await tool(call_id="toolu_1")(send)(text)``.
        retry: For calls that raise: a Retry, or the number of attempts (one attempt).
        timeout_s: How long an attempt may take (no limit). Then an async function is cancelled; a
            plain one goes unwatched in its thread.
        on_timeout: The state of a call that was timed out, or cancelled by the agent. "in_doubt" is
            the default of side effects, "fail" that of calls that are safe to repeat.
        undo: The function, sync or async, a tool or not, that undoes a call (none). It gets the
            Call and its outcome, see ``Run.undo``. The arguments of such calls are recorded whole.
        redact: Names of parameters whose values are kept out of the log (none), such as passwords.
            A Redacted replaces each, in what is recorded, shown, and handed to ``reconcile`` and
            ``undo``. Texts of 4 characters or more in them are removed from recorded exceptions.
            The tool's result is recorded unchanged.
        identity: What identifies calls of the tool (all arguments): names of parameters,
            or of their parts (``["url", "request.body"]``, ``["self.account"]`` of a method). Or a
            function of the arguments (of a method, of the object first) to a value that can be
            recorded. It says all: captured variables do not count. The other arguments are recorded
            whole, up to 1 MiB, and not compared. A call that needs approval is identified by all
            its arguments besides.
        subject: To whom a call belongs. The name of the parameter with the subject's id (text), or
            a function of the arguments that gives the id or None. Arguments, result, chunks and
            errors of the call are encrypted with a key of that subject, until
            ``store.forget(subject)`` destroys the key. Calls inside the call belong to the same
            subject, unless they name another one. None (the default): to none,
            outside of such a call.
        usage: A function from the tool's result to the Usage of the call, for budgets and progress.
            Replies of the shapes of OpenAI and Anthropic are known without it.
        combine: Of a tool that streams: makes the recorded value from the list of chunks (text and
            bytes are joined, others make a list).
        split: Makes chunks from such a value, for replay (a text is one, a list gives its items).
        needs_approval: Whether a call begins only after it was approved (``RunHandle.approve``),
            with exactly its arguments (False). Or a function that decides, from the Call (its
            ``lsn`` is 0, because nothing is recorded yet).
        approval_timeout_s: Without a decision for so many seconds after the request, the call is
            denied: the agent gets an ApprovalDeniedError (no limit).
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
                        from recovery.agent_code.warn_once import warn_of_thread  # noqa: PLC0415 - rare

                        warn_of_thread(spec.name, function)
                    return function(*args, **kwargs)
                return scope.run.perform_sync(spec, (args, kwargs), "")

        wrapper.tool_spec = spec  # type: ignore[attr-defined]
        return wrapper

    return decorate if function is None else decorate(function)


# Tools of modules, by name: a resumed run may need them although it has not called them itself.
# None where two have the same name.
undoable_tools: dict[str, ToolSpec | None] = {}


def register(spec: ToolSpec) -> None:
    """Make a tool known to ``run.undo()``, if no other tool has its name.

    A tool that is made inside a function may belong to one run alone, so it is left out.
    """
    where = getattr(spec.function, "__qualname__", "<locals>")
    if spec.undo is None or "<locals>" in where:
        return
    other = undoable_tools.setdefault(spec.name, spec)
    undoable_tools[spec.name] = spec if other is not None and is_same_tool(other, spec) else None


def is_same_tool(one: ToolSpec, other: ToolSpec) -> bool:
    """Whether both are made at one position of the code; its module may have been reloaded."""
    return _place(one) == _place(other)


def _place(spec: ToolSpec) -> list[object]:
    names = ("__module__", "__qualname__")
    return [getattr(what, name, what) for what in (spec.function, spec.undo) for name in names]
