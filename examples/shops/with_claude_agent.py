"""The shop of ``make demo WITH=claude-agent``: the SDK's own CLI asks a model that is offline."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import bank
import provider
from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, get_session_info, query
from claude_agent_sdk import tool as claude_tool

from recovery import tool
from recovery.call_journal import CallJournal
from recovery.integrations.claude_agent import RecordedTools, known_results

SESSION = "00000000-0000-4000-8000-000000000042"


def _said(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}]}


@claude_tool("price", "The price of an item in cents.", {"item": str})
@tool(**bank.POLICIES["price"])
async def price(args: dict[str, Any]) -> dict[str, Any]:
    """The price of an item in cents."""
    return _said(str(bank.PRICES[args["item"]]))


@claude_tool("pay", "Pay.", {"cents": int, "to": str})
@tool(**bank.POLICIES["pay"])
async def pay(args: dict[str, Any]) -> dict[str, Any]:
    """Pay."""
    return _said(bank.pay(**args))


async def _sell(task: str) -> str:
    answer = ""
    with CallJournal(bank.STORE, "order-42", known=known_results(SESSION)) as journal:
        tools = RecordedTools(journal)
        options = ClaudeAgentOptions(
            mcp_servers={"shop": tools.server("shop", [price, pay])},
            allowed_tools=["mcp__shop__price", "mcp__shop__pay"],
            setting_sources=[],
            max_turns=10,
            env={"ANTHROPIC_BASE_URL": provider.start(), "ANTHROPIC_API_KEY": "none"},
        )
        if get_session_info(SESSION) is None:
            options.session_id = SESSION
        else:
            options.resume = SESSION
        async for message in tools.watch(query(prompt=task, options=tools.options(options))):
            if isinstance(message, ResultMessage):
                answer = str(message.result)
    return answer


def shop(task: str) -> str:
    """Begin the session, or go on with it."""
    os.environ |= {
        "CLAUDE_CONFIG_DIR": str(Path("claude").absolute()),  # where the CLI keeps sessions
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_RETRIES": "0",  # else it asks on after this process was killed
    }
    return asyncio.run(_sell(task))
