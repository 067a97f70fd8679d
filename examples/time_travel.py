"""A trip that is planned, looked at, and planned otherwise from the middle on.

    python examples/time_travel.py [DIRECTORY]

The fork begins where the first run was at the end of step 2. What was asked before is not asked
again: its answers are in the fork's own log.
"""

from __future__ import annotations

import sys
from typing import Any

from recovery import CheckpointStore, RecoverableAgent, SyncRun, tool

asked: list[str] = []
PRICES = {"train to Oslo": 90, "hotel": 120, "boat trip": 60, "museum": 15}


@tool(after_crash="retry")
def price(what: str) -> int:
    asked.append(what)
    return PRICES[what]


def plan(run: SyncRun) -> Any:
    for step in run.steps():
        wish = run.task[step - 1]
        cost = run.call(price, wish)
        left = run.state.get("money", 270)
        if cost <= left:
            run.state["money"] = left - cost
            run.messages.append(f"{wish} for {cost}")
        else:
            run.messages.append(f"no {wish}: only {left} left")
        if step == len(run.task):
            return ", ".join(run.messages)


def cheaper_plan(run: SyncRun) -> Any:
    """The same up to step 2, and other code behind it."""
    for step in run.steps():
        wish = run.task[step - 1] if step < 3 else "museum"
        cost = run.call(price, wish)
        run.state["money"] = run.state.get("money", 270) - cost
        run.messages.append(f"{wish} for {cost}")
        if step == 3:
            return ", ".join(run.messages)


if __name__ == "__main__":
    store = CheckpointStore(sys.argv[1] if len(sys.argv) > 1 else None)
    wishes = ["train to Oslo", "hotel", "boat trip", "museum"]
    agent = RecoverableAgent(plan, store, checkpoint_every_n=1)
    trip = store.run("trip")
    print("trip:  ", agent.run_with_recovery_sync(wishes, "trip")["result"])
    for checkpoint in trip.checkpoints():
        print("        checkpoint", checkpoint)

    if not store.run("rich").checkpoints():  # a fork is made once
        trip.fork("rich", at_step=2, state={"money": 500}, who="ann", why="a gift")
        trip.fork("cheap", at_step=2)
    asked.clear()
    print("rich:  ", agent.run_with_recovery_sync(wishes, "rich")["result"])
    other = RecoverableAgent(cheaper_plan, store, checkpoint_every_n=1)
    print("cheap: ", other.run_with_recovery_sync(wishes, "cheap")["result"])
    print("asked for them:", ", ".join(asked) or "nothing")
    (link,) = store.run("rich").lineage()
    print(f"rich comes from {link.run_id}, step {link.step}: {link.why} ({link.who})")
    print(trip.compare("cheap"))
