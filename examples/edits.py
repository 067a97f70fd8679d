"""The code changes while a run is not finished: one edit is told, another does no harm.

python examples/edits.py DIRECTORY
"""

from __future__ import annotations

import sys
from typing import Any

from recovery import CheckpointStore, RecoverableAgent, SyncRun, tool
from recovery.errors import DivergenceError


@tool
def refund(order: str, cents: int) -> str:
    print(f"refunding {cents} cents for {order}")
    return f"refunded {order}"


def first(run: SyncRun) -> list[str]:
    done = [refund("order-1", 1000), refund("order-2", 2500)]
    if run.recovery_count == 0:
        raise ConnectionError("the process dies here")
    return done


def mistaken(run: SyncRun) -> list[str]:
    """Somebody has changed the unit: resumed with this, order-2 would be refunded once more."""
    return [refund("order-1", 1000), refund("order-2", 250000), refund("order-3", 100)]


def extended(run: SyncRun) -> list[str]:
    """More to do, and in another order; what was done is served from the log."""
    return [refund("order-2", 2500), refund("order-1", 1000), refund("order-3", 4000)]


def resume(agent: Any, directory: str) -> Any:
    runner = RecoverableAgent(agent, CheckpointStore(directory), max_recoveries=0)
    return runner.run_with_recovery_sync("refund the recalled ones", "recall")["result"]


def main(directory: str) -> None:
    try:
        resume(first, directory)
    except ConnectionError as exc:
        print(exc)
    try:
        resume(mistaken, directory)
    except DivergenceError as exc:
        print(f"stopped: {', '.join(exc.differences)}")
    print(resume(extended, directory))


if __name__ == "__main__":
    main(sys.argv[1])
