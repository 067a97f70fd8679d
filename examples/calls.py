"""Calls that fail, hang, or are given up: what is tried again, and what is asked about.

Run it: python examples/calls.py DIRECTORY. It stops at Ctrl-C between two calls, and the same
command goes on where it stopped.
"""

from __future__ import annotations

import asyncio
import signal
import sys

from recovery import (
    Call,
    CheckpointStore,
    RecoverableAgent,
    Resolution,
    Retry,
    Run,
    current_call,
    tool,
)
from recovery.errors import StoppedError

refusals = ["503", "503"]  # of the weather service
bank: dict[str, int] = {}  # what was paid, by idempotency key


@tool(after_crash="retry", retry=Retry(attempts=5, delay_s=0.01), timeout_s=10)
async def weather(city: str) -> str:
    """Reading harms nobody: tried again after errors, time-outs and crashes."""
    if refusals:
        raise ConnectionError(refusals.pop())
    return f"sunny in {city}"


def was_it_paid(call: Call) -> Resolution:
    """Ask the bank about a payment of which nobody knows whether it was made."""
    if call.idempotency_key in bank:
        return Resolution.outcome(f"paid {bank[call.idempotency_key]}")
    return Resolution.retry()


@tool(reconcile=was_it_paid, timeout_s=0.05)
async def pay(amount: int) -> str:
    """A side effect that hangs is in doubt: the bank is asked, and nobody pays twice."""
    call = current_call()
    assert call is not None
    bank[call.headers["Idempotency-Key"]] = amount  # the bank has the money...
    await asyncio.sleep(3600)  # ... and the answer is lost
    return "never reached"


@tool(after_crash="retry")
async def ask_expert(question: str) -> str:
    """Somebody who takes his time."""
    await asyncio.sleep(3600)
    return "never reached"


async def agent(run: Run) -> list[str]:
    found = [await run.call(weather, run.task), await run.call(pay, 10)]
    try:
        async with asyncio.timeout(0.1):
            found.append(await run.call(ask_expert, "umbrella?"))
    except TimeoutError:  # it will be given up on replay, too
        found.append("no answer")
    return found


def main(directory: str) -> None:
    of = RecoverableAgent(
        agent, CheckpointStore(directory), stop_on=(signal.SIGINT, signal.SIGTERM)
    )
    try:
        print(*of.run_with_recovery_sync("Lisbon", "trip")["result"], sep="\n")
    except StoppedError as exc:
        print(exc)
    print(f"payments: {list(bank.values())}")


if __name__ == "__main__":
    main(*sys.argv[1:])
