"""Defines the limits of a run, and compares its usage with them."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Literal

from recovery.journal.usage import Usage
from recovery.option_checks import check_one_of, check_seconds, names_its_options

_logger = logging.getLogger("recovery")


@names_its_options("Budget", "Budget takes each limit by its name, as in Budget(steps=100)")
@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits of a run, over all its sessions; None for none.

    Replay is never stopped, and counts once.

    Args:
        steps: How many steps may begin; exact.
        calls: How many calls may be made, each attempt counted; exact for concurrent calls too.
        seconds: The time for which a process had the run. Checked, as the next two, before each new
            step and each new call.
        tokens: Input and output tokens. A call's are known when it has ended, so calls in flight
            may exceed the limit.
        cost: Money, in the currency that the tools count in. The same holds.
        on_exceeded: "park" (the default: BudgetError; raise the budget and resume) or "fail".
    """

    steps: int | None = None
    calls: int | None = None
    seconds: float | None = None
    tokens: int | None = None
    cost: float | None = None
    on_exceeded: Literal["park", "fail"] = "park"

    def __post_init__(self) -> None:
        for name in ("steps", "calls", "seconds", "tokens", "cost"):
            limit = getattr(self, name)
            unit = "dollars or the like" if name == "cost" else name
            check_seconds(f"Budget({name}=)", limit, above=False, unit=unit)
        check_one_of("Budget(on_exceeded=)", self.on_exceeded, ("park", "fail"))

    def reached(self, used: Usage, what: Literal["step", "call"]) -> list[str]:
        """Not for users: the limits that a new step or call would exceed, or that are exceeded."""
        names = ["steps" if what == "step" else "calls", "seconds", "tokens", "cost"]
        limits = [(name, getattr(used, name), getattr(self, name)) for name in names]
        return [
            f"{name}: {_shown(spent)} of {_shown(limit)}"
            for name, spent, limit in limits
            if limit is not None and spent >= limit
        ]


def _shown(amount: float) -> str:
    return f"{amount:,}" if isinstance(amount, int) else f"{amount:,.4f}".rstrip("0").rstrip(".")
