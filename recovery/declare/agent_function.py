"""Checks that an agent function can be called with a run."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from recovery.declare.spec import ToolSpec, function_name, is_generator


def check_agent(agent_fn: Any) -> None:
    """Raise TypeError for an object that cannot be called with a run alone."""
    if inspect.iscoroutine(agent_fn):
        agent_fn.close()
        name = agent_fn.__name__
        raise TypeError(f"agent_fn is a function of a run: write {name}, not {name}(...)")
    if not callable(agent_fn):
        raise TypeError(f"agent_fn is a function of a run, not {agent_fn!r:.80}")
    name = function_name(agent_fn)
    if isinstance(getattr(agent_fn, "tool_spec", None), ToolSpec):
        raise TypeError(
            f"the agent function {name} is decorated with @tool: remove @tool there. It is for the "
            "functions that an agent calls; what the agent itself does is recorded anyway"
        )
    if is_generator(agent_fn):
        raise TypeError(
            f"the agent function {name} has a `yield`, so calling it runs none of its code: write "
            f"`return` in its place. Events of its progress: on_event= and RunHandle.events"
        )
    try:
        signature = inspect.signature(agent_fn)
    except (TypeError, ValueError):  # a builtin function without a signature
        return
    try:
        signature.bind(None)
    except TypeError:
        what = f"({', '.join(signature.parameters)})" if signature.parameters else "none"
        raise TypeError(
            f"the agent function is called with the run alone, as in `def agent(run)`, and the "
            f"parameters of {name} are {what}. What else it needs: the task is "
            "run.task, and functools.partial(agent, client=...) gives it more"
        ) from None


def check_result(agent_fn: Callable[..., Any], result: Any) -> Any:
    """The result of a plain agent function; TypeError for one that should have been awaited."""
    if not inspect.isawaitable(result):
        return result
    if inspect.iscoroutine(result):
        result.close()
    name = function_name(agent_fn)
    raise TypeError(
        f"the agent function {name} is no `async def`, and returned what has to be awaited. Write "
        f"`async def {name}(run): return await ...`. Nothing of that was executed."
    )
