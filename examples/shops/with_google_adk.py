"""The shop of ``make demo WITH=google-adk``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import bank
from google.adk.agents import Agent
from google.adk.apps import App
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.genai import types

from recovery import RecoverableAgent
from recovery.integrations.google_adk import EventLogPlugin, recoverable


class Offline(BaseLlm):
    """Stands for a model, and needs no network."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncIterator[LlmResponse]:
        turn = sum(one.role == "model" for one in llm_request.contents)
        parts = [types.Part(text=bank.ANSWER)]
        if turn < len(bank.TURNS):
            calls = bank.TURNS[turn]
            parts = [types.Part.from_function_call(name=name, args=given) for name, given in calls]
        yield LlmResponse(content=types.Content(role="model", parts=parts))


async def price(item: str) -> int:
    """The price of an item in cents."""
    return bank.PRICES[item]


async def pay(cents: int, to: str) -> str:
    """Pay."""
    return bank.pay(cents, to)


agent = Agent(name="shop", model=Offline(model="offline"), tools=[price, pay])
app = App(name="shop", root_agent=agent, plugins=[EventLogPlugin(tools=bank.POLICIES)])
shop: RecoverableAgent[Any] = recoverable(app, bank.STORE)
