"""Kills and stops workers, and decides from logs and effects what became of their runs."""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.worker import digest, opened
from tests.support.paths import ROOT

SNAPSHOT = "snapshot"
STOP_S = (3.0, 5.0)  # longer than a lease, and than the time-out of a call


@dataclass
class Verdict:
    """``bad``: what must not be, a line each. ``restarts_s``: from the death of each worker that
    had a run in hand to that run's next record."""

    runs: int
    kills: int = 0
    stops: int = 0
    takeovers: int = 0
    effects: int = 0
    refused: int = 0
    bad: list[str] = field(default_factory=list)
    restarts_s: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        took = "-"
        if self.restarts_s:
            middle, longest = statistics.median(self.restarts_s), max(self.restarts_s)
            took = f"median {middle:.2f} s, longest {longest:.2f} s of {len(self.restarts_s)}"
        lines = [
            f"{self.runs} runs, {self.kills} kills, {self.stops} stops, {self.takeovers} changes "
            f"of owner, {self.effects} effects, {self.refused} times a live process lost a run",
            f"from a worker's death to the run's next record: {took}",
            *(f"BAD: {one}" for one in self.bad),
        ]
        return "\n".join(lines)


class Workers:
    """The processes, which are started again when they are killed."""

    def __init__(self, where: str, place: Path, size: tuple[int, int, int]) -> None:
        workers, runs, steps = size
        self._command = [sys.executable, "-m", "tests.chaos.worker", where, str(place)]
        self._command += [str(runs), str(steps)]
        self._place = place
        self.deaths: list[tuple[float, int]] = []
        self._stopped: dict[int, float] = {}
        self.alive = [self._started() for _ in range(workers)]

    def _started(self) -> subprocess.Popen[bytes]:
        path = os.pathsep.join([*filter(None, sys.path), str(ROOT)])  # behind what is installed
        return subprocess.Popen(self._command, env=os.environ | {"PYTHONPATH": path})

    def kill(self, one: subprocess.Popen[bytes]) -> None:
        """SIGKILL, and another one in its place."""
        one.kill()
        one.wait()
        self.deaths.append((time.time(), one.pid))
        self._stopped.pop(one.pid, None)
        self.alive[self.alive.index(one)] = self._started()

    def stop(self, one: subprocess.Popen[bytes], seconds: float) -> None:
        """SIGSTOP for a while; the others are told, as an operator would be."""
        if one.pid not in self._stopped:
            one.send_signal(signal.SIGSTOP)
            (self._place / f"stopped-{one.pid}").touch()
            self._stopped[one.pid] = time.monotonic() + seconds

    def wake(self, at_once: bool = False) -> None:
        """SIGCONT for those whose time has come."""
        for pid, until in list(self._stopped.items()):
            if at_once or until <= time.monotonic():
                (self._place / f"stopped-{pid}").unlink()
                os.kill(pid, signal.SIGCONT)
                del self._stopped[pid]

    def end(self) -> None:
        """Kill what is left."""
        self.wake(at_once=True)
        for one in self.alive:
            one.kill()
            one.wait()


def chaos(
    where: str,
    place: Path,
    rng: random.Random,
    size: tuple[int, int, int],
    patience_s: float,
    faults: int = sys.maxsize,
) -> Verdict:
    """Let ``size`` = (workers, runs, steps) finish at the store ``where``, and judge.

    ``patience_s``: a run that is not finished then is bad. There are ``faults`` at most, and none
    in the last third of it.
    """
    verdict, workers = Verdict(size[1]), Workers(where, place, size)
    began = time.monotonic()
    try:
        while any(one.poll() is None for one in workers.alive):
            spent = time.monotonic() - began
            if spent > patience_s:
                verdict.bad.append(f"not finished after {patience_s:.0f} s")
                break
            time.sleep(rng.uniform(0.2, 0.6))
            workers.wake(at_once=spent > patience_s * 2 / 3)
            busy = {pid for _, pid, *_ in _notes(place, "appends")[-60:]}
            going = [one for one in workers.alive if one.poll() is None and one.pid in busy]
            is_over = verdict.kills + verdict.stops >= faults or spent > patience_s * 2 / 3
            if not going or is_over:
                continue
            if rng.random() < 0.6:
                workers.kill(rng.choice(going))
                verdict.kills += 1
            else:
                workers.stop(rng.choice(going), rng.uniform(*STOP_S))
                verdict.stops += 1
    finally:
        workers.end()
    judge(where, place, size, workers.deaths, verdict)
    return verdict


def _notes(place: Path, name: str) -> list[list[Any]]:
    file = place / name
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def judge(
    where: str,
    place: Path,
    size: tuple[int, int, int],
    deaths: list[tuple[float, int]],
    verdict: Verdict,
) -> None:
    """Decide from logs, effects and notes alone; see Verdict."""
    _, runs, steps = size
    appended: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    owners: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for when, pid, run_id, epoch, what in _notes(place, "appends"):
        appended[run_id][what].add(epoch)
        if what:
            owners[run_id].append((when, pid))
    committed: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for _, _, run_id, epoch, lsn in _notes(place, "commits"):
        committed[run_id].append((epoch, lsn))
    verdict.bad += [
        f"{run}: a person was asked: {text}" for *_, run, text in _notes(place, "persons")
    ]
    verdict.refused = len(_notes(place, "lost"))
    store = opened(where)
    for run_id in (f"run-{n}" for n in range(runs)):
        state = store.run(run_id).status().state if run_id in store.backend.run_ids() else "missing"
        if state != "finished":
            verdict.bad.append(f"{run_id}: {state}, not finished")
            continue
        _judge_log(store, run_id, appended[run_id], committed[run_id], verdict)
        _judge_effects(place, run_id, steps, verdict)
        _time_restarts(owners[run_id], deaths, verdict)


def _judge_log(
    store: Any,
    run_id: str,
    appended: dict[str, set[int]],
    committed: list[tuple[int, int]],
    verdict: Verdict,
) -> None:
    reader = store.backend.read(run_id)
    with reader:
        records = [
            (one.lsn, None if one.kind == SNAPSHOT else digest(one.kind, one.packed))
            for one in reader.records()
        ]
    writer = 0
    first_of: dict[int, int] = {}
    for lsn, what in records:
        if what is None:  # a checkpoint, which no owner notes
            continue
        epochs = [epoch for epoch in appended[what] if epoch >= writer]
        if not epochs:
            verdict.bad.append(f"{run_id}: LSN {lsn} is a record of a stale owner, or of nobody")
            return
        writer = min(epochs)
        first_of.setdefault(writer, lsn)
    verdict.takeovers += len(first_of) - 1
    if [lsn for lsn, _ in records] != list(range(1, len(records) + 1)):
        verdict.bad.append(f"{run_id}: LSNs are missing")
    # What an owner was told is durable is before the first record of the next owner.
    for epoch, lsn in committed:
        later = [at for by, at in first_of.items() if by > epoch]
        if lsn >= min(later, default=len(records) + 1):
            verdict.bad.append(f"{run_id}: owner {epoch} was told that LSN {lsn} is durable: lost")


def _judge_effects(place: Path, run_id: str, steps: int, verdict: Verdict) -> None:
    lines = [json.loads(line) for line in (place / f"bank-{run_id}").read_text().splitlines()]
    fences = [fence for fence, *_ in lines]
    if fences != sorted(fences):
        verdict.bad.append(f"{run_id}: an effect of an old fence after one of a newer")
    paid = Counter(key for _, key, _ in lines if key)
    verdict.effects += paid.total()
    if len(paid) != steps or set(paid.values()) != {1}:
        verdict.bad.append(f"{run_id}: {len(paid)} of {steps} effects, {paid.total()} times")


def _time_restarts(
    owners: list[tuple[float, int]], deaths: list[tuple[float, int]], verdict: Verdict
) -> None:
    """How long the run lay still after each death of a worker that had it."""
    for died, pid in deaths:
        before = [one for one in owners if one[0] < died]
        after = [when for when, other in owners if when > died and other != pid]
        if before and before[-1][1] == pid and after:
            verdict.restarts_s.append(min(after) - died)
