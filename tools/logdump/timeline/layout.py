"""Places records and calls on a timeline: when along it, and in which lane. Pure."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

# A long wait is drawn as wide as this share of all work, marked as cut. Many of them together are
# as wide as half of it.
WAIT_SHARE, WAITS_SHARE = 18, 2


class Axis:
    """Positions of records in time. Times are in us since the first record.

    Invariant: in the order of the log, time never runs backwards here. A clock that was set back
    counts as one that stopped; ``set_back`` has by how much, as (index, us).
    """

    def __init__(self) -> None:
        self.began_us = 0
        self.pauses_us: list[int] = []  # before each record
        self.set_back: list[tuple[int, int]] = []
        self._last_us = 0
        self._waits: list[tuple[int, int]] = []  # (index, us) of pauses without work

    def add(self, time_us: int, at_work: bool) -> None:
        """Add a record; ``at_work``: whether a call was at work since the record before."""
        index = len(self.pauses_us)
        if not index:
            self.began_us = self._last_us = time_us
        pause = time_us - self._last_us
        if pause < 0:
            self.set_back.append((index, -pause))
            pause = 0
        self.pauses_us.append(pause)
        if not at_work and pause:
            self._waits.append((index, pause))
        self._last_us = time_us

    def breaks(self) -> list[tuple[int, int]]:
        """Waits that are too long to be drawn to scale: (index of the record after it, width in
        us)."""
        work = sum(self.pauses_us) - sum(pause for _, pause in self._waits)
        width = max(1, work // max(WAIT_SHARE, WAITS_SHARE * len(self._waits)))
        return [(index, width) for index, pause in self._waits if pause > width]


@dataclass(slots=True)
class Bar:
    """A bar from one record to another (both LSNs included), and the bars inside it.

    ``lane``: from 0, set by ``place``. The bars inside it are in lanes below its own.
    """

    first: int
    last: int
    inside: list[Bar] = field(default_factory=list)
    lane: int = 0
    height: int = 1


def place(bars: Sequence[Bar]) -> int:
    """Give each bar, in order of their beginnings, the highest lane that is free for its duration,
    with enough free lanes below it for the bars inside; returns the number of lanes."""
    everything = list(bars)
    for bar in everything:  # grows: the bars inside a bar are appended after it
        everything += bar.inside
    for bar in reversed(everything):
        bar.last = max([bar.last, *(inner.last for inner in bar.inside)])
        bar.height = 1 + _side_by_side(bar.inside)
    height = _side_by_side(bars)
    for bar in everything:
        for inner in bar.inside:
            inner.lane += bar.lane + 1
    return height


def _side_by_side(bars: Sequence[Bar]) -> int:
    """Lanes for bars of known heights, from 0; and the number of lanes."""
    free: list[int] = []  # in order
    taken: list[tuple[int, int, int]] = []  # (until, lane, height)
    lanes = 0
    for bar in sorted(bars, key=lambda bar: bar.first):
        while taken and taken[0][0] < bar.first:
            _, lane, height = heappop(taken)
            for one in range(lane, lane + height):
                insort(free, one)
        bar.lane = _room(free, lanes, bar.height)
        lanes = max(lanes, bar.lane + bar.height)
        free = [one for one in free if not bar.lane <= one < bar.lane + bar.height]
        heappush(taken, (bar.last, bar.lane, bar.height))
    return lanes


def _room(free: list[int], lanes: int, height: int) -> int:
    """The first of ``height`` free lanes in a row; below the last there is always room."""
    start = count = 0
    for lane in free:
        start, count = (start, count + 1) if lane == start + count else (lane, 1)
        if count == height:
            return start
    return start if count and start + count == lanes else lanes
