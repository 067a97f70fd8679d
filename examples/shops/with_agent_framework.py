"""The shop of ``make demo WITH=agent-framework``."""

from __future__ import annotations

from typing import Any

import bank
from agent_framework import (
    Agent,
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    Content,
    FunctionInvocationLayer,
    Message,
)

from recovery import RecoverableAgent
from recovery.integrations.agent_framework import recorded, recoverable


class Offline(FunctionInvocationLayer, ChatMiddlewareLayer, BaseChatClient):
    """Stands for a model, and needs no network."""

    async def _inner_get_response(
        self, *, messages: Any, stream: bool, options: Any, **kwargs: Any
    ) -> ChatResponse:
        turn = sum(one.role == "assistant" for one in messages)
        if turn == len(bank.TURNS):
            return ChatResponse(messages=Message("assistant", [bank.ANSWER]))
        calls = [
            Content.from_function_call(f"{turn}-{at}", name, arguments=given)
            for at, (name, given) in enumerate(bank.TURNS[turn])
        ]
        return ChatResponse(messages=Message("assistant", calls))


async def price(item: str) -> str:
    """The price of an item in cents."""
    return str(bank.PRICES[item])


async def pay(cents: int, to: str) -> str:
    """Pay."""
    return bank.pay(cents, to)


middleware = recorded(tools=bank.POLICIES)
agent = Agent(Offline(), name="shop", tools=[price, pay], middleware=middleware)
shop: RecoverableAgent[Any] = recoverable(agent, bank.STORE)
