"""Records the tools of the Claude Agent SDK: ``pip install 'agent-eventlog[claude-agent]'``.

The loop of this SDK is in another program, the Claude Code CLI, which keeps the conversation. Tools
of the user's own are executed here, and recorded whole. Built-in tools are executed there: hooks
record their intents and outcomes. See docs/claude-agent.md.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal, TypeVar

from recovery import tool
from recovery.call_journal import CallJournal
from recovery.integrations.versions import check_version

check_version("claude-agent-sdk", "0.2.186", extra="claude-agent")

from claude_agent_sdk import (  # noqa: E402 - its version first
    ClaudeAgentOptions,
    HookMatcher,
    McpSdkServerConfig,
    SdkMcpTool,
    ToolResultBlock,
    UserMessage,
    create_sdk_mcp_server,
    get_session_messages,
)

__all__ = ["READ_ONLY", "RecordedTools", "known_results"]

READ_ONLY = frozenset(
    "BashOutput Glob Grep ListMcpResourcesTool LS NotebookRead Read ReadMcpResourceTool TaskOutput "
    "TodoWrite ToolSearch WebFetch WebSearch".split()
)
"""Built-in tools without an effect outside: nothing of them is recorded."""

AfterCrash = Literal["park", "retry", "report"]
M = TypeVar("M")


@dataclass(slots=True, eq=False)
class _BuiltIn:
    """A call of a built-in tool, which the CLI executes."""

    began: asyncio.Future[None]
    result: asyncio.Future[Any]
    recording: asyncio.Task[Any] = field(init=False)


_present: ContextVar[_BuiltIn] = ContextVar("recovery_claude_built_in")
_use_id: ContextVar[str] = ContextVar("recovery_claude_use", default="")  # of an own tool
USE_ID = "claudecode/toolUseId"  # in the `_meta` of a request


class RecordedTools:
    """Records the tools of Claude sessions in a journal of calls.

    ``journal``: the open CallJournal. Give it ``known=known_results(session_id)`` when a session is
    resumed. ``after_crash``: what becomes of built-in tools that a crash interrupted, for all or by
    name: "park" (the journal stops when Claude asks for an equal call) or "retry". Those of your
    own tools are their ``@recovery.tool``'s. ``unrecorded``: built-in tools that are not recorded.

    Needs an event loop of asyncio. One object may serve several sessions of one journal.
    """

    def __init__(
        self,
        journal: CallJournal,
        *,
        after_crash: AfterCrash | Mapping[str, AfterCrash] = "park",
        unrecorded: frozenset[str] = READ_ONLY,
    ) -> None:
        self._journal, self._after_crash, self._unrecorded = journal, after_crash, unrecorded
        self._built_in: dict[str, _BuiltIn] = {}  # in flight, by the id of the tool use
        self._own: set[str] = set()  # names of own tools, as the CLI has them
        self._ids: dict[
            tuple[str, str], deque[str]
        ] = {}  # of own tools that are about to be called

    def server(
        self, name: str, tools: Sequence[SdkMcpTool[Any]], version: str = "1.0.0"
    ) -> McpSdkServerConfig:
        """``create_sdk_mcp_server``, with the calls of these tools recorded.

        ``name`` has to be the server's name in ``ClaudeAgentOptions.mcp_servers``, too. A handler
        in ``tools`` may be a ``@recovery.tool``, whose options then hold. ``version``: of the
        server, as the SDK takes it ("1.0.0").
        """
        made = [replace(one, handler=self._handler(name, one)) for one in tools]
        config = create_sdk_mcp_server(name, version, made)
        with suppress(AttributeError):  # of mcp 1, which has no middleware
            config["instance"].middleware.append(_with_use_id)
        return config

    def options(self, options: ClaudeAgentOptions) -> ClaudeAgentOptions:
        """``options`` with hooks that record; those that are there stay, after these."""
        ours: dict[Any, Callable[..., Any]] = {
            "PreToolUse": self.before,
            "PostToolUse": self.after,
            "PostToolUseFailure": self.after_failure,
        }
        hooks: dict[Any, list[HookMatcher]] = {**(options.hooks or {})}
        for event, callback in ours.items():
            matcher = HookMatcher(hooks=[callback], on_failure="block")
            hooks[event] = [matcher, *hooks.get(event, ())]
        return replace(options, hooks=hooks)

    async def watch(self, messages: AsyncIterator[M]) -> AsyncIterator[M]:
        """``messages``, those of ``query`` or ``receive_response``, unchanged.

        A built-in tool that was denied has no hook for that: its result is in these messages. At
        the end, raises what has stopped the journal.
        """
        async for message in messages:
            if isinstance(message, UserMessage) and isinstance(message.content, list):
                for block in message.content:
                    if isinstance(block, ToolResultBlock):
                        await self._not_executed(block)
            yield message
        self._journal.check()

    # -- hooks, as the SDK calls them

    async def before(self, given: Any, tool_use_id: str | None, context: Any) -> dict[str, Any]:
        """PreToolUse: the intent is durable when this returns; else the tool is not executed."""
        name, args, call_id = given["tool_name"], given["tool_input"], given["tool_use_id"]
        if stopped := self._stopped():
            return _deny(stopped, ends=True)
        if name in self._own:
            self._ids.setdefault((name, _text(args)), deque()).append(call_id)
            return {}
        if name in self._unrecorded:
            return {}
        call = self._begin(name, args, call_id)
        await asyncio.wait((call.recording, call.began), return_when=asyncio.FIRST_COMPLETED)
        if call.began.done():
            return {}
        del self._built_in[call_id]
        try:
            result = await call.recording
        except Exception as exc:
            result = exc
        except BaseException as exc:
            return _deny(self._stop(exc), ends=True)
        return _deny(f"This was executed already, before a crash. Its result: {_text(result)}")

    async def after(self, given: Any, tool_use_id: str | None, context: Any) -> dict[str, Any]:
        """PostToolUse: the outcome is durable when this returns."""
        return await self._ended(given["tool_use_id"], given["tool_response"], None)

    async def after_failure(
        self, given: Any, tool_use_id: str | None, context: Any
    ) -> dict[str, Any]:
        """PostToolUseFailure: as ``after``. An interrupted tool stays in doubt."""
        if given.get("is_interrupt"):
            return {}
        return await self._ended(given["tool_use_id"], None, RuntimeError(given["error"]))

    # -- built-in tools

    def _begin(self, name: str, args: Any, call_id: str) -> _BuiltIn:
        loop = asyncio.get_running_loop()
        call = _BuiltIn(loop.create_future(), loop.create_future())
        policy = self._after_crash
        after_crash = policy if isinstance(policy, str) else policy.get(name, "park")
        token = _present.set(call)
        try:
            made = self._journal.call(_tool_named(name, after_crash), args, call_id=call_id)
            call.recording = loop.create_task(made)
        finally:
            _present.reset(token)
        self._built_in[call_id] = call
        return call

    async def _ended(self, call_id: str, result: Any, error: Exception | None) -> dict[str, Any]:
        call = self._built_in.pop(call_id, None)
        if call is not None:
            if error is None:
                call.result.set_result(result)
            else:
                call.result.set_exception(error)
            await asyncio.wait((call.recording,))
            raised = call.recording.exception()
            if raised is not None and not isinstance(raised, Exception):
                self._stop(raised)
        if stopped := self._stopped():
            return {"continue_": False, "stopReason": stopped}
        return {}

    async def _not_executed(self, block: ToolResultBlock) -> None:
        """The CLI has a result, and called no hook: it did not execute the tool."""
        self._forget_use(block.tool_use_id)
        error = RuntimeError(f"not executed: {_text(block.content)}")
        await self._ended(block.tool_use_id, None, error)

    # -- own tools

    def _forget_use(self, call_id: str) -> None:
        for key, ids in list(self._ids.items()):
            if call_id in ids:
                ids.remove(call_id)
                if not ids:
                    del self._ids[key]

    def _handler(self, server: str, made: SdkMcpTool[Any]) -> Callable[[Any], Any]:
        name = f"mcp__{server}__{made.name}"
        self._own.add(name)

        async def handler(args: Any) -> dict[str, Any]:
            # A CLI that does not tell the id tells the order. It is not enough: a use that was
            # denied is among them until `watch` sees its result.
            call_id = _use_id.get() or next(iter(self._ids.get((name, _text(args)), ())), "")
            self._forget_use(call_id)
            try:
                result: Any = await self._journal.call(made.handler, args, call_id=call_id)
            except (Exception, asyncio.CancelledError, KeyboardInterrupt, SystemExit):
                raise
            except BaseException as exc:  # what stops the journal must not stop the SDK's server
                return _content(self._stop(exc), is_error=True)
            # A person may have resolved the call with a plain value.
            return result if isinstance(result, dict) and "content" in result else _content(result)

        return handler

    # -- what stops the journal

    def _stop(self, exc: BaseException) -> str:
        if isinstance(exc, asyncio.CancelledError | KeyboardInterrupt | SystemExit):
            raise exc
        return self._stopped() or str(exc)

    def _stopped(self) -> str:
        """Why nothing more may be executed; "" when it may."""
        try:
            self._journal.check()
        except Exception as exc:
            return f"The journal of calls has stopped: {exc}"
        return ""


async def _with_use_id(context: Any, call_next: Callable[[Any], Awaitable[Any]]) -> Any:
    """Middleware of an MCP server: the id of the use that a request is."""
    found = ((context.params or {}).get("_meta") or {}).get(USE_ID)
    token = _use_id.set(found if isinstance(found, str) else "")
    try:
        return await call_next(context)
    finally:
        _use_id.reset(token)


def known_results(session_id: str, directory: str | None = None) -> list[str]:
    """The ids of the tool uses whose results the transcript of session ``session_id`` holds.

    ``directory``: of the project, as of ``get_session_messages``. Empty when there is no such
    session.
    """
    return [
        block["tool_use_id"]
        for message in get_session_messages(session_id, directory)
        if isinstance(content := _content_of(message.message), list)
        for block in content
        if isinstance(block, dict) and block.get("type") == "tool_result"
    ]


def _content_of(message: Any) -> Any:
    return message.get("content") if isinstance(message, dict) else None


async def _executed(args: Any) -> Any:
    """Stands for a built-in tool: the intent is durable now, and the result comes by a hook."""
    call = _present.get()
    call.began.set_result(None)
    return await call.result


@lru_cache(256)
def _tool_named(name: str, after_crash: AfterCrash) -> Callable[..., Any]:
    return tool(name=name, after_crash=after_crash)(_executed)


def _deny(reason: str, *, ends: bool = False) -> dict[str, Any]:
    denied: dict[str, Any] = {
        "hookSpecificOutput": {
            "hookEventName": "PreToolUse",
            "permissionDecision": "deny",
            "permissionDecisionReason": reason,
        }
    }
    return {**denied, "continue_": False, "stopReason": reason} if ends else denied


def _content(value: Any, is_error: bool = False) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": _text(value)}], "is_error": is_error}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
