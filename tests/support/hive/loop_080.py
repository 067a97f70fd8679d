"""Doubles of what Hive 0.8.0 has otherwise than `loop`, under the names that it has there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.hive import loop as hive_loop
from tests.support.hive.loop import AgentLoop


class FileConversationStore:
    """Of 0.8.0."""

    def __init__(self, base_path: str | Path) -> None:
        self._real = hive_loop.FileConversationStore(base_path)
        for name in (
            "write_part read_parts write_meta read_meta write_cursor read_cursor close destroy"
        ).split():
            setattr(self, name, getattr(self._real, name))

    async def delete_parts_before(self, seq: int) -> None:
        await self._real.delete_parts_before(seq)


class NodeConversation(hive_loop.NodeConversation):
    """Of 0.8.0."""

    hoists = False

    @classmethod
    def _chosen(cls, parts: list[Any], run_id: str | None, phase_id: str | None) -> list[Any]:
        return [part for part in parts if phase_id is None or part.get("phase_id") == phase_id]

    @classmethod
    async def _partials(cls, store: Any) -> list[dict[str, Any]]:
        return []

    async def _cursor(self) -> dict[str, Any]:
        return {}

    async def _clear_partial(self, seq: int) -> None:
        pass


class EventLoopNode(AgentLoop):
    """Of 0.8.0: there is nothing that it clears, and what it cannot find it begins again."""

    conversation_type = NodeConversation

    async def _begun(self, ctx: Any, found: Any) -> Any:
        phase = ctx.agent_id if ctx.continuous_mode else None
        return found or self.conversation_type(self._store, None, phase)
