"""Defines the effects that the logic of a call yields to its driver. Pure."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

from recovery.declare.scope import Scope


@dataclass(slots=True, eq=False)  # made several times for each call: a frozen one costs more
class WaitForTurn:
    """Let other coroutines run until ``ready()``. The answer is whether it became so, or None
    where they cannot run meanwhile: plain code in the thread of the event loop."""

    ready: Callable[[], bool]
    # The LSN of an outcome that is to be served in the recorded order: being stuck then only means
    # that the code asks for its results in another order. 0 for a new call: being stuck means that
    # the code has changed.
    turn: int


@dataclass(slots=True, eq=False)
class Commit:
    """Make the appended records durable."""


@dataclass(slots=True, eq=False)
class Invoke:
    """Call the user's function in ``scope``."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    scope: Scope | None
    timeout_s: float | None = None  # after this time TimedOutError is raised
    interruptible: bool = False  # whether a stop of the run need not wait for it


class TimedOutError(Exception):
    """A function took too long; it was cancelled if that was possible, and else abandoned."""

    def __init__(self, function: str, timeout_s: float) -> None:
        super().__init__(f"{function} took longer than {timeout_s:g} s")

    def error(self) -> TimeoutError:
        """The exception for the agent."""
        return TimeoutError(str(self))


@dataclass(slots=True, eq=False)
class Sleep:
    """Let time pass.

    ``due_s``: after how many seconds the caller has something to do if no other code acts until
    then (inf: never; None: when the nap is over). Simulated clocks skip to that time.
    """

    seconds: float
    due_s: float | None = None


@dataclass(slots=True, eq=False)
class Perform:
    """Perform the effects of a body that waits for an event outside the run."""

    body: Generator[Any, Any, Any]  # of effects


Effect = WaitForTurn | Commit | Invoke | Sleep | Perform


@dataclass(eq=False, slots=True)
class Waiting:
    """A wait in flight, until ``until`` (seconds since 1970) if it ends by itself.

    ``came``: the time of the awaited event (seconds since 1970); None if it has not happened.
    ``due``: whether the wait is over, and the agent is about to receive its outcome.
    """

    call: int
    what: str
    until: float | None
    came: Callable[[], float | None]
    due: bool = False
    began: float = field(default_factory=time.monotonic)
    inside: int = 0  # the call (LSN) in which it is made

    def over(self, now: float) -> float | None:
        """When it was over (seconds since 1970); None while it lasts."""
        came = self.came()
        if came is None and self.until is not None and self.until <= now:
            return self.until
        return came
