"""A Claude Code CLI for tests: speaks the SDK's protocol, and has a script in place of a model.

It keeps a transcript in a file, as the CLI does, and asks again for each use of a tool that has no
result there: under another id, as a model does.
"""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
from claude_agent_sdk import Transport

Use = tuple[str, dict[str, Any]]
DENIED = "the user does not permit it"


class FakeClaude(Transport):
    """``script``: turns, each a list of tool uses, made in parallel. ``denies``: tools that the
    user does not permit, each once. ``tells_ids``: whether requests say of which use they are."""

    def __init__(
        self,
        place: Path,
        script: list[list[Use]],
        *,
        denies: tuple[str, ...] = (),
        fails: tuple[str, ...] = (),
        old: bool = False,
        tells_ids: bool = True,
    ) -> None:
        self._place, self._script, self._old = place, script, old
        self._tells_ids = tells_ids
        self._denies, self._fails = [*denies], fails
        self._hooks: dict[str, list[str]] = {}
        self._send, self._receive = anyio.create_memory_object_stream[dict[str, Any]](1000)
        self._answers: dict[str, tuple[anyio.Event, list[Any]]] = {}
        self._number = 0
        self._ends = False
        self.seen: list[str] = []  # texts of results, as the model sees them

    # -- the transport

    async def connect(self) -> None:
        self._task: asyncio.Task[None] | None = None

    async def write(self, data: str) -> None:
        message = json.loads(data)
        match message["type"]:
            case "control_request":
                await self._control(message)
            case "control_response":
                answer = message["response"]
                event, found = self._answers.pop(answer["request_id"])
                found.append(answer)
                event.set()
            case "user":
                self._task = asyncio.create_task(self._work())

    async def read_messages(self) -> AsyncIterator[dict[str, Any]]:
        async for message in self._receive:
            yield message

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._send.close()
        self._receive.close()

    def is_ready(self) -> bool:
        return True

    async def end_input(self) -> None:
        pass

    # -- the protocol

    async def _control(self, message: dict[str, Any]) -> None:
        request = message["request"]
        if request["subtype"] == "initialize":
            for event, matchers in (request.get("hooks") or {}).items():
                self._hooks[event] = [one for m in matchers for one in m["hookCallbackIds"]]
                assert self._old or all(m["onFailure"] == "block" for m in matchers)
        supported = {} if self._old else {"hook_on_failure_supported": True}
        response = {
            "subtype": "success",
            "request_id": message["request_id"],
            "response": supported,
        }
        await self._send.send({"type": "control_response", "response": response})

    async def _ask(self, request: dict[str, Any]) -> Any:
        self._number += 1
        request_id = f"cli_{self._number}"
        event = anyio.Event()
        found: list[Any] = []
        self._answers[request_id] = event, found
        await self._send.send(
            {"type": "control_request", "request_id": request_id, "request": request}
        )
        await event.wait()
        return found[0]

    async def _hook(self, event: str, use_id: str, **about: Any) -> list[dict[str, Any]]:
        given = {"hook_event_name": event, "tool_use_id": use_id, "session_id": "s", **about}
        answers = []
        for callback in self._hooks.get(event, ()):
            answer = await self._ask(
                {
                    "subtype": "hook_callback",
                    "callback_id": callback,
                    "input": given,
                    "tool_use_id": use_id,
                }
            )
            if answer["subtype"] == "error":  # on_failure="block"
                answers.append({"hookSpecificOutput": {"permissionDecision": "deny"}})
                continue
            answers.append(answer["response"])
            self._ends |= answer["response"].get("continue", True) is False
        return answers

    async def _mcp(self, name: str, args: dict[str, Any], use_id: str) -> tuple[str, bool]:
        _, server, tool = name.split("__")
        start = {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "fake", "version": "1"},
        }
        meta = {"claudecode/toolUseId": use_id} if self._tells_ids else {}
        for method, params in (
            ("initialize", start),
            ("notifications/initialized", {}),
            ("tools/call", {"name": tool, "arguments": args, "_meta": meta}),
        ):
            message: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params}
            if not method.startswith("notifications"):
                self._number += 1
                message["id"] = self._number
            answer = await self._ask(
                {"subtype": "mcp_message", "server_name": server, "message": message}
            )
        result = answer["response"]["mcp_response"]["result"]
        text = "".join(part.get("text", "") for part in result["content"])
        return text, bool(result.get("isError"))

    # -- the work

    async def _work(self) -> None:
        for turn in self._script:
            done = {
                (one["name"], json.dumps(one["input"]))
                for one in transcript(self._place)
                if one["text"] != DENIED
            }
            open_ = [use for use in turn if (use[0], json.dumps(use[1])) not in done]
            ids = [f"toolu_{uuid.uuid4().hex}" for _ in open_]
            await self._send.send(
                self._message(
                    "assistant",
                    [
                        {"type": "tool_use", "id": one, "name": name, "input": args}
                        for one, (name, args) in zip(ids, open_, strict=True)
                    ],
                )
            )
            async with anyio.create_task_group() as group:
                for one, (name, args) in zip(ids, open_, strict=True):
                    group.start_soon(self._use, one, name, args)
            if self._ends:
                break
        await self._send.send(
            {
                "type": "result",
                "subtype": "success",
                "duration_ms": 1,
                "duration_api_ms": 1,
                "is_error": False,
                "num_turns": 1,
                "session_id": "s",
            }
        )
        await anyio.sleep(0.01)
        self._send.close()

    async def _use(self, use_id: str, name: str, args: dict[str, Any]) -> None:
        about = {"tool_name": name, "tool_input": args}
        answers = await self._hook("PreToolUse", use_id, **about)
        said = [one.get("hookSpecificOutput", {}) for one in answers]
        denied = [one for one in said if one.get("permissionDecision") == "deny"]
        if self._ends:
            return
        if denied:
            text, is_error = denied[0].get("permissionDecisionReason", "blocked"), True
        elif name in self._denies:
            self._denies.remove(name)
            text, is_error = DENIED, True
        else:
            if name.startswith("mcp__"):
                text, is_error = await self._mcp(name, args, use_id)
            else:
                text, is_error = self._built_in(name, args), name in self._fails
            if is_error and not name.startswith("mcp__"):
                await self._hook("PostToolUseFailure", use_id, **about, error=text)
            else:
                await self._hook("PostToolUse", use_id, **about, tool_response=text)
        if self._ends:
            return
        self.seen.append(text)
        with (self._place / "transcript").open("a") as file:
            use = {"id": use_id, "name": name, "input": args}
            file.write(json.dumps({**use, "text": text, "is_error": is_error}) + "\n")
        block = {"type": "tool_result", "tool_use_id": use_id, "content": text}
        await self._send.send(self._message("user", [{**block, "is_error": is_error}]))

    def _built_in(self, name: str, args: dict[str, Any]) -> str:
        gives = f"{name} did {args}"
        if name == "Read":  # no effect
            return gives
        line = json.dumps(["", f"{name} {json.dumps(args)}", gives, False]) + "\n"
        file = os.open(self._place / "effects", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, line.encode())
        os.close(file)
        return gives

    @staticmethod
    def _message(kind: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        message = {"role": kind, "content": content, "model": "fake"}
        return {"type": kind, "message": message, "session_id": "s", "parent_tool_use_id": None}


def transcript(place: Path) -> list[dict[str, Any]]:
    """The uses of tools whose results the conversation has, with these results."""
    file = place / "transcript"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
