"""The agent, on LangGraph with its SqliteSaver."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import time
from typing import Any

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

AGAIN = 3
MODE, DIRECTORY, STEPS = sys.argv[1], sys.argv[2], int(sys.argv[3])


class State(TypedDict):
    number: int
    last: str


def work(state: State) -> State:
    """Return a value; at the last step, crash or say what time it is."""
    number = state["number"] + 1
    if number > STEPS:
        if MODE == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        print(time.monotonic(), flush=True)
        os._exit(0)
    if MODE != "crash":
        os._exit(AGAIN)
    return {"number": number, "last": f"result {number} ".ljust(2048, ".")}


connection = sqlite3.connect(f"{DIRECTORY}/db", check_same_thread=False)
if MODE == "crash":  # the record is the same, and is made sooner
    connection.execute("PRAGMA synchronous=OFF")
graph = StateGraph(State)
graph.add_node("work", work)
graph.add_edge(START, "work")
graph.add_conditional_edges("work", lambda state: "work", ["work"])
config: Any = {"configurable": {"thread_id": "run"}, "recursion_limit": 1_000_000_000}
begin: State | None = {"number": 0, "last": ""} if MODE == "crash" else None
graph.compile(checkpointer=SqliteSaver(connection)).invoke(begin, config, durability="sync")
