"""Watches the waits of one life: whether one lasts for ever, and what became of its signals.

A run waits for ever when nothing but its looking for messages happens any more. In virtual time an
hour of that takes a second, and it would go on so until a watchdog gives it up.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from recovery._tool import Arguments, ToolSpec
from recovery._waiting import NAP_MAX_S, WAIT_FOR
from recovery.testing._unread import TakenSignals

if TYPE_CHECKING:
    from recovery._core import RunCore
    from recovery.testing._time import Clock

# How long (in virtual seconds) nothing has to happen: where nobody sends anything, and where
# somebody is asked again and again whether to.
ALONE_S, ANSWERED_S = 60.0, 3600.0


class Waits:
    """The runs of one life, as far as they wait for what is outside of them."""

    def __init__(self) -> None:
        self.signals = TakenSignals()
        self._clock: Clock | None = None
        self._limit = ALONE_S
        self._progress: Callable[[], object] = lambda: None
        self._runs: list[RunCore] = []
        self._seen: Any = None
        self._since = 0.0

    def watch(self, clock: Clock, answered: bool, progress: Callable[[], object]) -> None:
        """Stop the clock's time when a wait lasts for ever. ``answered``: whether somebody is asked
        to send something. ``progress``: a value that changes when anything happens in the life."""
        self._clock, self._progress = clock, progress
        self._limit = ANSWERED_S if answered else ALONE_S

    def add(self, run: RunCore) -> None:
        """One more run of the life."""
        self._runs.append(run)

    def ended(self, spec: ToolSpec, given: Arguments, result: Any) -> None:
        """A call has given the present task this result."""
        if spec is WAIT_FOR:
            self.signals.add(given[0][0], result)

    def looked(self) -> None:
        """A wait has looked for messages."""
        if self._clock is None:
            return
        runs = [run for run in self._runs if not run.over]
        made = [(run.served, run.executed, run.in_flight, len(run.waits)) for run in runs]
        seen, now = (self._progress(), made), time.monotonic()
        # The agent's own code may do something when its timer ends.
        if seen != self._seen or not _only_wait(runs) or self._clock.furthest() > NAP_MAX_S:
            self._seen, self._since, self._clock.stuck = seen, now, ""
        elif now - self._since > self._limit:
            waits = [waiting.what for run in runs for waiting in run.waits]
            self._clock.stuck = f"nobody sends {', nor '.join(waits)}"


def _only_wait(runs: list[RunCore]) -> bool:
    """Whether all that is under way are waits without a deadline."""
    waits = [waiting for run in runs for waiting in run.waits]
    return (
        bool(waits)
        and all(waiting.until is None for waiting in waits)
        and all(run.idle() for run in runs)
    )
