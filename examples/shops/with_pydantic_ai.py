"""The shop of ``make demo WITH=pydantic-ai``."""

from __future__ import annotations

from typing import Any

import bank
from pydantic_ai import Agent, Tool
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from recovery import RecoverableAgent
from recovery.integrations.pydantic_ai import EventLogDurability, recoverable


def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Stands for a model, and needs no network."""
    turn = sum(isinstance(one, ModelResponse) for one in messages)
    if turn == len(bank.TURNS):
        return ModelResponse([TextPart(bank.ANSWER)])
    calls = enumerate(bank.TURNS[turn])
    return ModelResponse([ToolCallPart(name, given, f"{turn}-{at}") for at, (name, given) in calls])


async def price(item: str) -> int:
    """The price of an item in cents."""
    return bank.PRICES[item]


async def pay(cents: int, to: str) -> str:
    """Pay."""
    return bank.pay(cents, to)


tools = [Tool(one, metadata={"recovery": bank.POLICIES[one.__name__]}) for one in (price, pay)]
agent = Agent(FunctionModel(model), name="shop", tools=tools, capabilities=[EventLogDurability()])
shop: RecoverableAgent[Any] = recoverable(agent, bank.STORE)
