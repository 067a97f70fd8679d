"""What the logic of a call asks of its driver. Pure."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

from recovery.declare.scope import Scope


@dataclass(slots=True)  # these are made several times for each call, and a frozen one costs more
class WaitForTurn:
    """Let other coroutines go on until ``ready()``; the answer is whether it became so, or None
    where they cannot go on meanwhile: plain code in the thread of the event loop."""

    ready: Callable[[], bool]
    # Of an outcome that is to be handed on in the recorded order: its LSN. Being stuck then means
    # only that the code asks for its results in another order. 0 of a new call: being stuck means
    # that the code has changed.
    turn: int


@dataclass(slots=True)
class Commit:
    """Make what is appended durable."""


@dataclass(slots=True)
class Invoke:
    """Call the user's function in ``scope``."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    scope: Scope | None
    timeout_s: float | None = None  # then TimedOutError
    interruptible: bool = False  # whether a stop of the run need not wait for it


class TimedOutError(Exception):
    """A function took too long; it was cancelled if it could be, and left alone if it could not."""

    def __init__(self, function: str, timeout_s: float) -> None:
        super().__init__(f"{function} took longer than {timeout_s:g} s")

    def error(self) -> TimeoutError:
        """The exception for the agent."""
        return TimeoutError(str(self))


@dataclass(slots=True)
class Sleep:
    """Let time pass.

    ``due_s``: in how many seconds there is something to do should nobody do anything until then
    (inf: never). None: when the nap is over. It is for clocks that need not wait.
    """

    seconds: float
    due_s: float | None = None


@dataclass(slots=True)
class Perform:
    """Perform what a body asks for, which waits for something outside of the run."""

    body: Generator[Any, Any, Any]  # of effects


Effect = WaitForTurn | Commit | Invoke | Sleep | Perform


@dataclass(eq=False, slots=True)
class Waiting:
    """A wait that is under way, for ``until`` (seconds since 1970) if it ends by itself.

    ``came``: when what it waits for happened (seconds since 1970); None: it has not yet. ``due``:
    whether it is over, and the agent is about to have what ended it.
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
