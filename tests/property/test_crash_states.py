"""Every disk that a power loss may leave, at any moment of a short history of a log.

Not a sample: each history is stopped after each call that changes the disk, each state that the
model of the disk allows is made (any subset of what was not flushed, one write torn in any way),
and each distinct one is opened, read, opened again, appended to, and crashed again.
"""

from __future__ import annotations

import errno
import os
import random
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context

import pytest

from eventlog import EventLog, LogError
from eventlog.errors import WriterFailedError
from eventlog.testing import Crash, SimulatedDisk
from tests.conftest import Figures
from tests.property.histories import (
    PAYLOADS,
    SEGMENT_SIZE,
    SMALL,
    TORN_SIZES,
    Action,
    History,
    check_recovered,
    check_usable,
    crashes,
    run,
)

# Up to a dozen operations each; together all that a log does.
HISTORIES: dict[str, list[Action]] = {
    "small": SMALL,
    "batches": [
        ("batch", [5, 60, 0]),
        ("batch", [1]),
        ("commit",),
        ("batch", [200, 200]),
        ("append", 3, "forged"),
        ("commit",),
    ],
    "rolls": [
        ("append", 400, "text"),
        ("append", 400, "zeros"),
        ("append", 400, "text"),
        ("commit",),
        ("append", 1500, "text"),
        ("append", 1, "text"),
        ("commit",),
        ("append", 2, "text"),
    ],
    "snapshots": [
        ("snapshot", 100),
        ("append", 10, "frames"),
        ("snapshot", 40),
        ("commit",),
        ("snapshot", 700),
        ("append", 10, "segment"),
        ("commit",),
        ("snapshot", 1),
    ],
    "truncations": [
        ("append", 500, "text"),
        ("append", 500, "text"),
        ("snapshot", 20),
        ("truncate",),
        ("append", 500, "text"),
        ("snapshot", 500),
        ("append", 9, "text"),
        ("truncate",),
        ("append", 1, "text"),
        ("commit",),
    ],
    "a roll, and what is before it removed": [
        ("append", 20, "text"),
        ("commit",),
        ("append", 5, "text"),
        ("roll",),
        ("snapshot", 30),
        ("truncate",),
        ("append", 3, "text"),
        ("roll",),
        ("reopen",),
        ("append", 3, "text"),
    ],
    "reopened": [
        ("append", 20, "text"),
        ("reopen",),
        ("append", 30, "text"),
        ("snapshot", 5),
        ("reopen",),
        ("batch", [9, 9]),
        ("commit",),
        ("reopen",),
        ("append", 700, "text"),
        ("commit",),
    ],
    "died": [
        ("append", 20, "text"),
        ("die",),
        ("append", 40, "frames"),
        ("die",),
        ("append", 2, "text"),
        ("commit",),
    ],
}
QUICK = ("small", "truncations")


class Sweep:
    """Checks states, each distinct one once; the second half only once for what recovery makes.

    ``part`` of ``parts`` takes its share of the images, so that processes share a sweep.
    """

    def __init__(self, part: int = 0, parts: int = 1) -> None:
        self._part, self._parts = part, parts
        self._seen: dict[bytes, int] = {}
        self._usable: set[bytes] = set()

    def losses(self, history: History, torn: bool = True) -> None:
        """Check every state that a power loss may leave now."""
        committed = history.committed

        def wanted(image: bytes) -> bool:
            # The same image later in the history has to hold more: that is another state.
            mine = image[0] % self._parts == self._part
            return mine and self._seen.get(image, -1) < committed

        for disk in history.disk.power_losses(torn, wanted):
            self.check(history, disk)

    def sample(self, history: History, disk: SimulatedDisk, seeds: int) -> None:
        """Check states with any number of torn writes, by seed."""
        for seed in range(seeds):
            self.check(history, disk.after_power_loss(seed))

    def check(self, history: History, disk: SimulatedDisk) -> bool:
        """Whether this state was new here, and is sound then."""
        image = disk.image()
        if self._seen.get(image, -1) >= history.committed:
            return False
        self._seen[image] = history.committed
        kinds = check_recovered(history, disk)
        recovered = disk.image()
        if recovered not in self._usable:
            self._usable.add(recovered)
            check_usable(disk, kinds)
        return True

    @property
    def states(self) -> int:
        """How many distinct disks there were."""
        return len(self._seen)


def swept(name: str, part: int, parts: int) -> tuple[int, float]:
    began, sweep = time.perf_counter(), Sweep(part, parts)
    for history in crashes(HISTORIES[name], (0,)):
        sweep.losses(history)
    return sweep.states, time.perf_counter() - began


@pytest.mark.parametrize("name", HISTORIES)
def test_every_state_of_a_short_history(name: str, figures: Figures) -> None:
    """All whole writes and names, and some that are torn: the rest is for the crash sweep."""
    began, sweep = time.perf_counter(), Sweep()
    for history in crashes(HISTORIES[name], (0,)):
        sweep.losses(history, torn=False)
        sweep.sample(history, history.disk, 20)
    figures.add("power losses, quick", states=sweep.states, seconds=time.perf_counter() - began)
    assert sweep.states > 150


@pytest.mark.crash
@pytest.mark.parametrize("name", HISTORIES)
def test_every_state_of_every_history(name: str, figures: Figures) -> None:
    parts = os.cpu_count() or 1
    began = time.perf_counter()
    with ProcessPoolExecutor(parts, get_context("fork")) as pool:
        jobs = [pool.submit(swept, name, part, parts) for part in range(parts)]
        states = sum(job.result()[0] for job in jobs)
    seconds = time.perf_counter() - began
    figures.add("power losses, exhaustive", histories=1, states=states, seconds=seconds)
    assert states > 2000


@pytest.mark.crash
@pytest.mark.parametrize("name", HISTORIES)
def test_states_with_several_torn_writes(name: str, figures: Figures) -> None:
    sweep = Sweep()
    for history in crashes(HISTORIES[name], TORN_SIZES):
        sweep.sample(history, history.disk, 60)
    figures.add("power losses, several writes torn", states=sweep.states)
    assert sweep.states > 500


@pytest.mark.crash
@pytest.mark.parametrize("number", range(12))
def test_long_histories(number: int, rng: random.Random, figures: Figures) -> None:
    """A hundred operations at random, and power losses at moments of it."""
    program = [long_action(rng) for _ in range(100)]
    whole = run(program)
    whole.drop()
    calls = len(whole.calls) + len(whole.disk.calls)
    sweep = Sweep()
    for _ in range(40):
        history = run(program, (rng.randrange(calls), rng.choice(TORN_SIZES)))
        history.drop()
        sweep.check(history, history.disk.after_process_death())
        for _ in range(20):
            sweep.check(history, history.disk.after_power_loss(rng.getrandbits(32)))
    figures.add("power losses in long histories", histories=1, states=sweep.states)


def long_action(rng: random.Random) -> Action:
    size = rng.choice((0, 5, 50, 300))
    return rng.choice(
        [
            ("append", size, rng.choice(sorted(PAYLOADS))),
            ("append", size, "text"),
            ("batch", [size] * rng.randrange(1, 4)),
            ("snapshot", size),
            ("commit",),
            ("commit",),
            ("truncate",),
            ("roll",),
            ("reopen",),
            ("die",),
        ]
    )


# -- a crash in recovery, and in the recovery of that


def recoveries(disk: SimulatedDisk) -> Iterator[SimulatedDisk]:
    """The disk after a crash at each call of an opening and a closing."""
    whole = disk.after_process_death()
    EventLog.open("log", files=whole, segment_size=SEGMENT_SIZE).close()
    for call in range(len(whole.calls)):
        again = disk.after_process_death()
        again.crash_at(call)
        with pytest.raises(Crash):
            EventLog.open("log", files=again, segment_size=SEGMENT_SIZE).close()
        yield again


def nested(name: str, seeds: int, every: int) -> tuple[int, int]:
    """Distinct states after crashes in recovery, and after crashes in the recovery of those."""
    once, twice = Sweep(), Sweep()
    for history in crashes(HISTORIES[name], (0,)):
        for seed in range(seeds):
            for crashed in recoveries(history.disk.after_power_loss(seed)):
                for lost in some_losses(crashed, seed):
                    if once.check(history, lost.after_process_death()) and not once.states % every:
                        for again in recoveries(lost):
                            for last in some_losses(again, seed):
                                twice.check(history, last)
    return once.states, twice.states


def some_losses(disk: SimulatedDisk, seed: int) -> Iterator[SimulatedDisk]:
    yield from disk.power_losses(torn=False)
    yield disk.after_power_loss(seed)


@pytest.mark.parametrize("name", HISTORIES)
@pytest.mark.parametrize(
    ("seeds", "called"), [(1, ", quick"), pytest.param(8, "", marks=pytest.mark.crash)]
)
def test_a_crash_in_a_recovery(name: str, seeds: int, called: str, figures: Figures) -> None:
    once, twice = nested(name, seeds, 20)
    figures.add(f"crashes in recovery{called}", states=once, twice=twice)
    assert (once > 50 and twice > 10) if called else (once > 200 and twice > 50)


# -- calls that fail


def failed(program: list[Action], fault: tuple[str, int, int]) -> History:
    """The program run until a call fails it; the writer then takes no more."""
    history = History(SimulatedDisk())
    history.disk.fail_at(*fault)
    try:
        history.open()
        for action in program:
            history.do(action)
    except OSError:
        if history.log is not None and history.log._open and fault[0] != "read":
            with pytest.raises(WriterFailedError):
                history.log.append("more", 1)
            history.log.close()
    return history


def check_failed(history: History, torn: bool, sweep: Sweep) -> None:
    history.drop()
    sweep.losses(history, torn)
    sweep.sample(history, history.disk, 3)
    # The same machine goes on: what is kept now must survive the next power loss.
    same = history.disk.after_process_death()
    kinds = check_recovered(history, same)
    check_usable(same, kinds)


def calls_of(program: list[Action], verb: str) -> int:
    history = run(program)
    history.drop()
    return history.disk.reads if verb == "read" else history.disk.calls.count(verb)


FAULTS = [
    (verb, error)
    for verb in ("create", "write", "truncate", "sync", "publish", "remove", "sync directory")
    for error in (errno.EIO, errno.ENOSPC)
]


@pytest.mark.parametrize("name", QUICK)
def test_every_state_after_a_call_that_failed(name: str, figures: Figures) -> None:
    sweep = Sweep()
    for verb, error in FAULTS:
        for nth in range(calls_of(HISTORIES[name], verb)):
            history = failed(HISTORIES[name], (verb, nth, error))
            check_failed(history, False, sweep)
    figures.add("power losses after a failed call, quick", states=sweep.states)
    assert sweep.states > 50


@pytest.mark.crash
@pytest.mark.parametrize("name", HISTORIES)
def test_every_torn_state_after_a_call_that_failed(name: str, figures: Figures) -> None:
    sweep = Sweep()
    for verb, error in FAULTS[::2]:  # what is left does not depend on the error
        for nth in range(calls_of(HISTORIES[name], verb)):
            history = failed(HISTORIES[name], (verb, nth, error))
            check_failed(history, nth % 9 == 0, sweep)
    figures.add("power losses after a failed call", states=sweep.states)
    assert sweep.states > 500


@pytest.mark.parametrize("name", HISTORIES)
def test_a_read_that_fails_loses_nothing(name: str) -> None:
    for nth in range(calls_of(HISTORIES[name], "read")):
        history = failed(HISTORIES[name], ("read", nth, errno.EIO))
        history.drop()
        disk = history.disk.after_process_death()
        check_usable(disk, check_recovered(history, disk))


@pytest.mark.parametrize("name", HISTORIES)
def test_a_read_that_lies_in_recovery_destroys_nothing(name: str, rng: random.Random) -> None:
    """One bit is wrong once, in memory: what is on the disk must come out whole afterwards.

    With the mark file there. Without it the newest record, misread, is a torn one.
    """
    for history in crashes(HISTORIES[name], (0,)):
        disk = history.disk.after_process_death()
        whole = disk.after_process_death()
        EventLog.open("log", files=whole, segment_size=SEGMENT_SIZE).close()
        for nth in range(whole.reads):
            misled = disk.after_process_death()
            misled.misread_at(nth, rng.randrange(rng.choice((64, 600, 3000)) * 8))
            with suppress(LogError, OSError):
                EventLog.open("log", files=misled, segment_size=SEGMENT_SIZE).close()
            check_recovered(history, misled.after_process_death())
