"""Summarizes many numbers in bounded memory: durations, and bytes over the steps of a run. Pure."""

from __future__ import annotations

from array import array

KEPT_MAX = 4096  # durations from which a median is taken: 32 KiB
BUCKETS_MAX = 640  # stretches of a run; with fewer steps, one for each step


class DurationSample:
    """Count, total, maximum and median of durations."""

    def __init__(self) -> None:
        self.count = self.total_ns = self.longest_ns = 0
        self._kept, self._every = array("q"), 1

    def add(self, ns: int) -> None:
        """Add a duration."""
        if self.count % self._every == 0:
            if len(self._kept) == KEPT_MAX:  # from now on keep half as many
                del self._kept[1::2]
                self._every *= 2
            if self.count % self._every == 0:
                self._kept.append(ns)
        self.count += 1
        self.total_ns += ns
        self.longest_ns = max(self.longest_ns, ns)

    @property
    def exact(self) -> bool:
        """Whether the median is of all durations, and not of every second, fourth, ... of them."""
        return self._every == 1

    def median_ns(self) -> int:
        """The median; of an even number, the mean of the two in the middle. 0 of none."""
        kept = sorted(self._kept)
        if not kept:
            return 0
        return (kept[(len(kept) - 1) // 2] + kept[len(kept) // 2]) // 2


class StepSizes:
    """Bytes by purpose over the steps of a run, in stretches with equal numbers of steps.

    A stretch is one step up to BUCKETS_MAX steps; then two, four, and so on.
    """

    def __init__(self, parts: int) -> None:
        self.steps, self.width = 0, 1
        self._parts = parts
        self._buckets: list[list[int]] = []

    def step(self) -> None:
        """Begin a step that has not been counted yet."""
        if self.steps == len(self._buckets) * self.width:
            if len(self._buckets) == BUCKETS_MAX:
                pairs = zip(self._buckets[::2], self._buckets[1::2], strict=True)
                self._buckets = [[x + y for x, y in zip(*pair, strict=True)] for pair in pairs]
                self.width *= 2
            self._buckets.append([0] * self._parts)
        self.steps += 1

    def add(self, part: int, size: int) -> None:
        """Add bytes to the newest step; bytes before the first step are not counted."""
        if self._buckets:
            self._buckets[-1][part] += size

    def per_step(self) -> list[float]:
        """Bytes per step, of each stretch."""
        return [sum(bucket) / steps for bucket, steps in self._sized()]

    def tenths(self) -> tuple[list[float], list[float]]:
        """Bytes per step in the first tenth of the run and in the last, by purpose."""
        sized = self._sized()
        many = max(1, len(sized) // 10)
        return self._mean(sized[:many]), self._mean(sized[-many:])

    def _sized(self) -> list[tuple[list[int], int]]:
        if not self._buckets:
            return []
        last = self.steps - (len(self._buckets) - 1) * self.width
        return [*((bucket, self.width) for bucket in self._buckets[:-1]), (self._buckets[-1], last)]

    def _mean(self, sized: list[tuple[list[int], int]]) -> list[float]:
        steps = max(1, sum(number for _, number in sized))
        return [sum(bucket[i] for bucket, _ in sized) / steps for i in range(self._parts)]
