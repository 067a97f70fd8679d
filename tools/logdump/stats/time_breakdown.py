"""What the time of a run went to: its tools, waiting, its own code. Pure.

A process is at work from when it takes the run up to the last record that it writes. What is
between two of these records belongs to the calls that were under way: to tools when one of them
was, to waiting when all that was under way were waits, else to the agent's own code.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

Mode = Literal["works", "waits", "still"]


@dataclass(slots=True)
class OpenAttempt:
    """A call without an outcome. ``mode``: whether its tool is at work, it waits, or neither.

    ``since_ns``: when this attempt began. ``life``: the process (by number) that began it.
    ``inside``: the calls that were made inside it; ``busy``: how many of these are under way.
    ``failed``: it has an outcome, and may be made again with the call that it was made inside.
    ``is_effect``: its tool is not to be repeated.
    """

    lsn: int
    tool: str
    call_id: str
    step: int
    since_ns: int
    session: int
    outer: int = 0
    attempt: int = 1
    mode: Mode = "still"
    waits: bool = False
    inside: list[int] = field(default_factory=list)
    busy: int = 0
    failed: bool = False
    is_effect: bool = False


class TimeBreakdown:
    """Time by what it went to, in ns. A call in which others are under way is counted by these."""

    def __init__(self) -> None:
        self.first_ns = self.last_ns = 0  # records
        self.at_work_ns = self.in_tools_ns = self.waiting_ns = self.parallel_ns = 0
        self._counts = {"works": 0, "waits": 0, "still": 0}  # calls with none under way inside
        self._from_ns = 0  # 0: no process is known to be at work

    def saw(self, time_ns: int) -> None:
        """A record of whomever."""
        self.first_ns = self.first_ns or time_ns
        self.last_ns = max(self.last_ns, time_ns)

    def begin(self, time_ns: int, open_attempts: Iterable[OpenAttempt]) -> None:
        """A process takes the run up: nothing is under way."""
        for open_attempt in open_attempts:
            open_attempt.mode, open_attempt.busy = "still", 0
        self._counts = dict.fromkeys(self._counts, 0)
        self._from_ns = time_ns

    def until(self, time_ns: int) -> None:
        """The process is at work up to now."""
        if self._from_ns:
            spent = max(0, time_ns - self._from_ns)  # clocks are set back at times
            self.at_work_ns += spent
            if self._counts["works"]:
                self.in_tools_ns += spent
                self.parallel_ns += spent if self._counts["works"] > 1 else 0
            elif self._counts["waits"]:
                self.waiting_ns += spent
        self._from_ns = time_ns

    def turn(self, open_attempt: OpenAttempt, mode: Mode, outer: OpenAttempt | None) -> None:
        """From now on the call works, waits, or does neither."""
        was, open_attempt.mode = open_attempt.mode, mode
        if not open_attempt.busy:
            self._count(was, -1)
            self._count(mode, +1)
        if outer is None or (was == "still") == (mode == "still"):
            return
        before, outer.busy = outer.busy, max(0, outer.busy + (1 if was == "still" else -1))
        if (before == 0) != (outer.busy == 0):
            self._count(outer.mode, -1 if outer.busy else +1)

    def _count(self, mode: Mode, change: int) -> None:
        if mode != "still":
            self._counts[mode] += change
