"""The shop of ``make demo WITH=openai``: a plain loop over the provider's client."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import bank
import openai
import provider

from recovery import RecoverableAgent, Run, tool
from recovery.integrations.openai import recorded_client


@tool(**bank.POLICIES["price"])
async def price(item: str) -> str:
    """The price of an item in cents."""
    return str(bank.PRICES[item])


@tool(**bank.POLICIES["pay"])
async def pay(cents: int, to: str) -> str:
    """Pay."""
    return bank.pay(cents, to)


TOOLS: dict[str, Any] = {"price": price, "pay": pay}
client = recorded_client(openai.AsyncOpenAI(base_url=provider.start(), api_key="none"))


async def answer(call: Any) -> dict[str, str]:
    """What the model reads of a call."""
    made = tool(call_id=call.id)(TOOLS[call.function.name])
    found = await made(**json.loads(call.function.arguments))
    return {"role": "tool", "tool_call_id": call.id, "content": found}


async def sell(run: Run) -> str:
    """Ask the model until it calls no tool."""
    messages: list[Any] = [{"role": "user", "content": run.task}]
    while True:
        reply = await client.chat.completions.create(model="offline", messages=messages)
        said = reply.choices[0].message
        if not said.tool_calls:
            return str(said.content)
        messages.append(said.model_dump(exclude_unset=True))
        messages += await asyncio.gather(*[answer(call) for call in said.tool_calls])


shop = RecoverableAgent(sell, bank.STORE)
