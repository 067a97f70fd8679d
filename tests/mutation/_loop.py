"""A pytest plugin: the tests are collected once, and tried in a forked process for each change.

A test that starts an interpreter of its own sees the code as it is.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.mutation._live import Marks, exchange
from tests.mutation._mutator import Change

TEST_S = 10.0  # a test that takes longer is left out
MAPPED_S = 60.0  # how long one may take at all
KEPT_EVERY = 200  # tests
FASTEST = 60
HANG_S = 5.0  # and ten times what it takes: longer than that is a hang


@dataclass(frozen=True, slots=True)
class Plan:
    """What a session is to do: see __main__. ``map_to``: where the map of the tests is kept."""

    changes: tuple[Change, ...]
    files: tuple[str, ...]
    map_to: Path
    found_to: Path
    limit_s: float

    @classmethod
    def read(cls, path: Path) -> Plan:
        data = json.loads(path.read_text())
        changes = tuple(Change(*one) for one in data["changes"])
        found, kept = Path(data["found_to"]), Path(data["map_to"])
        return cls(changes, tuple(data["files"]), kept, found, data["limit_s"])


class TestMap:
    """Which test executes which statements, and how many seconds it takes; kept in a file.

    ``tests``: by name, the seconds and the statements as bits of a number; None for one that is
    left out, as it takes too long, hangs, or fails though nothing is changed.
    """

    __test__ = False

    def __init__(self, path: Path) -> None:
        self._path = path
        kept = json.loads(path.read_text()) if path.exists() else {"places": [], "tests": {}}
        self.places: list[tuple[str, str, int]] = list(map(tuple, kept["places"]))
        self.tests: dict[str, tuple[float, str] | None] = kept["tests"]

    def keep(self) -> None:
        self._path.parent.mkdir(exist_ok=True)
        self._path.write_text(json.dumps({"places": self.places, "tests": self.tests}))

    def add(self, name: str, taken: float, places: Iterable[tuple[str, str, int]]) -> None:
        """So long a test takes, and these statements it executes."""
        numbers = {place: number for number, place in enumerate(self.places)}
        for place in places:
            if place not in numbers:
                numbers[place] = len(numbers)
                self.places.append(place)
        self.tests[name] = taken, f"{sum(1 << numbers[place] for place in places):x}"

    def seconds(self, name: str) -> float:
        return (self.tests.get(name) or (0.0, ""))[0]

    def of(self, change: Change) -> list[str]:
        """The tests that execute the statement of a change: the fastest, then those that together,
        in little time, execute most. Of a statement that nobody knows: those of its function."""
        function = [(number, place) for number, place in enumerate(self.places)
                    if place[:2] == (change.file, change.function)]  # fmt: skip
        same = [one for one in function if one[1][2] == change.statement] or function
        bits = sum(1 << number for number, _ in same)
        masks = {name: int(one[1] or "0", 16) for name, one in self.tests.items() if one}
        left = {name: mask for name, mask in masks.items() if mask & bits}
        found = sorted(left, key=self.seconds)[:FASTEST]
        left = {name: mask for name, mask in left.items() if name not in {*found}}
        seen = 0
        while left:

            def worth(name: str) -> float:
                new = (left[name] & ~seen).bit_count()  # noqa: B023 - used here
                return new / (0.1 + self.seconds(name))

            best = max(left, key=worth)
            if worth(best):
                seen |= left.pop(best)
                found.append(best)
            elif seen:
                seen = 0  # once more, with those that are left
            else:
                found += sorted(left, key=self.seconds)
                break
        return found


class Loop:
    """Instead of running the tests: map them, and try each change."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.failed = False
        self.killers: dict[str, Counter[str]] = {}  # by function
        self.sound: dict[
            str, bool
        ] = {}  # whether a test that failed passes where nothing is changed

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed = self.failed or report.failed

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        known = {item.nodeid: item for item in session.items}
        tests = TestMap(self.plan.map_to)
        self._map(tests, [item for item in session.items if item.nodeid not in tests.tests])
        found = []
        for change in self.plan.changes:
            began = time.monotonic()
            verdict, by, count = self._try(change, tests, known)
            found.append((*change.row, verdict, by))
            taken = time.monotonic() - began
            print(f"{verdict:10} {taken:5.1f} s {count:5} tests  {change}  {by}", flush=True)
            self.plan.found_to.write_text(json.dumps(found))
        return True

    # -- the map

    def _map(self, tests: TestMap, left: list[pytest.Item]) -> None:
        print(f"{len(tests.tests)} tests are mapped, {len(left)} are not", flush=True)
        while left:
            done = 0
            for name, taken, seen in _told(self._mapped, left, allowed=lambda said: MAPPED_S):
                done += 1
                if seen is not None and taken < TEST_S:
                    tests.add(name, taken, list(map(tuple, seen)))
                else:
                    tests.tests[name] = None
                    why = "fails as it is" if seen is None else f"takes {taken:.0f} s"
                    print(f"left out: {name} {why}", flush=True)
                if done % KEPT_EVERY == 0:
                    tests.keep()
            if done < len(left):
                tests.tests[left[done].nodeid] = None
                print(f"left out: {left[done].nodeid} hangs, or ends the process", flush=True)
            left = left[done + 1 :]
        tests.keep()

    def _mapped(self, say: Callable[[Any], None], items: list[pytest.Item]) -> None:
        root = Path.cwd()
        marks = Marks(root / file for file in self.plan.files)
        for item, taken in self._run(items):
            seen = [(str(Path(file).relative_to(root)), *place) for file, *place in marks.take()]
            say([item.nodeid, taken, None if self.failed else seen])
            self.failed = False

    def _run(self, items: list[pytest.Item]) -> Iterator[tuple[pytest.Item, float]]:
        following: Iterable[pytest.Item | None] = [*items[1:], None]
        for item, then in zip(items, following, strict=True):
            began = time.monotonic()
            item.ihook.pytest_runtest_protocol(item=item, nextitem=then)
            yield item, time.monotonic() - began

    # -- a change

    def _try(
        self, change: Change, tests: TestMap, known: dict[str, pytest.Item]
    ) -> tuple[str, str, int]:
        """The verdict; the test that failed, or hangs; and how many can fail."""
        names = [name for name in tests.of(change) if name in known]
        first = self.killers.setdefault(f"{change.file} {change.function}", Counter())
        names.sort(key=lambda name: -first[name])
        until = time.monotonic() + self.plan.limit_s
        hangs: list[str] = []
        left = names

        def allowed(said: Any) -> float:
            usual = tests.seconds(said[1]) if said else 1.0
            return min(HANG_S + 10 * usual, until - time.monotonic())

        while left:
            items = [known[name] for name in left]
            at, said = left[0], [""]
            for said in _told(self._changed, items, change, allowed=allowed):
                if said[0] == "begins":
                    at = said[1]
                elif said[0] != "silent":
                    break
            match said[0]:
                case "passed":
                    break
                case "failed" | "begins" if self._passes_unchanged(known[at]):
                    first[at] += 1
                    return "caught", at, len(names)
                case "failed" | "begins":  # the map is older than what made it fail
                    left = left[left.index(at) + 1 :]
                case "silent" if time.monotonic() < until:
                    hangs.append(at)
                    file = at.partition("::")[0]  # whose other tests may well hang, too
                    left = left[left.index(at) + 1 :]
                    left.sort(key=lambda name: name.startswith(file))
                case "silent":
                    return ("hangs" if hangs else "unfinished"), "", len(names)
                case _:
                    return "broken", "", len(names)
        return ("hangs", hangs[0], len(names)) if hangs else ("survived", "", len(names))

    def _passes_unchanged(self, item: pytest.Item) -> bool:
        if item.nodeid not in self.sound:
            said = list(_told(self._changed, [item], None, allowed=lambda said: MAPPED_S))
            self.sound[item.nodeid] = ["passed"] in said
        return self.sound[item.nodeid]

    def _changed(
        self, say: Callable[[Any], None], items: list[pytest.Item], change: Change | None
    ) -> None:
        if change is not None:
            path = Path.cwd() / change.file
            exchange(path, change.applied(path.read_bytes()).decode())
        say(["begins", items[0].nodeid])
        for number, _ in enumerate(self._run(items)):
            if self.failed:
                say(["failed"])
                return
            if number + 1 < len(items):
                say(["begins", items[number + 1].nodeid])
        say(["passed"])


def _told(work: Callable[..., None], *args: Any, allowed: Callable[[Any], float]) -> Iterator[Any]:
    """What a forked process says that does this work. ``allowed``: for how many seconds it may
    say nothing more, after what it said last; then it is killed, and the last is "silent"."""
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setsid()
            signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background
            os.close(reads)
            nowhere = os.open(os.devnull, os.O_RDWR)
            for one in (0, 1, 2):
                os.dup2(nowhere, one)
            work(lambda said: os.write(writes, json.dumps(said).encode() + b"\n"), *args)
        finally:
            os._exit(0)
    os.close(writes)
    last, rest = None, b""
    try:
        while select.select([reads], [], [], max(0.0, allowed(last)))[0]:
            part = os.read(reads, 1 << 20)
            if not part:
                return
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                last = json.loads(line)
                yield last
        if last and last[0] == "begins":
            yield ["silent"]
    finally:
        os.close(reads)
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Loop(Plan.read(Path(os.environ["MUTATION_PLAN"]))))
