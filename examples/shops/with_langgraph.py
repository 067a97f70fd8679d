"""The shop of ``make demo WITH=langgraph``: a graph that resumes from its own checkpoints."""

from __future__ import annotations

import bank
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from recovery.integrations.langgraph import EventLogSaver, begin_or_resume
from recovery.integrations.langgraph.tools import RecordedTools


def model(state: MessagesState) -> dict[str, list[AIMessage]]:
    """Stands for a model, and needs no network."""
    turn = sum(isinstance(one, AIMessage) for one in state["messages"])
    if turn == len(bank.TURNS):
        return {"messages": [AIMessage(bank.ANSWER)]}
    calls = enumerate(bank.TURNS[turn])
    asked = [{"name": name, "args": given, "id": f"{turn}-{at}"} for at, (name, given) in calls]
    return {"messages": [AIMessage("", tool_calls=asked)]}


@tool
def price(item: str) -> int:
    """The price of an item in cents."""
    return bank.PRICES[item]


@tool
def pay(cents: int, to: str) -> str:
    """Pay."""
    return bank.pay(cents, to)


recorded = RecordedTools(bank.STORE, bank.POLICIES)
builder = StateGraph(MessagesState)
builder.add_node("model", model)
builder.add_node("tools", ToolNode([price, pay], wrap_tool_call=recorded.wrap_tool_call))
builder.add_edge(START, "model")
builder.add_conditional_edges("model", tools_condition)
builder.add_edge("tools", "model")


def shop(task: str) -> str:
    """Begin the thread, or go on with it."""
    with EventLogSaver("threads") as saver:
        graph = builder.compile(checkpointer=saver)
        with recorded.thread(graph, "order-42") as config:
            result = begin_or_resume(graph, {"messages": [("user", task)]}, config)
    return str(result["messages"][-1].content)
