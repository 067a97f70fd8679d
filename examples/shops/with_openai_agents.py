"""The shop of ``make demo WITH=openai-agents``."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import bank
from agents import Agent, Model, ModelResponse, Usage, function_tool, set_trace_processors
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)

from recovery import RecoverableAgent, Run, tool
from recovery.integrations.openai_agents import Runner


class Offline(Model):
    """Stands for a model, and needs no network."""

    async def get_response(
        self, system_instructions: str | None, input: Any, *args: Any, **kwargs: Any
    ) -> ModelResponse:
        answered = 0 if isinstance(input, str) else sum("output" in one for one in input)
        turn = answered // 2  # each turn has two calls
        output: list[Any] = [
            ResponseFunctionToolCall(
                arguments=json.dumps(given), call_id=f"{turn}-{at}", name=name, type="function_call"
            )
            for at, (name, given) in enumerate(bank.TURNS[turn] if turn < len(bank.TURNS) else [])
        ]
        if not output:
            text = ResponseOutputText(annotations=[], text=bank.ANSWER, type="output_text")
            message = {"id": "1", "role": "assistant", "status": "completed", "type": "message"}
            output = [ResponseOutputMessage(content=[text], **message)]
        return ModelResponse(output=output, usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        raise NotImplementedError


@function_tool
@tool(**bank.POLICIES["price"])
async def price(item: str) -> int:
    """The price of an item in cents."""
    return bank.PRICES[item]


@function_tool
@tool(**bank.POLICIES["pay"])
async def pay(cents: int, to: str) -> str:
    """Pay."""
    return bank.pay(cents, to)


async def sell(run: Run) -> str:
    """The agent function: what it calls is recorded."""
    result = await Runner.run(agent, run.task)
    return str(result.final_output)


set_trace_processors([])  # else the SDK sends traces to OpenAI
agent = Agent("clerk", instructions="Serve.", model=Offline(), tools=[price, pay])
shop = RecoverableAgent(sell, bank.STORE)
