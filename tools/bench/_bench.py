"""What a benchmark is given, and what it must have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from ._peers import peer
from ._result import Aim, Result
from ._worker import Subject


@dataclass(slots=True)
class Bench:
    """Where to measure, and how much of it.

    ``journalled``: a directory on a file system with a journal; None where there is none to be had.
    ``scale``: so many times the repetitions and steps. ``peers``: whether other packages are
    measured too. ``sizes``: those to measure, where a benchmark has several; else its own.
    """

    directory: Path
    journalled: Path | None = None
    scale: float = 1.0
    peers: bool = True
    sizes: Sequence[int] = ()
    _made: int = 0

    def place(self, on: Path | None = None) -> Path:
        """A new and empty directory."""
        self._made += 1
        made = (on or self.directory) / f"{self._made}"
        made.mkdir()
        return made

    def file_systems(self) -> list[tuple[str, Path]]:
        """Name and directory of each file system to measure on."""
        found = [("", self.directory)]
        if self.journalled is not None:
            found.append((", ext4 with a journal", self.journalled))
        return found

    def times(self, count: float, least: int = 1) -> int:
        """``count``, scaled."""
        return max(least, round(count * self.scale))

    def subjects(self, ours: Sequence[Subject], theirs: Sequence[tuple[str, str]]) -> list[Subject]:
        """Those of this Python, and as (name, kind) those of other packages, if they are wanted."""
        return [*ours, *(peer(name, kind) for name, kind in theirs if self.peers)]


@dataclass(frozen=True, slots=True)
class Chart:
    """How the results are drawn: bars by case, or lines over the numbers that the cases are."""

    kind: Literal["bars", "lines"]
    log: bool = True
    across: str = ""  # what the numbers are


class Benchmark(Protocol):
    """A module."""

    TITLE: str
    ABOUT: str
    UNIT: str
    YARDSTICK: str
    CHART: Chart

    def run(self, bench: Bench) -> list[Result]: ...

    def aims(self, results: Sequence[Result]) -> list[Aim]: ...
