"""Wraps the tool executor of an AgentLoop: each call is recorded in a journal."""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

from recovery import Call, OutcomeUnknown, ToolError, tool
from recovery.call_journal import CallJournal, FinishedCall
from recovery.integrations.hive.plain import fields_of, made, packable, plain, type_beside

PASSED = ("probe_for_tool", "kill_for_tool")  # what an executor may have, and Hive then uses


@dataclass(slots=True)
class ToolUse:
    """A call that is made again, as Hive's executors see it."""

    id: str
    name: str
    input: dict[str, Any]


class RecordedTools:
    """In the place of Hive's tool executor; for any thread, and for many at once.

    The intent is durable before the tool starts, and the result before the loop has it. A call that
    is asked for again by the same id, tool and input, before the conversation has its result, is
    served it. What the wrapped executor raises is recorded, and raised.
    """

    def __init__(
        self, journal: CallJournal, executor: Callable[[Any], Any], policy: Callable[[str], Any]
    ) -> None:
        """Not for users: see ``RecordedLoop``."""
        self._journal, self._executor, self._policy = journal, executor, policy
        self._use: ContextVar[Any] = ContextVar("tool_use")
        self._tools: dict[str, Callable[..., Any]] = {}
        for name in PASSED:
            if hasattr(executor, name):
                setattr(self, name, getattr(executor, name))

    def __call__(self, tool_use: Any) -> Any:
        """A ToolResult, or an awaitable of one, as the wrapped executor returns it."""
        given = tool_use.input
        given = dict(plain(given)) if isinstance(given, Mapping) else {"input": plain(given)}
        token = self._use.set(tool_use)
        try:
            function, given = self.function(tool_use.name, given)
            found = self._journal.start(function, **given, call_id=tool_use.id)
        finally:
            self._use.reset(token)
        return (
            self._awaited(found, tool_use)
            if inspect.isawaitable(found)
            else _result(found, tool_use)
        )

    async def again(self, call: Call) -> None:
        """Not for users: makes a call of an earlier process again, or decides it, as its policy
        says."""
        token = self._use.set(ToolUse(call.call_id, call.tool, call.kwargs))
        try:
            function, given = self.function(call.tool, call.kwargs)
            await self._journal.call(function, **given, call_id=call.call_id)
        finally:
            self._use.reset(token)

    def function(
        self, name: str, given: dict[str, Any]
    ) -> tuple[Callable[..., Any], dict[str, Any]]:
        """Not for users: the function that the journal calls for a tool, and its arguments."""
        found = self._tools.get(name)
        if found is None:
            policy = self._policy(name)
            found = self._tools[name] = with_policy(policy, name=name)(self._executed())
        if "call_id" in given:  # an argument of the tool, and none of the journal's
            return partial(found, **given), {}
        return found, given

    def _executed(self) -> Callable[..., Any]:
        def executed(**given: Any) -> Any:
            found = self._executor(self._use.get())
            return _recordable_later(found) if inspect.isawaitable(found) else _recordable(found)

        return executed

    async def _awaited(self, coming: Awaitable[Any], tool_use: Any) -> Any:
        return _result(await coming, tool_use)


def with_policy(policy: Any, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """``tool`` with a policy of Hive's tools. A loop that cancels a call continues without it."""
    how = {"reconcile": policy} if callable(policy) else {"after_crash": policy}
    return tool(**how, **options, on_timeout="fail")


async def _recordable_later(coming: Awaitable[Any]) -> dict[str, Any]:
    return _recordable(await coming)


def _recordable(result: Any) -> dict[str, Any]:
    # What cannot be recorded is recorded in words: the tool has done what it did.
    held = fields_of(result).items()
    return {name: value if packable(value) else plain(value) for name, value in held}


def _result(value: Any, tool_use: Any) -> Any:
    kind = type_beside(type(tool_use), "ToolResult")
    return made(kind, {"tool_use_id": tool_use.id, **_fields(value)})


def outcome_of(call: FinishedCall) -> dict[str, Any]:
    """The outcome of a call that is over: the fields of a ToolResult, except the id."""
    if call.error is None:
        return _fields(call.value)
    text = str(call.error)
    if not isinstance(call.error, ToolError):
        text = f"{type(call.error).__name__}: {text}"
    return {"content": text, "is_error": True}


def _fields(value: Any) -> dict[str, Any]:
    if isinstance(value, dict) and "content" in value:
        return {name: one for name, one in value.items() if name != "tool_use_id"}
    if isinstance(value, OutcomeUnknown):
        return {"content": str(value), "is_error": True}
    return {"content": value if isinstance(value, str) else json.dumps(plain(value))}
