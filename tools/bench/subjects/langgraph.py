"""LangGraph with SqliteSaver."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph

from .paced import Paced, result_of


class State(TypedDict):
    """What the one node gives: no history, which would be written anew in each step."""

    number: int
    result: str
    more: bool


class LangGraph:
    """One node, which makes the call, in each super-step; durability="sync"."""

    def __init__(self, directory: Path, case: dict[str, Any]) -> None:
        self._size, self._place = case["size"], str(directory / "db")
        self._paced = Paced(self._loop)
        self.turn, self.close = self._paced.turn, self._paced.close

    def _loop(self, go: Callable[[], bool]) -> None:
        def work(state: State) -> State:
            number = state["number"] + 1
            more = go()
            result = result_of(number, self._size) if more else ""
            return {"number": number, "result": result, "more": more}

        graph = StateGraph(State)
        graph.add_node("work", work)
        graph.add_edge(START, "work")
        graph.add_conditional_edges("work", lambda state: "work" if state["more"] else END)
        connection = sqlite3.connect(self._place, check_same_thread=False)
        agent = graph.compile(checkpointer=SqliteSaver(connection))
        agent.invoke(
            {"number": 0, "result": "", "more": True},
            {"configurable": {"thread_id": "run"}, "recursion_limit": 1_000_000},
            durability="sync",
        )
        connection.close()
