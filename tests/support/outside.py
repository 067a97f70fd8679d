"""The world outside of the processes: a file with a line for each effect, and the tools for it."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any, Protocol, TypeVar

from recovery import Resolution, current_call

R = TypeVar("R")


class Keyed(Protocol):
    """A call, as its tool knows it or as somebody who is asked about it."""

    @property
    def idempotency_key(self) -> str:
        """By which the outside world knows it."""


_place = Path()  # of the run at hand: its store, and the file of effects


def moved_to(place: Path) -> None:
    """From now on, this is where effects go."""
    global _place  # noqa: PLW0603 - one world at a time
    _place = place


def place() -> Path:
    """Where effects go now."""
    return _place


def did(what: str, gives: R, fails: bool = False) -> R:
    """An effect takes place, by the idempotency key of the call at hand; ``gives`` is its result.
    ``fails``: the tool will raise for it."""
    call = current_call()
    assert call is not None
    line = json.dumps([call.idempotency_key, what, gives, fails]) + "\n"
    file = os.open(_place / "effects", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, line.encode())
    os.close(file)
    return gives


def nothing() -> None:
    """Nothing has taken place yet."""
    (_place / "effects").unlink(missing_ok=True)


def effects() -> list[list[Any]]:
    """Key, what, result, and whether its tool raises, of each effect so far."""
    file = _place / "effects"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def counted() -> Counter[str]:
    """How often each effect took place."""
    return Counter(what for _, what, _, _ in effects())


def truth(call: Keyed) -> Resolution:
    """What a person says who looks outside."""
    for key, _, gives, fails in effects():
        if key == call.idempotency_key:
            return Resolution.retry() if fails else Resolution.outcome(gives)
    return Resolution.retry()
