"""Declares the options of a worker, with their defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypedDict

from recovery.inspect.status import CRASHES_MIN
from recovery.option_checks import check_count, check_seconds, names_its_options


class WorkerOptions(TypedDict, total=False):
    """See Worker."""

    concurrency: int
    per_agent: int | Mapping[str, int] | None
    per_key: int | None
    max_crashes: int
    retry_quarantined: bool
    park_after_s: float
    grace_s: float


@names_its_options("Worker")
@dataclass(frozen=True)
class WorkerSettings:
    """Options with their defaults."""

    concurrency: int = 10
    per_agent: int | Mapping[str, int] | None = None
    per_key: int | None = None
    max_crashes: int = CRASHES_MIN
    retry_quarantined: bool = False
    park_after_s: float = 5.0
    grace_s: float = 30.0

    def __post_init__(self) -> None:
        check_count("concurrency", self.concurrency)
        check_count("per_key", self.per_key, none=True)
        check_count("max_crashes", self.max_crashes)
        check_seconds("park_after_s", self.park_after_s, none=False, above=False)
        check_seconds("grace_s", self.grace_s, none=False, above=False)
        numbers = self.per_agent.values() if isinstance(self.per_agent, Mapping) else ()
        for number in numbers or (self.per_agent,):
            check_count("per_agent", number, none=True)
