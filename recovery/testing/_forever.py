"""Notices that a run waits for ever: nothing but its looking for messages happens any more.

In virtual time an hour of that takes a second, and a run with nothing else to do would go on so
until a watchdog gives it up.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from recovery._waiting import NAP_MAX_S

if TYPE_CHECKING:
    from recovery._core import RunCore
    from recovery.testing._time import Clock

# How long (in virtual seconds) nothing has to happen: where nobody sends anything, and where
# somebody is asked again and again whether to.
ALONE_S, ANSWERED_S = 60.0, 3600.0


class Forever:
    """The runs of one life, as far as they wait for what is outside of them.

    ``progress``: a value that changes when anything happens in the life.
    """

    def __init__(self, clock: Clock, answered: bool, progress: Callable[[], object]) -> None:
        self._clock, self._progress = clock, progress
        self._limit = ANSWERED_S if answered else ALONE_S
        self._runs: list[RunCore] = []
        self._seen: Any = None
        self._since = 0.0

    def add(self, run: RunCore) -> None:
        """One more run of the life."""
        self._runs.append(run)

    def looked(self) -> None:
        """A wait has looked for messages."""
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
