"""Doubles of Hive's AgentLoop, NodeConversation and FileConversationStore (August 2026),
and of 0.8.0: EventLoopNode, and a store that has no partials, run ids or ``clear``.

By their signatures, and faithful where Hive loses something: results of a batch are saved when all
of it has run, a conversation whose meta.json cannot be read is cleared, a part that cannot be read
is dropped, and a call without a result is shown to the model as an error. A result that does not
follow the message that asks for it is brought there, and in 0.8.0 not seen. 0.8.0 looks for the
messages of a node by its phase, which it writes in continuous mode only, and each message takes
out of the cursor all else that was in it. They know of nothing recorded.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

INTERRUPTED = "ERROR: Tool execution was interrupted."


@dataclass
class ToolUse:
    id: str
    name: str
    input: dict[str, Any]


@dataclass
class ToolResult:
    tool_use_id: str
    content: str
    is_error: bool = False
    image_content: list[dict[str, Any]] | None = None
    is_skill_content: bool = False
    spillover_path: str | None = None


@dataclass
class AgentContext:
    llm: Any
    run_id: str = "run-1"
    agent_id: str = "worker"
    runtime: Any = None
    agent_spec: Any = None
    available_tools: list[Any] = field(default_factory=list)
    continuous_mode: bool = False


@dataclass
class AgentResult:
    success: bool
    output: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    next_node: str | None = None
    conversation: Any = None


class ConversationStore(Protocol):
    async def write_part(self, seq: int, data: dict[str, Any]) -> None: ...
    async def read_parts(self) -> list[dict[str, Any]]: ...
    async def write_meta(self, data: dict[str, Any]) -> None: ...
    async def read_meta(self) -> dict[str, Any] | None: ...
    async def write_cursor(self, data: dict[str, Any]) -> None: ...
    async def read_cursor(self) -> dict[str, Any] | None: ...
    async def delete_parts_before(self, seq: int, run_id: str | None = None) -> None: ...
    async def write_partial(self, seq: int, data: dict[str, Any]) -> None: ...
    async def read_partial(self, seq: int) -> dict[str, Any] | None: ...
    async def read_all_partials(self) -> list[dict[str, Any]]: ...
    async def clear_partial(self, seq: int) -> None: ...
    async def close(self) -> None: ...
    async def destroy(self) -> None: ...


class FileConversationStore:
    def __init__(self, base_path: str | Path) -> None:
        self._base = Path(base_path)

    def _path(self, kind: str, seq: int) -> Path:
        return self._base / kind / f"{seq:010d}.json"

    def _write(self, path: Path, data: dict[str, Any]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".tmp").write_text(json.dumps(data))
        path.with_suffix(".tmp").replace(path)

    def _read(self, path: Path) -> Any:
        try:
            return json.loads(path.read_text())
        except (FileNotFoundError, ValueError):
            return None

    def _read_all(self, kind: str) -> list[dict[str, Any]]:
        found = [self._read(path) for path in sorted((self._base / kind).glob("*.json"))]
        return [one for one in found if one is not None]

    async def write_part(self, seq: int, data: dict[str, Any]) -> None:
        self._write(self._path("parts", seq), data)

    async def read_parts(self) -> list[dict[str, Any]]:
        return self._read_all("parts")

    async def write_meta(self, data: dict[str, Any]) -> None:
        self._write(self._base / "meta.json", data)

    async def read_meta(self) -> dict[str, Any] | None:
        return self._read(self._base / "meta.json")

    async def write_cursor(self, data: dict[str, Any]) -> None:
        self._write(self._base / "cursor.json", data)

    async def read_cursor(self) -> dict[str, Any] | None:
        return self._read(self._base / "cursor.json")

    async def write_partial(self, seq: int, data: dict[str, Any]) -> None:
        self._write(self._path("partials", seq), data)

    async def read_partial(self, seq: int) -> dict[str, Any] | None:
        return self._read(self._path("partials", seq))

    async def read_all_partials(self) -> list[dict[str, Any]]:
        return self._read_all("partials")

    async def clear_partial(self, seq: int) -> None:
        self._path("partials", seq).unlink(missing_ok=True)

    async def delete_parts_before(self, seq: int, run_id: str | None = None) -> None:
        for path in (self._base / "parts").glob("*.json"):
            if int(path.stem) < seq:
                path.unlink()

    async def close(self) -> None:
        pass

    async def clear(self) -> None:  # not in the protocol
        for path in [*self._base.glob("*.json"), *self._base.glob("*/*.json")]:
            path.unlink()

    async def destroy(self) -> None:
        shutil.rmtree(self._base, ignore_errors=True)


class NodeConversation:
    hoists = True  # results to where they were asked for

    def __init__(self, store: Any, run_id: str | None, phase_id: str | None) -> None:
        self._store, self._run_id, self._phase_id = store, run_id, phase_id
        self.messages: list[dict[str, Any]] = []
        self.next_seq = 0
        self._meta_persisted = False

    @classmethod
    async def restore(
        cls, store: Any, run_id: str | None = None, phase_id: str | None = None
    ) -> NodeConversation | None:
        meta = await store.read_meta()
        if meta is None:
            return None
        found = cls(store, run_id, None)
        found._meta_persisted = True
        found.messages = cls._chosen(await store.read_parts(), run_id, phase_id)
        cursor = await store.read_cursor() or {}
        found.next_seq = cursor.get(
            "next_seq", found.messages[-1]["seq"] + 1 if found.messages else 0
        )
        for partial in await cls._partials(store):
            if partial["seq"] < found.next_seq:
                await store.clear_partial(partial["seq"])
            elif partial.get("run_id") == run_id:
                found.messages.append({**partial, "truncated": True})
                found.next_seq = partial["seq"] + 1
        return found

    @classmethod
    def _chosen(cls, parts: list[Any], run_id: str | None, phase_id: str | None) -> list[Any]:
        if any(part.get("phase_id") is not None for part in parts) and phase_id is not None:
            parts = [part for part in parts if part.get("phase_id") == phase_id]
        return [part for part in parts if run_id is None or part.get("run_id") == run_id]

    @classmethod
    async def _partials(cls, store: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = await store.read_all_partials()
        return found

    async def _cursor(self) -> dict[str, Any]:
        return await self._store.read_cursor() or {}

    async def add(self, role: str, content: str, **more: Any) -> None:
        said = {name: value for name, value in more.items() if value}
        message = {
            "seq": self.next_seq,
            "role": role,
            "content": content,
            **{name: value for name, value in self._whose().items() if value is not None},
            **said,
        }
        self.messages.append(message)
        self.next_seq += 1
        if not self._meta_persisted:
            await self._store.write_meta({"system_prompt": "do it", "output_keys": None})
            self._meta_persisted = True
        await self._store.write_part(message["seq"], message)
        await self._store.write_cursor({**await self._cursor(), "next_seq": self.next_seq})
        await self._clear_partial(message["seq"])

    def _whose(self) -> dict[str, str | None]:
        return {"phase_id": self._phase_id, "run_id": self._run_id}

    async def _clear_partial(self, seq: int) -> None:
        await self._store.clear_partial(seq)

    async def checkpoint_partial(self, content: str, tool_calls: list[dict[str, Any]]) -> None:
        await self._store.write_partial(
            self.next_seq,
            {
                "seq": self.next_seq,
                "role": "assistant",
                "content": content,
                "truncated": True,
                "phase_id": self._phase_id,
                "run_id": self._run_id,
                "tool_calls": tool_calls,
            },
        )

    async def compact(self, keep_recent: int) -> None:
        recent = self.messages[-keep_recent:]
        summary = {
            "seq": recent[0]["seq"] - 1,
            "role": "user",
            "content": "(summary)",
            "phase_id": self._phase_id,
            "run_id": self._run_id,
        }
        await self._store.delete_parts_before(recent[0]["seq"])
        await self._store.write_part(summary["seq"], summary)
        self.messages = [summary, *recent]

    def to_llm_messages(self) -> list[dict[str, Any]]:
        """Each message, results behind what asks for them; errors for those that are not there."""
        shown: list[dict[str, Any]] = []
        for at, message in enumerate(self.messages):
            if message["role"] == "tool":
                continue
            calls = message.get("tool_calls", [])
            shown.append(
                {"role": message["role"], "content": message["content"], "tool_calls": calls}
            )
            results: dict[str, str] = {}
            for later in self.messages[at + 1 :]:
                if later["role"] == "tool":
                    prefix = "ERROR: " if later.get("is_error") else ""
                    results.setdefault(later["tool_use_id"], prefix + later["content"])
                elif not self.hoists or later.get("tool_calls"):
                    break
            for one in calls:
                said = results.get(one["id"], INTERRUPTED)
                shown.append({"role": "tool", "tool_call_id": one["id"], "content": said})
        return shown


ToolExecutor = Callable[[ToolUse], "ToolResult | Awaitable[ToolResult]"]


async def _answer(ctx: Any, messages: list[dict[str, Any]]) -> tuple[str, list[ToolUse]]:
    if not hasattr(ctx.llm, "stream"):
        found: tuple[str, list[ToolUse]] = ctx.llm.answer(messages)
        return found
    text, asked = "", list[ToolUse]()
    async for event in ctx.llm.stream(messages=messages, system="", tools=ctx.available_tools):
        if event.type == "text_delta":
            text = event.snapshot
        elif event.type == "tool_call":
            asked.append(ToolUse(event.tool_use_id, event.tool_name, event.tool_input))
    return text, asked


class AgentLoop:
    """``AgentLoop(event_bus, judge, config, tool_executor, conversation_store)``."""

    conversation_type: type[NodeConversation] = NodeConversation

    def __init__(
        self,
        event_bus: Any = None,
        judge: Any = None,
        config: Any = None,
        tool_executor: ToolExecutor | None = None,
        conversation_store: Any = None,
    ) -> None:
        self._tool_executor, self._store = tool_executor, conversation_store
        self._config = config if isinstance(config, dict) else {}
        self.said = ""
        self.inject: list[str] = []  # what users say between the model's message and the tools
        self.conversation: NodeConversation | None = None

    async def execute(self, ctx: Any) -> AgentResult:
        conversation = await self._restored(ctx)
        for iteration in range((await self._cursor()).get("iteration", -1) + 1, 100):
            content, asked = await _answer(ctx, conversation.to_llm_messages())
            if not asked:
                await conversation.add("assistant", content)
                self.said = content
                return AgentResult(True, conversation=conversation)
            await self._turn(conversation, content, asked)
            await self._store.write_cursor({**await self._cursor(), "iteration": iteration})
        raise AssertionError("too many iterations")

    async def inject_event(self, content: str) -> None:
        self.inject.append(content)

    def validate_input(self, ctx: Any) -> list[str]:
        return []

    async def _cursor(self) -> dict[str, Any]:
        return await self._store.read_cursor() or {}

    async def _restored(self, ctx: Any) -> Any:
        run_id, phase = ctx.run_id or None, None if ctx.continuous_mode else ctx.agent_id
        found = await self.conversation_type.restore(self._store, run_id, phase)
        if found is None or not found.messages:
            found = await self._begun(ctx, found)
            await found.add("user", "do all of it")
        self.conversation = found
        return found

    async def _begun(self, ctx: Any, found: Any) -> Any:
        await self._store.clear()
        return self.conversation_type(self._store, ctx.run_id or None, None)

    async def _turn(
        self, conversation: NodeConversation, content: str, asked: list[ToolUse]
    ) -> None:
        calls = [
            {
                "id": use.id,
                "type": "function",
                "function": {"name": use.name, "arguments": json.dumps(use.input)},
            }
            for use in asked
        ]
        early: dict[str, asyncio.Task[ToolResult]] = {}
        if self._config.get("early"):  # tools that may run beside others, while the model speaks
            for i, use in enumerate(asked):
                await conversation.checkpoint_partial(content, calls[: i + 1])
                early[use.id] = asyncio.create_task(self._run(use))
            await asyncio.wait(early.values())
            for task in early.values():
                task.result()
        await conversation.add("assistant", content, tool_calls=calls)
        for said in self.inject:
            await conversation.add("user", said)
        self.inject = []
        results = await asyncio.gather(
            *(early[use.id] if use.id in early else self._run(use) for use in asked)
        )
        for result in results:  # when all of them have run, and not before
            await conversation.add(
                "tool",
                result.content,
                tool_use_id=result.tool_use_id,
                is_error=result.is_error,
                image_content=result.image_content,
                spillover_path=result.spillover_path,
            )

    async def _run(self, use: ToolUse) -> ToolResult:
        assert self._tool_executor is not None
        try:
            loop = asyncio.get_running_loop()
            found = await loop.run_in_executor(None, self._tool_executor, use)
            return await found if inspect.isawaitable(found) else found
        except Exception as exc:
            return ToolResult(use.id, str(exc), is_error=True)
