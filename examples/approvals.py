"""Payments that a person has to approve, and never one that the person has not seen.

    python examples/approvals.py DIRECTORY                  runs the agent, until it has to wait
    python examples/approvals.py DIRECTORY show             what waits for a decision
    python examples/approvals.py DIRECTORY yes|no KEY WHY   decides about one of them

Run it again after a decision: it goes on where it stopped.
"""

from __future__ import annotations

import os
import sys

from recovery import ApprovalDeniedError, Call, CheckpointStore, RecoverableAgent, SyncRun, tool
from recovery.errors import WaitingError

RUN = "invoices-may"
INVOICES = [(10, "alice"), (40, "bob"), (9999, "mallory")]
paid: list[tuple[int, str]] = []


def is_large(call: Call) -> bool:
    """Small sums are nobody's business."""
    return bool(call.args[0] >= 20)


@tool(needs_approval=is_large)
def pay(amount: int, to: str) -> str:
    """A payment: it begins with a yes to exactly this amount and this receiver."""
    paid.append((amount, to))
    return f"paid {amount} to {to}"


def agent(run: SyncRun) -> list[str]:
    for step in run.steps():
        amount, to = INVOICES[step - 1]
        try:
            run.messages.append(run.call(pay, amount, to))
        except ApprovalDeniedError as exc:
            run.messages.append(f"did not pay {to}: {exc.why}")
        if step == len(INVOICES):
            return list(run.messages)
    raise AssertionError("steps have no end")


def main(directory: str, what: str = "run", key: str = "", why: str = "") -> None:
    store = CheckpointStore(directory)
    payments = store.run(RUN)
    if what == "show":
        for call in payments.pending():  # whole: what is cut away could be all that matters
            print(f"{call.idempotency_key}: {call.tool}{call.args}")
    elif what in ("yes", "no"):
        decide = payments.approve if what == "yes" else payments.deny
        decide(key, who=os.environ.get("USER", "somebody"), why=why)
    else:
        try:
            of = RecoverableAgent(agent, store, park_after_s=0.1)
            print(*of.run_with_recovery_sync("pay the invoices", RUN)["result"], sep="\n")
        except WaitingError as exc:
            print(exc)


if __name__ == "__main__":
    main(*sys.argv[1:])
