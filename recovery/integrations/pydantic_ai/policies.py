"""Checks what users say about calls of a tool, in its metadata."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict

from pydantic_ai import FunctionToolset
from pydantic_ai.exceptions import UserError
from pydantic_ai.toolsets import AbstractToolset

from recovery import Retry, Usage
from recovery.integrations.framework_calls import checked as checked_options

KEY = "recovery"  # of a policy in the metadata of a tool
RETRY = {"after_crash": "retry"}


class ToolPolicy(TypedDict, total=False):
    """What happens to calls of one tool; each option as in ``recovery.tool``.

    In the metadata of the tool: ``metadata={"recovery": ToolPolicy(after_crash="retry")}``. For
    tools of MCP servers and other toolsets: ``SetToolMetadata(tools=[...], recovery=...)``.
    """

    after_crash: Literal["park", "retry", "report"]
    reconcile: Callable[..., Any]
    retry: Retry | int
    timeout_s: float
    on_timeout: Literal["in_doubt", "fail"]
    raises: Sequence[type[Exception]]
    undo: Callable[..., Any]
    usage: Callable[[Any], Usage]


_ELSEWHERE = {
    "needs_approval": "use requires_approval=True of the tool",
    "approval_timeout_s": "use EventLogDurability(approval_timeout_s=...)",
    "redact": "the requests to the model have the arguments, too; encrypt the store",
}


def checked(given: object, where: str, name: str) -> dict[str, Any]:
    """The policy of tool ``name``, given in ``where``; UserError, TypeError or ValueError says what
    is wrong in it."""
    if not isinstance(given, Mapping):
        raise UserError(f"{where} is a ToolPolicy, not {given!r:.80}")
    known = ToolPolicy.__annotations__
    for option in given:
        if option in _ELSEWHERE:
            raise UserError(f"{where}: {option}= is none of ToolPolicy: {_ELSEWHERE[option]}")
        if option not in known:
            raise UserError(f"{where}: no option {option!r}; there are {', '.join(known)}")
    return checked_options(name, given)  # raises what else is wrong


def check_toolset(toolset: AbstractToolset[Any]) -> None:
    """Check the policies of all tools that a toolset has already."""
    if isinstance(toolset, FunctionToolset):
        for name, one in toolset.tools.items():
            policy_of(one.metadata, name)


def policy_of(metadata: Mapping[str, Any] | None, name: str) -> dict[str, Any] | Literal[False]:
    """The policy in the metadata of a tool; False for one whose calls are not recorded."""
    given = (metadata or {}).get(KEY, {})
    if given is False:
        return False
    return checked(given, f"metadata[{KEY!r}] of tool {name}", name)
