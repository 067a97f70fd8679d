"""Registers types that models and tools give to a graph; makes an outcome what a graph takes."""

from __future__ import annotations

import functools
import json
from typing import Any

from langchain_core.messages import (
    AIMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langgraph.types import Command, Send

from recovery import ApprovalDeniedError, OutcomeUnknown, register

try:  # of LangChain, which graphs of their own need not have
    from langchain.agents.middleware import AgentMiddleware as Middleware
    from langchain.agents.middleware import ModelResponse
except ImportError:
    ModelResponse = None

    class Middleware:  # type: ignore[no-redef]
        """Stands in for it."""


__all__ = ["Middleware", "ModelResponse", "as_answer"]


def as_answer(found: Any, asked: Any) -> Any:
    """What a ToolNode takes, of what a person or a policy says about a call in doubt, or denied."""
    if isinstance(found, ToolMessage | Command | list):
        return found
    is_error = isinstance(found, OutcomeUnknown | ApprovalDeniedError)
    content = str(found) if is_error or isinstance(found, str) else json.dumps(found, default=str)
    status = "error" if is_error else "success"
    return ToolMessage(content, name=asked["name"], tool_call_id=asked["id"], status=status)


def _message_of(kind: type[Any], fields: dict[str, Any]) -> Any:
    return kind(**fields)


def _goto(where: Any) -> Any:
    return tuple(where) if isinstance(where, list) else where


for _kind in (AIMessage, HumanMessage, RemoveMessage, SystemMessage, ToolMessage):
    register(
        _kind,
        name=f"langchain.{_kind.__name__}",
        encode=lambda message: message.model_dump(exclude_unset=True),
        decode=functools.partial(_message_of, _kind),
    )
register(
    Command,
    name="langgraph.Command",
    encode=lambda one: [one.graph, one.update, one.resume, one.goto],
    decode=lambda held: Command(graph=held[0], update=held[1], resume=held[2], goto=_goto(held[3])),
)
register(
    Send,
    name="langgraph.Send",
    encode=lambda one: [one.node, one.arg],
    decode=lambda held: Send(*held),
)
