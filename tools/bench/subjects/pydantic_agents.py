"""Agents of Pydantic AI that call one tool for each request to a model, which needs no network."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from .paced import result_of


class Without:
    """Pydantic AI alone. A turn is a run of the agent, with so many calls of the tool."""

    def __init__(self, directory: Path, case: dict[str, Any]) -> None:
        self._directory, self._size = directory, case["size"]
        self._calls, self._made, self._runs = 0, list[float](), 0
        self._loop = asyncio.new_event_loop()
        self._loop.run_until_complete(self.begin())

    def turn(self, count: int) -> list[float]:
        self._calls, self._made = count, []
        self._runs += 1
        self._loop.run_until_complete(self.run(f"run-{self._runs}"))
        if len(self._made) != count + 1:
            raise RuntimeError(f"{len(self._made)} requests were made, not {count + 1}")
        return [end - began for began, end in zip(self._made, self._made[1:], strict=False)]

    async def begin(self) -> None:
        self._agent = self.agent()
        self._agent.tool_plain(self.tool())

    def agent(self, *capabilities: Any) -> Any:
        return Agent(FunctionModel(self._ask), name="bench", capabilities=[*capabilities])

    def tool(self) -> Any:
        async def work(number: int) -> str:
            return result_of(number, self._size)

        return work

    async def run(self, name: str) -> None:
        await self._agent.run("go")

    async def _ask(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self._made.append(time.perf_counter())
        number = len(self._made)
        if number > self._calls:
            return ModelResponse([TextPart("done")])
        return ModelResponse([ToolCallPart("work", {"number": number}, f"call-{number}")])
