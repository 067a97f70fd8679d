"""The golden runs, a store of them: `python -m tests.data.make_runs`.

Runs in every state, some of them damaged. They are made on a simulated disk, with its randomness,
in a time that passes only where something waits for it, so that the same code makes the same
bytes. As the golden logs, they are never written again: runs like them are in users' hands.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import struct
import sys
import time
import traceback
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import eventlog.write.log
from eventlog import EventLog
from eventlog.dump import dump
from eventlog.encryption import Encryption
from eventlog.format.frame import HEADER_SIZE, SEGMENT_MAGIC
from eventlog.testing import Crash, SimulatedDisk
from recovery import CheckpointStore, InDoubtError, ParkedError, RecoverableAgent, Resolution
from recovery.agent import agent_errors, begin_run
from recovery.control.cancel import cancel
from recovery.control.resolve import resolve
from recovery.control.send import approve, pending, signal
from recovery.errors import RunFailedError
from recovery.ops.fork import fork
from recovery.stores.log_store import LogStore
from recovery.testing.simulated.virtual_time import Clock, Loop
from tests.data import trip

DATA = Path(__file__).parent
RUNS = DATA / "runs"
KEY = bytes(range(64, 96))  # of the run that is encrypted
KEY_ID = "2026-05"

BEGAN = 1_777_885_200.0  # 4 May 2026, 9:00 UTC
SEGMENT_SIZE = 5000
AHEAD = 512
RECORD_S = 0.002  # between two records of which nothing says when

Stored = dict[str, bytes]  # contents by path in the store


class _Disk(SimulatedDisk):
    """A simulated disk on which it is the same time as everywhere; the host has a name."""

    def __init__(self, clock: Clock, seed: int) -> None:
        super().__init__(seed)
        self.clock = clock

    def time_ns(self) -> int:
        self.clock.ahead += RECORD_S
        return int((BEGAN + self.clock.ahead) * 1e9)

    def process(self) -> tuple[int, str]:
        return 4000 + self.seed, "worker-3"

    def _next(self) -> SimulatedDisk:
        return _Disk(self.clock, self.seed + 1)


class _Store(LogStore):
    """Runs in small segments."""

    def claim(self, run_id: str, takeover: bool = False) -> EventLog:
        return EventLog.open(
            self._path(run_id),
            segment_size=SEGMENT_SIZE,
            files=self.files,
            encryption=self.encryption,
        )

    def _now_ns(self) -> int:
        return self.files.time_ns()


class _Loop(Loop):
    """Virtual time, and no threads at all."""

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        return super().run_in_executor(None, func, *args)


class Maker:
    """A store on a simulated disk, and the processes that work on it, one after the other."""

    def __init__(self, seed: int, encryption: Encryption | None = None) -> None:
        self.clock, self.encryption = Clock(), encryption
        self.disk: SimulatedDisk = _Disk(self.clock, seed)
        trip.world = self.world = trip.World(self.die)

    @property
    def store(self) -> CheckpointStore:
        """The store, for one process."""
        return CheckpointStore(_Store("runs", self.disk, "power", self.encryption))

    def die(self) -> None:
        """The process dies where it is."""
        self.disk._dead = True
        raise Crash

    def tear(self) -> None:
        """The process dies in its next write."""
        self.disk.crash_at(0, torn_size=50)

    def live(
        self, run_id: str, agent: Callable[..., Any] = trip.book_trip, task: Any = None
    ) -> list[int]:
        """A process takes the run up, and gets as far as it can; the calls that it leaves in doubt.

        Then there is another process.
        """
        in_doubt: list[int] = []
        runner = RecoverableAgent(agent, self.store, checkpoint_every_n=2, park_after_s=60.0)
        try:
            runner.run_with_recovery_sync(trip.TASK if task is None else task, run_id)
        except InDoubtError as exc:
            in_doubt = [call.lsn for call in exc.calls]
        except (Crash, ParkedError, RunFailedError, KeyError):
            pass
        self.disk = self.disk.after_process_death()
        self.clock.ahead += 20.0
        return in_doubt

    def approve(self, run_id: str) -> None:
        """Somebody says yes to what waits."""
        self.clock.ahead += 1200.0
        (asked,) = pending(self.store, run_id)
        approve(self.store, run_id, asked, who="ann", why="as agreed, \u202eok\x1b[0m")

    def stored(self) -> Stored:
        """All files, as they are now, with less of what was zero-filled ahead."""
        return {
            f"{path}/{name}".removeprefix("runs/"): _trimmed(bytes(file.content))
            for path, entries in sorted(self.disk.directories.items())
            for name, file in sorted(entries.items())
        }

    def frame(self, run_id: str, wanted: Callable[[dict[str, Any]], bool]) -> tuple[str, int]:
        """The segment and the offset of the last record that is wanted, as ``dump`` has it."""
        with EventLog.read(f"runs/{run_id}", files=self.disk) as reader:
            items: list[dict[str, Any]] = list(dump(reader))
            found = [item for item in items if "lsn" in item and wanted(item)][-1]
        return f"{run_id}/{found['segment']:08d}.seg", found["offset"]


@contextmanager
def _fixed(maker: Maker) -> Iterator[None]:
    """All code sees one clock and one randomness; what runs behind the agents' backs does not."""
    chance = random.Random(2026)
    clock = maker.clock
    clock.begin()

    def text(*given: Any, **__: Any) -> list[str]:
        (exc,) = (one for one in given if isinstance(one, BaseException))
        # Without the paths and lines of whoever makes these.
        what = f"{type(exc).__name__}: {exc}\n"
        return ["Traceback (most recent call last):\n", '  File "trip.py", line 7, in tool\n', what]

    logging.disable(logging.CRITICAL)
    try:
        with (
            mock.patch.multiple(
                time,
                time=lambda: BEGAN + clock.ahead,
                time_ns=lambda: int((BEGAN + clock.ahead) * 1e9),
                monotonic=lambda: clock.ahead,
                sleep=clock.sleep,
            ),
            mock.patch.object(asyncio.events, "new_event_loop", lambda: _Loop(clock)),
            mock.patch.object(os, "urandom", chance.randbytes),
            mock.patch.object(begin_run, "_new_uid", lambda *known: chance.randbytes(16).hex()),
            mock.patch.object(random, "random", chance.random),
            mock.patch.object(traceback, "format_exception", text),
            mock.patch.object(agent_errors, "place_of", lambda _: "trip.py:7 in plan_badly"),
            mock.patch.object(
                eventlog.write.log,
                "committer",
                SimpleNamespace(request=lambda log, lsn: None, forget=lambda log: None),
            ),
        ):
            yield
    finally:
        logging.disable(logging.NOTSET)


def _trimmed(content: bytes) -> bytes:
    size = len(content.rstrip(b"\0")) + AHEAD
    return content[: size + -size % 512]


# -- the runs


def _booked(maker: Maker, run_id: str, dies_in: str = "") -> None:
    """The trip as far as it gets; ``dies_in`` one more tool than the search."""
    maker.live(run_id)  # waits for the payment to be approved
    maker.approve(run_id)
    maker.world.dies_in = "tickets"
    maker.live(run_id)
    maker.world.dies_in = dies_in
    maker.live(run_id)


def finished(maker: Maker) -> Stored:
    """Parked for an approval, died in a call, and finished then."""
    _booked(maker, "finished")
    return maker.stored()


def crashed_in_doubt(maker: Maker) -> Stored:
    """Died inside send_mail; no process has it."""
    _booked(maker, "crashed_in_doubt", "send_mail")
    return maker.stored()


def parked(maker: Maker) -> Stored:
    """The same, and a process has taken it up: it parked."""
    _booked(maker, "parked", "send_mail")
    maker.live("parked")
    return maker.stored()


def resolved(maker: Maker) -> Stored:
    """The same, somebody said what became of the mail, and it went on."""
    _booked(maker, "resolved", "send_mail")
    (call,) = maker.live("resolved")
    resolve(maker.store, "resolved", call, Resolution.outcome("250 OK 1"), who="bob", why="asked")
    maker.live("resolved")
    return maker.stored()


def waiting(maker: Maker) -> Stored:
    """Waits for a payment to be approved."""
    maker.live("waiting")
    return maker.stored()


def sleeping(maker: Maker) -> Stored:
    """Sleeps for a week; a signal that it has not asked for yet lies in its inbox."""
    maker.live("sleeping", trip.wait_for_spring, "spring")
    signal(maker.store, "sleeping", "answer", {"go": True, "note": trip.NASTY}, who="ann")
    return maker.stored()


def failed(maker: Maker) -> Stored:
    """The payment was declined."""
    maker.world.refuses["charge for good"] = 1
    maker.live("failed")
    maker.approve("failed")
    maker.live("failed")
    return maker.stored()


def crash_loop(maker: Maker) -> Stored:
    """Its agent raises the same error in each of three processes."""
    for _ in range(3):
        maker.live("crash_loop", trip.plan_badly, "days")
    return maker.stored()


def cancelled(maker: Maker) -> Stored:
    """Ended by somebody while it waited."""
    maker.live("cancelled")
    cancel(maker.store, "cancelled", who="ann", why="we stay at home")
    return maker.stored()


def forked(maker: Maker) -> Stored:
    """A finished run, forked at step 4, and what the fork made of it."""
    _booked(maker, "origin")
    fork(maker.store, "origin", "forked", at_step=4, state={"plan": ["in business"]}, who="ann")
    maker.live("forked")
    return maker.stored()


def parent(maker: Maker) -> Stored:
    """A run with two children."""
    maker.live("parent", trip.plan_days, "days")
    return maker.stored()


def torn(maker: Maker) -> Stored:
    """Died while it wrote the outcome of a search."""
    maker.world.dies = maker.tear
    _booked(maker, "torn", "search")
    return maker.stored()


def encrypted(maker: Maker) -> Stored:
    """Died inside send_mail; all of it is encrypted."""
    _booked(maker, "encrypted", "send_mail")
    return maker.stored()


def damaged_header(maker: Maker) -> Stored:
    """A bit of the header of the second segment is wrong."""
    return _damaged(maker, "damaged_header", lambda item: item["segment"] == 2, 33, whole=True)


def damaged_frame(maker: Maker) -> Stored:
    """The length of the record of the charge's approval is wrong."""
    return _damaged(maker, "damaged_frame", lambda item: item["kind"] == "decided", 9)


def damaged_payload(maker: Maker) -> Stored:
    """The outcome of the tickets is wrong, which no checkpoint covers: its call is in doubt."""
    return _damaged(
        maker,
        "damaged_payload",
        lambda item: item["kind"] == "outcome" and item["size"] > 300,
        HEADER_SIZE,
    )


def damaged_early(maker: Maker) -> Stored:
    """The beginning of the second step is wrong, which the newest checkpoint does without."""
    return _damaged(
        maker,
        "damaged_early",
        lambda item: item["kind"] == "step" and item["body"]["step"] == 2,
        HEADER_SIZE,
    )


def damaged_snapshot(maker: Maker) -> Stored:
    """The newest checkpoint is wrong."""
    return _damaged(maker, "damaged_snapshot", lambda item: item["type"] == "snapshot", 90)


def missing_segment(maker: Maker) -> Stored:
    """The second segment is gone."""
    _booked(maker, "missing_segment", "send_mail")
    stored = maker.stored()
    del stored["missing_segment/00000002.seg"]
    return stored


def foreign(maker: Maker) -> Stored:
    """Not a log, whatever its name says."""
    return {"foreign/00000001.seg": b"Dear diary,\n\x1b[31mtoday I was taken for a log.\n" * 9}


def unsupported(maker: Maker) -> Stored:
    """Of a format version that is yet to come."""
    header = struct.pack("<8sHHI16sQQQ4s", SEGMENT_MAGIC, 99, 0, 1, bytes(16), 1, 1, 1, b"salt")
    return {"unsupported/00000001.seg": header + struct.pack("<I", zlib.crc32(header)) + bytes(448)}


def _damaged(
    maker: Maker,
    run_id: str,
    wanted: Callable[[dict[str, Any]], bool],
    at: int,
    *,
    whole: bool = False,
) -> Stored:
    """A run that died inside send_mail, and a bit of the last frame that is wanted: at ``at`` in
    it, or in the ``whole`` segment."""
    _booked(maker, run_id, "send_mail")
    name, offset = maker.frame(run_id, wanted)
    stored = maker.stored()
    content = bytearray(stored[name])
    content[at if whole else offset + at] ^= 4
    stored[name] = bytes(content)
    return stored


RUNS_MADE: list[Callable[[Maker], Stored]] = [
    finished,
    crashed_in_doubt,
    parked,
    resolved,
    waiting,
    sleeping,
    failed,
    cancelled,
    forked,
    parent,
    torn,
    encrypted,
    damaged_header,
    damaged_frame,
    damaged_payload,
    damaged_early,
    damaged_snapshot,
    missing_segment,
    foreign,
    unsupported,
    crash_loop,
]


def make(run: Callable[[Maker], Stored]) -> Stored:
    """The files of one golden run, and of those that belong to it."""
    seed = RUNS_MADE.index(run) * 10
    maker = Maker(seed, Encryption(KEY, KEY_ID) if run is encrypted else None)
    with _fixed(maker):
        return run(maker)


def write(folder: Path, stored: Iterable[Stored]) -> None:
    """Write runs into a folder that is not there yet."""
    if folder.exists():
        sys.exit(f"{folder} is there. Runs like those are in users' hands: read them for ever.")
    for run in stored:
        for name, content in run.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
    print(f"wrote {folder}")


if __name__ == "__main__":
    write(RUNS, map(make, RUNS_MADE))
