"""An agent that would go on for ever, its budget, and what happens when that is raised.

    python budget.py

The run lives in memory here; on disk it could be another process, a week later.
"""

from __future__ import annotations

from recovery import Budget, CheckpointStore, RecoverableAgent, SyncRun, Usage, tool
from recovery.errors import BudgetError

PRICE = 2e-6, 10e-6  # of a token of input and of output


def used(reply: dict[str, object]) -> Usage:
    """What a reply of our model has cost."""
    given, made = len(str(reply["prompt"]).split()), len(str(reply["content"]).split())
    return Usage(given, made, cost=given * PRICE[0] + made * PRICE[1])


@tool(after_crash="retry", usage=used)
def think(prompt: str) -> dict[str, object]:
    return {"prompt": prompt, "content": f"Hm. {prompt} And then?"}


def ponder(run: SyncRun) -> str:
    """Thinks about its last thought; in short words once it has used many."""
    for step in run.steps():
        thought = run.messages[-1]["content"] if run.messages else "Why do otters float?"
        if run.usage().tokens > 300:
            thought = "Why?"
        run.messages.append(run.call(think, thought))
        if step == 20:
            return str(run.messages[-1]["content"])
    raise AssertionError("steps do not end by themselves")


def main() -> None:
    store = CheckpointStore()
    for tokens in (200, 1000):
        agent = RecoverableAgent(ponder, store, budget=Budget(tokens=tokens, steps=30))
        try:
            result = agent.run_with_recovery_sync("otters", "run_001")
        except BudgetError as parked:
            print(parked, end="\n\n")
        else:
            print(f"{result['result']} For {result['usage']}.")


if __name__ == "__main__":
    main()
