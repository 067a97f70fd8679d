"""Function tools whose calls are recorded."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import dataclasses
import inspect
import json
from collections.abc import Callable
from typing import Any, get_origin, get_type_hints

from agents import (
    CodeInterpreterTool,
    FileSearchTool,
    FunctionTool,
    HostedMCPTool,
    ImageGenerationTool,
    RunContextWrapper,
    ShellTool,
    ToolSearchTool,
    WebSearchTool,
    function_tool,
)
from agents.tool_context import ToolContext

from recovery import Run, current_run, tool
from recovery.integrations.openai_agents.proxy import Proxy

_MARK = "is_recorded"  # of functions
# They run inside the model's call, so its reply has what they gave.
_HOSTED = (
    CodeInterpreterTool,
    FileSearchTool,
    HostedMCPTool,
    ImageGenerationTool,
    ToolSearchTool,
    WebSearchTool,
)


def recorded_tool(of: Any, is_recorded: Callable[[Any], bool]) -> Any:
    """The tool, recorded. TypeError for one that works on this machine and cannot be recorded.

    ``is_recorded``: whether an agent is.
    """
    if isinstance(of, _HOSTED) or (isinstance(of, ShellTool) and of.executor is None):
        return of
    if not isinstance(of, FunctionTool):
        raise TypeError(
            f"{getattr(of, 'name', of)!r} is a {type(of).__name__}: it works on this machine, and "
            "its calls cannot be recorded. Make it a function_tool, which can"
        )
    function = getattr(of, "__wrapped__", None)
    if type(of.on_invoke_tool) is _Invoked or hasattr(function, _MARK):
        return of
    if getattr(of, "_is_agent_tool", False):
        if not is_recorded(getattr(of, "_agent_instance", None)):
            raise TypeError(
                f"the calls inside the agent that is the tool {of.name!r} would not be recorded: "
                "make it with recorded(agent).as_tool(...)"
            )
        return of
    if (inspect.isfunction(function) or inspect.ismethod(function)) and not of.output_json_schema:
        return _with(of, _invoker(of, function))
    return _with(of, _Invoked(of.on_invoke_tool, of.name))


def _with(of: FunctionTool, invoke: Any) -> FunctionTool:
    made = copy.copy(of)
    made.on_invoke_tool = invoke
    return copy.copy(made)  # binds what turns its errors into text to this tool


# -- of a function: its arguments and its result are recorded, as those of any call


def _invoker(of: FunctionTool, function: Callable[..., Any]) -> Any:
    """What invokes the tool as the SDK does, but for the call of the function, which is recorded.

    The SDK reads the arguments, and makes text of errors: it is given a function that takes its
    context, whose signature is otherwise the same.
    """
    hints = get_type_hints(function, include_extras=True)
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    first = parameters[0] if parameters else None
    kind = hints.get(first.name) if first is not None else None
    takes_context = (get_origin(kind) or kind) in (RunContextWrapper, ToolContext)
    if not takes_context:
        how = min([one.kind for one in parameters] + [inspect.Parameter.POSITIONAL_OR_KEYWORD])
        parameters.insert(0, inspect.Parameter("tool_context", how, annotation=ToolContext))
        hints["tool_context"] = ToolContext
    named = function
    if hasattr(function, "tool_spec"):
        tool(function)  # its TypeError here, and not as a result of the tool
    else:
        # As where it is defined, outside of any run: the types that it names are known then.
        named = contextvars.Context().run(tool(name=of.name), function)
    is_own = "call_id" in signature.parameters
    own = signature.replace(parameters=parameters[1:])

    async def call(context: ToolContext[Any], *args: Any, **kwargs: Any) -> Any:
        run = current_run()
        if not isinstance(run, Run):
            return await _plainly(function, context if takes_context else None, args, kwargs)
        made = _given(named, context, own) if takes_context else named
        if is_own:
            return await run.call(made, *args, **kwargs)
        return await run.call(made, *args, call_id=context.tool_call_id, **kwargs)

    setattr(call, _MARK, True)
    call.__name__, call.__doc__, call.__module__ = of.name, None, function.__module__
    call.__annotations__ = hints
    call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    made = function_tool(
        call,
        name_override=of.name,
        use_docstring_info=False,
        strict_mode=of.strict_json_schema,
        timeout=None,
    )
    return made.on_invoke_tool


def _given(named: Any, context: Any, own: inspect.Signature) -> Any:
    """The tool, given its context: an object of this process, and no argument of the call."""
    function = named.tool_spec.function

    async def awaited(*args: Any, **kwargs: Any) -> Any:
        return await function(context, *args, **kwargs)

    def called(*args: Any, **kwargs: Any) -> Any:
        return function(context, *args, **kwargs)

    made: Any = awaited if inspect.iscoroutinefunction(function) else called
    made.__name__, made.__qualname__ = function.__name__, function.__qualname__
    made.__signature__ = own
    made.tool_spec = dataclasses.replace(named.tool_spec, function=made, owner="")
    return made


async def _plainly(
    function: Callable[..., Any], context: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    given = args if context is None else (context, *args)
    if inspect.iscoroutinefunction(function):
        return await function(*given, **kwargs)
    return await asyncio.to_thread(function, *given, **kwargs)


# -- of anything else: what it is sent and what it answers


class _Invoked(Proxy):
    def __init__(self, inner: Any, name: str) -> None:
        super().__init__(inner)
        object.__setattr__(self, "tool_name", name)

    def __agents_bind_function_tool__(self, of: FunctionTool) -> _Invoked:
        bind = getattr(self.inner, "__agents_bind_function_tool__", None)
        return self if bind is None else _Invoked(bind(of), self.tool_name)

    async def __call__(self, context: ToolContext[Any], text: str) -> Any:
        run, inner = current_run(), self.inner
        if not isinstance(run, Run):
            return await inner(context, text)

        @tool(name=self.tool_name)
        async def invoke(arguments: Any) -> Any:
            return await inner(context, text)

        return await run.call(invoke, _read(text), call_id=context.tool_call_id)


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
