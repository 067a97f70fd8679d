"""Pydantic AI with our integration."""

from __future__ import annotations

from typing import Any

from recovery import RecoverableAgent
from recovery.integrations.pydantic_ai import EventLogDurability, recoverable

from .pydantic_agents import Without


class Ours(Without):
    """In the default settings: the tool is a side effect, with an intent that is durable before."""

    async def begin(self) -> None:
        self._agent = self.agent(EventLogDurability())
        self._agent.tool_plain(self.tool())
        self._recoverable: RecoverableAgent[Any] = recoverable(
            self._agent, self._directory / "runs"
        )

    async def run(self, name: str) -> None:
        await self._recoverable.run_with_recovery("go", name)
