"""The shop of ``make demo WITH=anthropic``: a plain loop over the provider's client."""

from __future__ import annotations

import asyncio
from typing import Any

import anthropic
import bank
import provider

from recovery import RecoverableAgent, Run, tool
from recovery.integrations.anthropic import recorded_client


@tool(**bank.POLICIES["price"])
async def price(item: str) -> str:
    """The price of an item in cents."""
    return str(bank.PRICES[item])


@tool(**bank.POLICIES["pay"])
async def pay(cents: int, to: str) -> str:
    """Pay."""
    return bank.pay(cents, to)


TOOLS: dict[str, Any] = {"price": price, "pay": pay}
client = recorded_client(anthropic.AsyncAnthropic(base_url=provider.start(), api_key="none"))


async def answer(use: Any) -> dict[str, str]:
    """What the model reads of a call."""
    found = await tool(call_id=use.id)(TOOLS[use.name])(**use.input)
    return {"type": "tool_result", "tool_use_id": use.id, "content": found}


async def sell(run: Run) -> str:
    """Ask the model until it calls no tool."""
    messages: list[Any] = [{"role": "user", "content": run.task}]
    while True:
        said = await client.messages.create(model="offline", max_tokens=1000, messages=messages)
        uses = [block for block in said.content if block.type == "tool_use"]
        if not uses:
            return "".join(block.text for block in said.content if block.type == "text")
        content = [block.model_dump(exclude_unset=True) for block in said.content]
        messages.append({"role": "assistant", "content": content})
        results = await asyncio.gather(*[answer(use) for use in uses])
        messages.append({"role": "user", "content": results})


shop = RecoverableAgent(sell, bank.STORE)
