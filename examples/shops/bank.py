"""What the shops of all frameworks sell, what their model says, and the bank that they pay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recovery import Call, Resolution, current_call

STORE = "runs"
BANK = Path("payments")  # the outside world
PRICES = {"tea": 500, "cup": 300}
TASK = "Buy tea and a cup."
TURNS: list[list[tuple[str, dict[str, Any]]]] = [
    [("price", {"item": "tea"}), ("price", {"item": "cup"})],  # at once
    [("pay", {"cents": 500, "to": "ann"}), ("pay", {"cents": 300, "to": "bob"})],
]
ANSWER = "Tea and a cup are paid."


def pay(cents: int, to: str) -> str:
    """Pay, by the idempotency key of the call; a server of tools has none."""
    call = current_call()
    key = call.idempotency_key if call is not None else "no-key"
    with BANK.open("a") as bank:
        bank.write(f"{key} {cents} to {to}\n")
    return "paid"


def find_payment(call: Call) -> Resolution:
    """What the bank knows of a payment that a crash has cut short."""
    if BANK.exists() and call.idempotency_key in BANK.read_text():
        return Resolution.outcome("paid")
    return Resolution.retry()


POLICIES: dict[str, Any] = {
    "price": {"after_crash": "retry"},
    "pay": {"reconcile": find_payment},
}
