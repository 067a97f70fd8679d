"""Starts workers at a store; kills, stops and partitions them, and kills the server."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from eventlog import LogError
from recovery.worker.listing_queue import queue_of
from tests.chaos.agents import AGENTS, opened
from tests.chaos.judge import Death, Verdict, judge
from tests.support.paths import ROOT
from tests.support.tcp_proxy import BACK, OUT, Proxy

DOWN_S = (0.1, 3.0)  # of the server
PARTITIONS = ((OUT, BACK), (OUT,), (BACK,))


@dataclass(frozen=True)
class Plan:
    """``seconds``: how long there are faults, ``pause_s`` apart, since a worker has begun; at most
    ``faults``. Runs are submitted in the first two thirds of it. Stops and partitions last
    ``away_s``: longer than a lease, than the time-out of a call, and some than patience.
    ``end_s``: within which all runs must have finished after the last fault.
    """

    seed: int
    workers: int = 3
    runs: int = 200
    steps: int = 9
    seconds: float = 300.0
    pause_s: tuple[float, float] = (0.5, 2.0)
    away_s: tuple[float, float] = (2.0, 8.0)
    faults: int = sys.maxsize
    end_s: float = 180.0

    def all_runs(self) -> dict[str, int]:
        """The runs, and how many steps each has."""
        return {f"run-{number}": self.steps for number in range(self.runs)}


class Slot:
    """The place of one worker: its process, its way to the store, and when a fault ends."""

    def __init__(self, number: int, where: str, place: Path, seed: int) -> None:
        self.number, self._place, self.proxy = number, place, _proxy(where)
        self._log = (place / f"worker-{number}.log").open("ab")
        url = _through(where, self.proxy) if self.proxy else where
        names = {"CHAOS_PLACE": str(place), "CHAOS_STORE": url, "CHAOS_SEED": str(seed)}
        # Others see the death of every second worker; for the rest they have only its lease.
        self.is_seen = number % 2 == 0 or "://" not in where
        if not self.is_seen:
            names["CHAOS_MACHINE"] = f"machine-{number}"
        path = os.pathsep.join([*filter(None, sys.path), str(ROOT)])  # behind what is installed
        self._environment = os.environ | names | {"PYTHONPATH": path}
        self._ends: list[tuple[float, Callable[[], object]]] = []
        self.start()

    def start(self) -> None:
        """The command that users have. Runs that are killed often are no reason for quarantine."""
        words = ["recovery.cli", "worker", "tests.chaos.agents:agents", "--max-crashes", "100000"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", *words],
            env=self._environment,
            cwd=self._place,
            stdout=self._log,
            stderr=self._log,
        )

    @property
    def is_faulty(self) -> bool:
        return bool(self._ends)

    def kill(self) -> Death:
        """SIGKILL, and another one in its place. A partition stays."""
        self.process.kill()
        self.process.wait()
        death = Death(time.time(), self.process.pid, self.is_seen)
        self._ends = [one for one in self._ends if one[1] is not self._wake]
        self.start()
        return death

    def stop(self, seconds: float) -> None:
        """SIGSTOP for a while."""
        self.process.send_signal(signal.SIGSTOP)
        self._ends.append((time.monotonic() + seconds, self._wake))

    def _wake(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def cut(self, seconds: float, directions: tuple[str, ...], reset: bool) -> None:
        """Pass no bytes in these directions for a while; then end the connections, or not."""
        assert self.proxy is not None
        proxy = self.proxy
        proxy.cut(*directions)
        self._ends.append((time.monotonic() + seconds, lambda: proxy.heal(reset)))

    def heal(self, at_once: bool = False) -> None:
        """End the faults whose time is over."""
        for one in [one for one in self._ends if at_once or one[0] <= time.monotonic()]:
            self._ends.remove(one)
            one[1]()

    def close(self) -> None:
        """Stop the worker as a user does; kill what is left."""
        self.heal(at_once=True)
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        self.process.kill()
        self.process.wait()
        if self.proxy is not None:
            self.proxy.close()
        self._log.close()


class Chaos:
    """One run of it. ``server``: a private server that may be killed, or None."""

    def __init__(self, where: str, place: Path, plan: Plan, server: Any = None) -> None:
        self._place, self._plan, self._server = place, plan, server
        self._rng = random.Random(plan.seed)
        self._store = opened(where)
        self._queue = queue_of(self._store)
        self._down_until = 0.0
        self._faults: Counter[str] = Counter()
        self._deaths: list[Death] = []
        self._bad: list[str] = []
        self._read = 0
        self._recent: list[list[Any]] = []
        self._runs = plan.all_runs()
        for number, run_id in enumerate(self._runs):
            delay_s = plan.seconds * 2 / 3 * number / plan.runs
            agent = AGENTS[number % len(AGENTS)].__name__
            self._store.submit(agent, plan.steps, run_id, delay_s=delay_s)
        self._slots = [Slot(n, where, place, plan.seed) for n in range(plan.workers)]
        self._looked = 0.0

    def run(self) -> Verdict:
        """Let all runs finish, and judge."""
        began, first_at, next_at, plan = time.monotonic(), 0.0, 0.0, self._plan
        try:
            while not self._all_finished():
                spent = time.monotonic() - began
                if spent > plan.seconds + plan.end_s:
                    self._bad.append(f"not finished {plan.end_s:.0f} s after the last fault")
                    break
                if not (self._place / "appends").exists():
                    first_at = spent  # no worker has anything in hand yet
                late = spent - first_at > plan.seconds
                is_over = late or self._faults.total() >= plan.faults
                self._heal(is_over)
                if not is_over and spent > next_at:
                    next_at = spent + self._rng.uniform(*plan.pause_s)
                    self._fault()
                time.sleep(0.1)
        finally:
            self._heal(True)
            for slot in self._slots:
                slot.close()
        verdict = judge(self._store, self._place, self._runs, self._deaths)
        verdict.faults = self._faults
        verdict.bad[:0] = self._bad
        return verdict

    def _fault(self) -> None:
        """One fault, at a worker that has runs in hand; or at the server."""
        kinds = {"SIGKILL": 4, "SIGSTOP": 3}
        kinds |= {"partition": 4} if self._slots[0].proxy else {}
        kinds |= {"server killed": 1} if self._server else {}
        (kind,) = self._rng.choices([*kinds], [*kinds.values()])
        away_s = self._rng.uniform(*self._plan.away_s)
        choice, how = self._rng.random(), self._rng.randrange(6)
        if kind == "server killed":
            if not self._down_until:
                self._server.kill()
                self._down_until = time.monotonic() + DOWN_S[0] + choice * (DOWN_S[1] - DOWN_S[0])
                self._faults[kind] += 1
            return
        busy = self._busy()
        slots = [one for one in self._slots if one.process.pid in busy]
        slots = [one for one in slots if kind == "SIGKILL" or not one.is_faulty]
        if not slots:
            return
        slot = slots[int(choice * len(slots))]
        match kind:
            case "SIGKILL":
                self._deaths.append(slot.kill())
            case "SIGSTOP":
                runs = busy[slot.process.pid]
                slot.stop(away_s)
                if "://" not in self._store.backend.address:
                    self._take_from(runs)
            case "partition":
                directions = PARTITIONS[how % 3]
                slot.cut(away_s, directions, reset=how < 3)
                kind = f"partition ({', '.join(directions)})"
        self._faults[kind] += 1

    def _busy(self) -> dict[int, set[str]]:
        """The processes of the newest appends, each with its runs."""
        file = self._place / "appends"
        if file.exists():
            with file.open("rb") as lines:
                lines.seek(self._read)
                new = lines.read()
            self._read += new.rfind(b"\n") + 1
            self._recent += [json.loads(line) for line in new[: new.rfind(b"\n") + 1].splitlines()]
            self._recent = self._recent[-60:]
        found: dict[int, set[str]] = {}
        for _, pid, run_id, *_ in self._recent:
            found.setdefault(pid, set()).add(run_id)
        return found

    def _take_from(self, runs: set[str]) -> None:
        """In a directory nothing runs out: an operator takes the runs of a stopped process."""
        for run_id in sorted(runs):
            with suppress(LogError):
                self._store.backend.claim(run_id, takeover=True).close()

    def _heal(self, at_once: bool) -> None:
        if self._down_until and (at_once or self._down_until <= time.monotonic()):
            self._down_until = 0.0
            self._server.start()
        for slot in self._slots:
            slot.heal(at_once)
            if (code := slot.process.poll()) is not None:
                self._bad.append(f"a worker ended by itself: exit code {code}")
                slot.start()

    def _all_finished(self) -> bool:
        if self._down_until or time.monotonic() < self._looked + 1:
            return False
        found = self._queue.find(states=("finished",), limit=len(self._runs))
        self._looked = time.monotonic()
        return len(found) == len(self._runs)


def _proxy(where: str) -> Proxy | None:
    """A proxy before the server of a URL; None without a host."""
    parts = urlsplit(where)
    return Proxy(parts.hostname, parts.port or 5432) if parts.scheme and parts.hostname else None


def _through(where: str, proxy: Proxy) -> str:
    parts = urlsplit(where)
    user, at, _ = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{user}{at}127.0.0.1:{proxy.port}").geturl()


def chaos(where: str, place: Path, plan: Plan, server: Any = None) -> Verdict:
    """Have workers finish runs in the store ``where``, whatever is done to them, and judge."""
    return Chaos(where, place, plan, server).run()
