"""Kills a program with SIGKILL before and after each append, and resumes it in a new process.

The program is a function that begins its work in a directory, or resumes what it finds there, and
returns a transcript: JSON of all that must be as in the run that nobody killed (every message, the
body of every model request), without the fields that belong to one process. Its tools tell
``outside.did(...)`` of their effects; runs of ours are in ``CheckpointStore(place / RUNS)``.

    def live(place: Path) -> Any: ...

    def test_it_survives(tmp_path: Path, rng: random.Random) -> None:
        found = sweep(live, tmp_path, rng, points=scaled(12, 10_000))
        assert found.bad == [] and found.doubted

Each life is a forked process, which has all modules: import what is slow before, and start no
thread before. Only the forked process may open stores and loops.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from eventlog import EventLog
from recovery import CheckpointStore
from recovery.inspect.status import status
from recovery.testing.simulated.forgotten_doubts import forgotten
from tests.support import outside

RUNS = "runs"
LIVES_MAX = 30
STUCK_S = 60

Live = Callable[[Path], Any]
Settle = Callable[[Path, str], None]


@dataclass(frozen=True)
class End:
    """How a life ended: "done", "killed", or the name of the error that stopped it. ``said``: the
    transcript, or the error with its traceback. ``appends``: how many there were."""

    how: str
    said: Any = None
    appends: int = 0


@dataclass
class Found:
    """``points``: how often the program was killed; ``doubted``: in how many of these cases a
    person was asked; ``bad``: what went wrong, a text for each case."""

    appends: int = 0
    points: int = 0
    doubted: int = 0
    bad: list[str] = field(default_factory=list)


def settle(place: Path, how: str) -> None:
    """What a person does between two lives, who approves what waits for that, looks outside and
    does what the error says.

    A subject whose runs wait for signals, or that knows what will wait, has one of its own, and
    calls this for the rest. What it did not expect is an AssertionError.
    """
    if how == "WaitingError":
        return approve(place)
    assert how in ("InDoubtError", "UnrecordedResultError", "ChildParkedError"), how
    store, asked = CheckpointStore(place / RUNS), 0
    for run_id in store.backend.run_ids():
        for call in status(store, run_id).in_doubt:
            store.run(run_id).resolve(call, outside.truth(call))
            asked += 1
    assert asked, "a run is in doubt, and no call is"


def approve(place: Path) -> None:
    """Approve all calls that wait for it."""
    store, approved = CheckpointStore(place / RUNS), 0
    for run_id in store.backend.run_ids():
        for call in store.run(run_id).pending():
            store.run(run_id).approve(call, who="ann")
            approved += 1
    assert approved, "a run waits, and for no approval"


def sweep(
    live: Live,
    place: Path,
    rng: random.Random,
    *,
    points: int = 10_000,
    settle: Settle = settle,
) -> Found:
    """Kill the program before and after each append, at most ``points`` of them drawn at random,
    and some of its second lives once more; compare all with the run that nobody killed."""
    whole = _lives(live, place / "whole", settle, {})
    expected, effects = whole[-1].said, outside.counted()
    found = Found(sum(end.appends for end in whole))
    deaths = [
        (number, when, at)
        for number, end in enumerate(whole)
        for at in range(1, end.appends + 1)
        for when in ("before", "after")
    ]
    for number, when, at in sorted(rng.sample(deaths, min(points, len(deaths)))):
        name = f"{number}-{when}-{at}"
        kills = {number: (when, at), number + 1: ("after", rng.choice([0, 0, 1, 2, 3]))}
        found.points += 1
        try:
            lives = _lives(live, place / name, settle, kills)
            assert lives[number].how == "killed", "it was not reached"
            assert lives[-1].said == expected, _difference(expected, lives[-1].said)
            assert outside.counted() == effects, _difference(effects, outside.counted())
            found.doubted += any(end.how == "InDoubtError" for end in lives)
        except AssertionError as exc:
            found.bad.append(f"{name} {kills}: {exc}")
    return found


def _lives(live: Live, place: Path, settle: Settle, kills: dict[int, tuple[str, int]]) -> list[End]:
    place.mkdir(parents=True)
    outside.moved_to(place)
    lives: list[End] = []
    while len(lives) < LIVES_MAX:
        lives.append(life(partial(live, place), *kills.get(len(lives), ("after", 0))))
        if lives[-1].how == "done":
            return lives
        assert list(forgotten(CheckpointStore(place / RUNS).backend)) == [], "a doubt is forgotten"
        if lives[-1].how != "killed":
            try:
                settle(place, lives[-1].how)
            except AssertionError as exc:
                raise AssertionError(f"{exc}\n{lives[-1].said}") from exc
    raise AssertionError(f"not finished: {[end.how for end in lives]}")


def life(live: Callable[[], Any], when: str, at: int) -> End:
    """One process, killed before or after it makes this append (0: it is not)."""
    reads, writes = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.close(reads)
            with os.fdopen(writes, "w") as file:
                json.dump(_live(live, when, at), file)
        finally:
            os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as file:
        said = file.read()
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL, f"stuck for {STUCK_S} s"
        return End("killed")
    assert said, "the process has said nothing: its transcript is no JSON"
    return End(*json.loads(said))


def _live(live: Callable[[], Any], when: str, at: int) -> tuple[str, Any, int]:
    signal.alarm(STUCK_S)
    append, mutex, count = EventLog.append, threading.Lock(), 0

    def dies(log: EventLog, *args: Any, **kwargs: Any) -> int:
        nonlocal count
        with mutex:  # of several threads, one is at its append
            count += 1
            if (when, at) == ("before", count):
                os.kill(os.getpid(), signal.SIGKILL)
            lsn = append(log, *args, **kwargs)
            if (when, at) == ("after", count):
                os.kill(os.getpid(), signal.SIGKILL)
            return lsn

    setattr(EventLog, "append", dies)  # noqa: B010 - of another signature
    try:
        said = live()
    except BaseException as exc:
        return type(exc).__name__, traceback.format_exc()[-3000:], count
    return "done", said, count


def _difference(expected: Any, found: Any) -> str:
    """The first place at which two values differ."""
    if isinstance(expected, Counter):
        return f"effects made too often: {found - expected}, not made: {expected - found}"
    if type(expected) is type(found) and isinstance(expected, dict):
        for key in [*expected, *found]:
            if expected.get(key) != found.get(key):
                return f".{key}{_difference(expected.get(key), found.get(key))}"
    if type(expected) is type(found) and isinstance(expected, list):
        for number, (one, other) in enumerate(zip(expected, found, strict=False)):
            if one != other:
                return f"[{number}]{_difference(one, other)}"
        return f": {len(found)} items for {len(expected)}: {found[len(expected) :]}"
    return f": {found!r:.1000} for {expected!r:.1000}"
