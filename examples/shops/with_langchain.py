"""The shop of ``make demo WITH=langchain``: an agent without a checkpointer."""

from __future__ import annotations

from typing import Any

import bank
from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool

from recovery import RecoverableAgent, Run
from recovery.integrations.langgraph.tools import RecordedCalls


class Offline(BaseChatModel):
    """Stands for a model, and needs no network."""

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        turn = sum(isinstance(one, AIMessage) for one in messages)
        said = AIMessage(bank.ANSWER)
        if turn < len(bank.TURNS):
            calls = enumerate(bank.TURNS[turn])
            asked = [{"name": n, "args": given, "id": f"{turn}-{at}"} for at, (n, given) in calls]
            said = AIMessage("", tool_calls=asked)
        return ChatResult(generations=[ChatGeneration(message=said)])

    def bind_tools(self, tools: Any, **kwargs: Any) -> Offline:
        """The tools do not matter to it."""
        return self

    @property
    def _llm_type(self) -> str:
        return "offline"


@tool
def price(item: str) -> int:
    """The price of an item in cents."""
    return bank.PRICES[item]


@tool
def pay(cents: int, to: str) -> str:
    """Pay."""
    return bank.pay(cents, to)


graph = create_agent(Offline(), [price, pay], middleware=[RecordedCalls(bank.POLICIES)])


async def sell(run: Run) -> str:
    """The agent function: what the graph calls is recorded."""
    state = await graph.ainvoke({"messages": [("user", run.task)]})
    return str(state["messages"][-1].content)


shop = RecoverableAgent(sell, bank.STORE)
