"""The same conversation in a thread of LangGraph."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Annotated, Any

from langchain_core.messages import AIMessage, ToolMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from typing_extensions import TypedDict

from .raw import reply, text


class State(TypedDict):
    messages: Annotated[list[Any], add_messages]


class Conversation:
    """A super-step says and finds what a step does there; a checkpoint each, its default."""

    def __init__(self, directory: Path, case: dict[str, Any]) -> None:
        self._directory, self._until = directory, 0

    def grow(self, steps: int) -> None:
        """Go on to the end of this step. The database is closed then."""
        self._until = steps
        connection = sqlite3.connect(self._directory / "db", check_same_thread=False)
        graph = StateGraph(State)
        graph.add_node("work", self._work)
        graph.add_edge(START, "work")
        graph.add_conditional_edges("work", self._next, ["work", END])
        compiled = graph.compile(checkpointer=SqliteSaver(connection))
        config: Any = {"configurable": {"thread_id": "run"}, "recursion_limit": 1_000_000}
        compiled.invoke({"messages": []}, config)
        connection.close()

    def _work(self, state: State) -> dict[str, Any]:
        number = len(state["messages"]) // 2 + 1
        said = reply(number)
        calls = [{**call, "type": "tool_call"} for call in said["tool_calls"]]
        found = ToolMessage(text(2000, number), tool_call_id=calls[0]["id"])
        return {"messages": [AIMessage(said["content"], tool_calls=calls), found]}

    def _next(self, state: State) -> str:
        return "work" if len(state["messages"]) < 2 * self._until else END
