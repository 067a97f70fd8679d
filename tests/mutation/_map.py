"""Which tests can notice a change, and in which order they are tried."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.mutation._mutator import Change

Place = tuple[str, str, int]  # see ``places`` of _mutator
FASTEST = 40


class Mapped(NamedTuple):
    """A test: seconds of CPU, seconds, and the statements it executes, as bits of a number."""

    cpu_s: float
    seconds: float
    bits: int


class TestMap:
    """Which test executes which statements, and how long it takes; kept in a file.

    ``tests``: by name; None for one that is left out, as it takes too long, hangs, or fails though
    nothing is changed. ``killers``: which tests have noticed changes, by file and function.
    """

    __test__ = False

    def __init__(self, path: Path, files: Sequence[str] = ()) -> None:
        self._path = path
        kept = json.loads(path.read_text()) if path.exists() else {}
        if not set(files) <= set(kept.get("files", [])):
            kept = {}  # nobody has looked which tests execute these files
        self.files = kept.get("files", files)
        self.places: list[Place] = list(map(tuple, kept.get("places", [])))
        self.tests: dict[str, Mapped | None] = {
            name: one and Mapped(one[0], one[1], int(one[2], 16))
            for name, one in kept.get("tests", {}).items()
        }
        self.killers: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for place, found in kept.get("killers", {}).items():
            self.killers[place].update(found)

    def keep(self) -> None:
        self._path.parent.mkdir(exist_ok=True)
        tests = {
            name: one and (one.cpu_s, one.seconds, f"{one.bits:x}")
            for name, one in self.tests.items()
        }
        kept = {"files": self.files, "places": self.places, "tests": tests, "killers": self.killers}
        self._path.write_text(json.dumps(kept))

    def add(self, name: str, cpu_s: float, seconds: float, places: Iterable[Place]) -> None:
        """So long a test takes, and these statements it executes."""
        numbers = {place: number for number, place in enumerate(self.places)}
        bits = 0
        for place in places:
            if place not in numbers:
                numbers[place] = len(numbers)
                self.places.append(place)
            bits |= 1 << numbers[place]
        self.tests[name] = Mapped(cpu_s, seconds, bits)

    def add_all(self, other: TestMap) -> None:
        """The tests that another map knows."""
        for name, one in other.tests.items():
            if one is None:
                self.tests[name] = None
            else:
                seen = (place for n, place in enumerate(other.places) if one.bits >> n & 1)
                self.add(name, one.cpu_s, one.seconds, seen)

    def cpu_s(self, name: str) -> float:
        found = self.tests.get(name)
        return found.cpu_s if found else 0.0

    def seconds(self, name: str) -> float:
        found = self.tests.get(name)
        return found.seconds if found else 0.0

    def caught(self, change: Change, test: str) -> None:
        """This test has noticed this change."""
        self.killers[f"{change.file} {change.function}"][test] += 1
        self.killers[change.file][test] += 1

    def of(self, change: Change) -> list[str]:
        """The tests that execute the statement of a change; of a statement that nobody knows, those
        of its function.

        First those that noticed other changes of the function. Then the fastest. Then each file
        gets as much CPU time as any other; of a file first those of different kinds: of one kind
        are tests that execute the same statements of the function.
        """
        function = [
            (number, place)
            for number, place in enumerate(self.places)
            if place[:2] == (change.file, change.function)
        ]
        same = [one for one in function if one[1][2] == change.statement] or function
        statement, near = _mask(same), _mask(function)
        masks = {name: one.bits for name, one in self.tests.items() if one and one.bits & statement}
        usual = sorted(masks, key=self.cpu_s)
        ours = self.killers[f"{change.file} {change.function}"]
        order = [name for name, _ in ours.most_common() if name in masks]
        order += usual[:FASTEST]
        order += [name for name, _ in self.killers[change.file].most_common() if name in masks]
        order += self._by_kind(usual, {name: bits & near for name, bits in masks.items()})
        return list(dict.fromkeys(order))

    def _by_kind(self, usual: Sequence[str], kinds: dict[str, int]) -> list[str]:
        rounds: Counter[tuple[str, int]] = Counter()
        files: defaultdict[str, list[tuple[int, float, str]]] = defaultdict(list)
        for name in usual:
            file = name.partition("::")[0]
            files[file].append((rounds[file, kinds[name]], self.cpu_s(name), name))
            rounds[file, kinds[name]] += 1
        shares = []
        for found in files.values():
            spent = 0.0
            for _, cpu_s, name in sorted(found):
                spent += cpu_s
                shares.append((spent, name))
        return [name for _, name in sorted(shares)]


def _mask(places: Iterable[tuple[int, Place]]) -> int:
    return sum(1 << number for number, _ in places)
