"""The shop of ``make demo WITH=mcp``: the tools are those of an MCP server."""

from __future__ import annotations

import asyncio
from typing import Any

import bank
from mcp import Client
from mcp.server import MCPServer

from recovery import Call, RecoverableAgent, Resolution, Run
from recovery.integrations.mcp import RecordedClient


async def price(item: str) -> str:
    """The price of an item in cents."""
    return str(bank.PRICES[item])


async def pay(cents: int, to: str) -> str:
    """Pay. The server gets no idempotency key."""
    return bank.pay(cents, to)


server = MCPServer("shop")
server.add_tool(price)
server.add_tool(pay)


def find_payment(call: Call) -> Resolution:
    """What the bank knows of a payment that a crash has interrupted."""
    payment = f"{call.kwargs['cents']} to {call.kwargs['to']}\n"
    if bank.BANK.exists() and payment in bank.BANK.read_text():
        return Resolution.outcome("paid")
    return Resolution.retry()


POLICIES: dict[str, Any] = {"price": {"after_crash": "retry"}, "pay": {"reconcile": find_payment}}


async def sell(run: Run) -> str:
    """Make the calls that a model would ask for."""
    async with Client(server) as connected:
        client = RecordedClient(connected, "shop", tools=POLICIES)
        for turn in bank.TURNS:
            await asyncio.gather(*[client.call_tool(name, given) for name, given in turn])
    return bank.ANSWER


shop = RecoverableAgent(sell, bank.STORE)
