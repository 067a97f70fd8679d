"""Watches the waits of one session: how far its time may move, and which signals it took.

A wait polls for its event. If nothing else happens, polls find nothing until the next deadline or
timer, so time moves there at once. A run without a deadline or timer would wait for ever.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from recovery.calls.waiting import WAIT_FOR
from recovery.declare.spec import ToolSpec
from recovery.engine.driver_effects import Sleep
from recovery.journal.call import Arguments
from recovery.testing.simulated.unread_signals import TakenSignals
from recovery.testing.simulated.virtual_time import Clock, Loop, StuckError

if TYPE_CHECKING:
    from recovery.engine.execution import Execution

# For how long (in virtual seconds) ``answer`` is called repeatedly, and how much later, in shares
# of the time without events: it may depend on the clock.
ANSWERED_S, LATER = 7 * 86_400.0, 1.0


class Waits:
    """The runs of one session that wait for something outside."""

    def __init__(self) -> None:
        self.signals = TakenSignals()
        self._clock: Clock | None = None
        self._answered = False
        self._progress: Callable[[], object] = lambda: None
        self._runs: list[Execution] = []
        self._made: object = None
        self._since = 0.0

    def watch(self, clock: Clock, answered: bool, progress: Callable[[], object]) -> None:
        """``answered``: whether ``answer`` is called. ``progress``: a value that changes when
        anything happens in the session."""
        self._clock, self._progress = clock, progress
        self._answered = answered

    def add(self, run: Execution) -> None:
        """One more run of the session."""
        self._runs.append(run)

    def ended(self, spec: ToolSpec, given: Arguments, result: Any) -> None:
        """A call returned this result to the present task."""
        if spec is WAIT_FOR:
            self.signals.add(given[0][0], result)

    async def nap(self, nap: Sleep) -> None:
        """Sleep until the next poll."""
        loop = asyncio.get_running_loop()
        if nap.due_s is None or not isinstance(loop, Loop):
            await asyncio.sleep(nap.seconds)
        else:
            await loop.nap(nap.seconds, nap.due_s)

    def nap_sync(self, nap: Sleep) -> None:
        """``nap`` in plain code, where nothing happens meanwhile if there is no other thread."""
        clock = self._clock
        if nap.due_s is None or clock is None or not clock.is_alone():
            time.sleep(nap.seconds)
        else:
            clock.sleep(self.skip(nap.seconds, nap.due_s))

    def seen(self) -> object:
        """See Looks."""
        return self._progress(), self._of_runs()

    def skip(self, nap_s: float, due_s: float) -> float:
        """See Looks. Raises StuckError where nothing will ever happen again."""
        made, now = self._of_runs(), time.monotonic()
        if made != self._made:
            self._made, self._since = made, now
        idle = now - self._since
        if due_s == math.inf and idle >= (ANSWERED_S if self._answered else 0.0):
            waits = [one.what for run in self._runs if not run.is_closed for one in run.waits]
            raise StuckError(f"nobody sends {', nor '.join(waits)}" if waits else "for nothing")
        return max(nap_s, min(due_s, idle * LATER) if self._answered else due_s)

    def _of_runs(self) -> object:
        return [
            (
                run.served,
                run.executed,
                run.in_flight,
                len(run.waits),
                run.stopped is None,
                run.is_closed,
            )
            for run in self._runs
        ]
