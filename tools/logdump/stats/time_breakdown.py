"""Divides the time of a run into tools, waiting, and the agent's own code. Pure.

A process is at work from when it resumes the run until the last record that it writes. The time
between two of its records belongs to the calls in flight: to tools if one of them was at work, to
waiting if all calls in flight were waits, else to the agent's own code.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

Mode = Literal["works", "waits", "still"]


@dataclass(slots=True)
class OpenAttempt:
    """A call without an outcome. ``mode``: whether its tool is at work, it waits, or neither.

    ``since_ns``: when this attempt began. ``session``: the process (by number) that began it.
    ``inside``: the nested calls; ``busy``: how many of them are in flight. ``failed``: it has an
    outcome, and may be made again with the call around it. ``is_effect``: its tool must not be
    repeated.
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
    """Time by purpose, in ns. A call with nested calls in flight is counted by those."""

    def __init__(self) -> None:
        self.first_ns = self.last_ns = 0  # records
        self.at_work_ns = self.in_tools_ns = self.waiting_ns = self.parallel_ns = 0
        self._counts = {"works": 0, "waits": 0, "still": 0}  # calls without nested ones in flight
        self._from_ns = 0  # 0: no process is known to be at work

    def saw(self, time_ns: int) -> None:
        """Note the time of a record, by any writer."""
        self.first_ns = self.first_ns or time_ns
        self.last_ns = max(self.last_ns, time_ns)

    def begin(self, time_ns: int, open_attempts: Iterable[OpenAttempt]) -> None:
        """A process resumes the run: no call is in flight."""
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
