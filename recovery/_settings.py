"""How an agent's runs are executed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict


class Options(TypedDict, total=False):
    """What else a RecoverableAgent can be given, each by name.

    ``max_recoveries``: how often in a row an error of the agent is recovered from in this process
    without getting a step further (3); the last one is raised, and the run can be resumed later.
    """

    max_recoveries: int


@dataclass(frozen=True, slots=True)
class Settings:
    """Options with their defaults."""

    checkpoint_every_n: int = 3
    max_recoveries: int = 3

    def __post_init__(self) -> None:
        if self.checkpoint_every_n < 1:
            raise ValueError(f"checkpoint_every_n is 1 or more, not {self.checkpoint_every_n}")
