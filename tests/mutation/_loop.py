"""A pytest plugin: the tests are collected once, and tried in a forked process for each change.

A test that starts an interpreter of its own sees the code as it is.
"""

from __future__ import annotations

import json
import os
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from importlib import import_module  # noqa: TID251 - the files of the project
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings

from tests.mutation._forked import Allowed, Forked
from tests.mutation._live import Functions, Marks, exchange, functions_of
from tests.mutation._map import Place, TestMap
from tests.mutation._mutator import Change

TEST_S = 30.0  # a test that takes longer is left out
KEPT_EVERY = 200  # tests
# A changed test hangs that takes so much more CPU than usual, or waits so much longer.
SPINS_S, SPINS = 3.0, 10
HANG_S, HANGS = 5.0, 10
MAPPED = Allowed(60.0, 60.0)  # one that is not changed


@dataclass(slots=True)
class Tried:
    """A change: its verdict, the test that failed or hangs, how many can fail, and the seconds that
    they have taken; see Forked."""

    tests: int
    verdict: str = ""
    by: str = ""
    spent_s: float = 0.0
    hangs: list[str] = field(default_factory=list)

    def ended(self, verdict: str, by: str = "") -> Tried:
        """With a test that hangs, nothing but a failure of another one is a verdict."""
        hangs = bool(self.hangs) and verdict != "caught"
        self.verdict, self.by = ("hangs", self.hangs[0]) if hangs else (verdict, by)
        return self


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run is to do: see __main__. ``map_to``: where the map of the tests is kept.
    ``found_to``: a line for each change, with its verdict and by which test."""

    changes: tuple[Change, ...]
    files: tuple[str, ...]
    map_to: Path
    found_to: Path
    jobs: int
    limit_s: float

    @classmethod
    def read(cls, path: Path) -> Plan:
        data = json.loads(path.read_text())
        changes = tuple(Change(*one) for one in data["changes"])
        found, kept = Path(data["found_to"]), Path(data["map_to"])
        return cls(changes, tuple(data["files"]), kept, found, data["jobs"], data["limit_s"])


class Loop:
    """Instead of running the tests: map them, and try each change."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.failed = ""  # why the test has failed
        # Whether a test that failed passes where nothing is changed.
        self.sound: dict[str, bool] = {}
        self.functions: Functions = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.failed:
            (*_, last) = ["", *report.longreprtext.splitlines()]
            self.failed = last or "?"

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # once for all
        for file in self.plan.files:  # some are imported only by whoever needs them
            import_module(file.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
        self.functions = functions_of(Path.cwd() / file for file in self.plan.files)
        known = {item.nodeid: item for item in session.items}
        tests = TestMap(self.plan.map_to, self.plan.files)
        parts = [self.plan.map_to.with_suffix(f".{job}") for job in range(self.plan.jobs)]
        self._merge(tests, parts)  # of a run that was ended
        left = [item for item in session.items if item.nodeid not in tests.tests]
        print(f"{len(tests.tests)} tests are mapped, {len(left)} are not", flush=True)
        self._jobs(
            lambda job: self._map(TestMap(parts[job], self.plan.files), left[job :: self.plan.jobs])
        )
        self._merge(tests, parts)
        self.plan.found_to.touch()
        self._jobs(lambda job: self._changes(job, tests, known))
        for *row, verdict, by in map(json.loads, self.plan.found_to.read_text().splitlines()):
            if verdict == "caught":
                tests.caught(Change(*row), by)
        tests.keep()
        return True

    def _jobs(self, work: Callable[[int], None]) -> None:
        """Do this work in so many processes, each with its number."""
        children = []
        for job in range(self.plan.jobs):
            child = os.fork()
            if not child:
                try:
                    work(job)
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(0)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)

    def _changes(self, job: int, tests: TestMap, known: dict[str, pytest.Item]) -> None:
        for change in self.plan.changes[job :: self.plan.jobs]:
            tried = self._try(change, tests, known)
            print(
                f"{tried.verdict:10} {tried.spent_s:5.1f} s {tried.tests:5} tests  {change}  "
                f"{tried.by}",
                flush=True,
            )
            if tried.verdict == "caught":
                tests.caught(change, tried.by)
            with self.plan.found_to.open("a") as found:
                found.write(json.dumps((*change.row, tried.verdict, tried.by)) + "\n")

    # -- the map

    def _merge(self, tests: TestMap, parts: list[Path]) -> None:
        for part in parts:
            tests.add_all(TestMap(part, self.plan.files))
        tests.keep()
        for part in parts:
            part.unlink(missing_ok=True)

    def _map(self, tests: TestMap, left: list[pytest.Item]) -> None:
        while left:
            done, places = 0, list[Place]()
            for said in Forked(self._mapped, left).said(lambda _: MAPPED):
                if said == ["silent"]:
                    break
                if not places:
                    places = list(map(tuple, said))
                    continue
                name, cpu_s, seconds, seen, why = said
                done += 1
                if not why and cpu_s < TEST_S:
                    tests.add(name, cpu_s, seconds, (places[number] for number in seen))
                else:
                    tests.tests[name] = None
                    why = f"fails as it is: {why}" if why else f"takes {cpu_s:.0f} s"
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
        marks = Marks(self.functions)
        say([(str(Path(file).relative_to(root)), *place) for file, *place in marks.places])
        for item, cpu_s, seconds in self._run(items):
            say([item.nodeid, cpu_s, seconds, marks.take(), self.failed])
            self.failed = ""

    def _run(self, items: list[pytest.Item]) -> Iterator[tuple[pytest.Item, float, float]]:
        following: Iterable[pytest.Item | None] = [*items[1:], None]
        for item, then in zip(items, following, strict=True):
            began, used = time.monotonic(), time.process_time()
            item.ihook.pytest_runtest_protocol(item=item, nextitem=then)
            yield item, time.process_time() - used, time.monotonic() - began

    # -- a change

    def _try(self, change: Change, tests: TestMap, known: dict[str, pytest.Item]) -> Tried:
        left = [name for name in tests.of(change) if name in known]
        tried = Tried(len(left))

        def allowed(said: Any) -> Allowed:
            name = said[1] if said else ""
            cpu_s = SPINS_S + SPINS * tests.cpu_s(name)
            rest_s = self.plan.limit_s - tried.spent_s - forked.spent_s
            return Allowed(min(cpu_s, rest_s), HANG_S + HANGS * tests.seconds(name))

        while left:
            at, last = left[0], ["", ""]
            forked = Forked(self._changed, [known[name] for name in left], change)
            for said in forked.said(allowed):
                last = said
                at = said[1] if said[0] == "begins" else at
                if said[0] != "begins":
                    break
            tried.spent_s += forked.spent_s
            match last[0]:
                case "passed":
                    break
                case "failed" | "begins" if self._is_sound(known[at], change):
                    return tried.ended("caught", at)
                case "failed" | "begins":
                    left = left[left.index(at) + 1 :]
                case "silent" if tried.spent_s < self.plan.limit_s:
                    tried.hangs.append(at)
                    # Its file's other tests may well hang, too; those in virtual time fail then.
                    file = at.partition("::")[0]
                    left = left[left.index(at) + 1 :]
                    left.sort(
                        key=lambda name: (
                            "clock" not in getattr(known[name], "fixturenames", ()),
                            name.startswith(file),
                        )
                    )
                case "silent":
                    return tried.ended("unfinished")
                case _:
                    return tried.ended("broken")
        return tried.ended("survived")

    def _is_sound(self, item: pytest.Item, change: Change) -> bool:
        """Whether a test fails with the change and passes without it: by itself, and not for what
        the tests before it have left, or because the map is older than what made it fail."""
        if item.nodeid not in self.sound:
            self.sound[item.nodeid] = self._ended(item, None) == "passed"
        return self.sound[item.nodeid] and self._ended(item, change) in ("failed", "begins")

    def _ended(self, item: pytest.Item, change: Change | None) -> str:
        *_, (last, *_) = Forked(self._changed, [item], change).said(lambda _: MAPPED)
        return str(last)

    def _changed(
        self, say: Callable[[Any], None], items: list[pytest.Item], change: Change | None
    ) -> None:
        if change is not None:
            path = Path.cwd() / change.file
            exchange(self.functions, path, change.applied(path.read_bytes()).decode())
        say(["begins", items[0].nodeid])
        for number, _ in enumerate(self._run(items)):
            if self.failed:
                say(["failed"])
                return
            if number + 1 < len(items):
                say(["begins", items[number + 1].nodeid])
        say(["passed"])


def pytest_configure(config: pytest.Config) -> None:
    # What fails is not made small: that takes as long as a test that hangs.
    phases = [Phase.explicit, Phase.generate]
    settings.register_profile("mutation", settings(), phases=phases)
    settings.load_profile("mutation")
    config.pluginmanager.register(Loop(Plan.read(Path(os.environ["MUTATION_PLAN"]))))
