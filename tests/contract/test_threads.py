"""One log in many threads: what is read beside a writer is whole, and no reader stops the writer.

The writer appends, commits, rolls segments, takes snapshots and truncates. Every reader knows, from
counters outside the log, what its answer must hold at least.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from eventlog import Damage, EventLog, LogReader
from eventlog.encryption import Encryption
from eventlog.files.api import Files
from eventlog.files.memory import MemoryDirectory, MemoryFiles, OpenMemoryFile
from eventlog.files.posix import OSFiles
from eventlog.read.segments import NAMES_AT_ONCE
from recovery import CheckpointStore, RecoverableAgent, Run, SyncRun, tool
from recovery.inspect.status import status
from recovery.stores.log_store import LogStore
from tests.conftest import Figures

SEGMENT_SIZE = 1500
SNAPSHOT_EVERY = 15
KEEP = 3  # snapshots

Reading = EventLog | LogReader


class Stress:
    """A log with its writer, and what has been written and may be removed, as counted outside."""

    def __init__(self, log: EventLog, seed: int) -> None:
        self.log, self.seed = log, seed
        self.written = 0  # LSN up to which every append has returned
        self.floor = 1  # records before this LSN may be gone
        self.snapshots: list[int] = []  # LSNs, each once its append has returned
        self.over = threading.Event()
        self.errors: list[BaseException] = []
        self.answers = 0

    def write(self) -> None:
        rng = random.Random(self.seed)
        while not self.over.is_set():
            self.append()
            if rng.random() < 0.1:
                self.log.commit()
            if rng.random() < 0.02 and len(self.snapshots) > KEEP:
                self.truncate()
            if rng.random() < 0.02:
                self.log.roll()

    def append(self, records: int = 1) -> None:
        for _ in range(records):
            body = {"lsn": self.written + 1, "text": "x" * 60}
            if body["lsn"] == 1 or self.written % SNAPSHOT_EVERY == 0:
                self.snapshots.append(self.log.append_snapshot(body))
            else:
                assert self.log.append("event", body) == body["lsn"]
            self.written += 1

    def truncate(self) -> None:
        self.floor = self.snapshots[-KEEP]
        assert self.log.truncate_before(self.floor) <= self.floor

    def follow_on(self) -> None:
        """What the writer of a busy log does between two looks of a reader."""
        self.append(4 * SNAPSHOT_EVERY)
        self.truncate()

    def read(self, log: Reading, seed: int) -> None:
        rng = random.Random(seed)
        questions = (
            self.ask_records,
            self.ask_tail,
            self.ask_snapshots,
            self.ask_fetch,
            self.ask_ends,
        )
        while not self.over.is_set():
            rng.choice(questions)(log, rng)
            self.answers += 1

    def ask_records(self, log: Reading, rng: random.Random, start: int = 0) -> None:
        written, start = self.written, start or rng.choice((1, self.floor))
        found = [(record.lsn, record.body["lsn"]) for record in log.records(start)]
        lsns = [lsn for lsn, _ in found]
        assert found == [(lsn, lsn) for lsn in lsns]
        assert lsns == sorted(set(lsns))
        missing = set(range(max(start, self.floor), written + 1)) - set(lsns)
        assert not missing, f"records: {sorted(missing)} of {start} to {written}, got {lsns}"

    def ask_tail(self, log: Reading, rng: random.Random) -> None:
        self.ask_records(log, rng, max(1, self.written - rng.randrange(20)))

    def ask_snapshots(self, log: Reading, rng: random.Random) -> None:
        known = self.snapshots[:]
        found = [snapshot.lsn for snapshot in log.snapshots()]
        assert found == sorted(set(found), reverse=True)
        missing = {lsn for lsn in known if lsn >= self.floor} - set(found)
        assert not missing, f"snapshots: {missing}"
        known = self.snapshots[:]
        newest = log.latest_snapshot()
        if known:
            assert newest is not None
            assert newest.lsn >= known[-1]
            assert newest.body["lsn"] == newest.lsn

    def ask_fetch(self, log: Reading, rng: random.Random) -> None:
        written, floor = self.written, self.floor
        if written < floor:
            return
        wanted = {rng.randint(floor, written) for _ in range(rng.randrange(1, 5))}
        found = log.fetch(wanted | {written + 1000})
        assert {lsn for lsn, record in found.items() if record.body["lsn"] == lsn} == set(found)
        missing = {lsn for lsn in wanted if lsn >= self.floor} - set(found)
        assert not missing, f"fetch: {missing} of {wanted}"

    def ask_ends(self, log: Reading, rng: random.Random) -> None:
        written, floor = self.written, self.floor
        if isinstance(log, EventLog):
            assert log.durable_lsn <= log.last_lsn
        else:
            oldest = log.oldest_lsn
            assert log.durable_lsn() >= oldest - 1
            assert log.tail().next_lsn > written
            owner = log.owner()
            assert owner is not None
            assert owner.alive
        assert log.oldest_lsn <= max(floor, self.floor)

    def follow(self, log: LogReader, pause: Callable[[], object]) -> None:
        """All records come, but for what was removed before they were reached."""
        at = 0
        for item in log.arrivals():
            if item is None:
                if self.over.is_set() and at >= self.written:
                    return
                pause()
                continue
            assert not isinstance(item, Damage), str(item)
            assert item.lsn > at
            assert item.lsn == at + 1 or item.lsn <= self.floor, f"{at} is followed by {item.lsn}"
            at = item.lsn
            self.answers += 1

    def guard(self, work: Callable[..., None], *args: Any) -> threading.Thread:
        def guarded() -> None:
            try:
                work(*args)
            except BaseException as exc:
                self.errors.append(exc)

        thread = threading.Thread(target=guarded)
        thread.start()
        return thread

    def run(self, readers: list[Reading], seconds: float) -> None:
        with short_turns():
            threads = [self.guard(self.write)]
            for number, reader in enumerate(readers):
                threads.append(self.guard(self.read, reader, self.seed + number))
            followed = readers[-1]
            if isinstance(followed, LogReader):
                threads.append(self.guard(self.follow, followed, partial(time.sleep, 0.001)))
            end = time.monotonic() + seconds
            while time.monotonic() < end and not self.errors:
                time.sleep(0.05)
            self.over.set()
            for thread in threads:
                thread.join(60)
                assert not thread.is_alive()
        if self.errors:
            raise self.errors[0]


@contextmanager
def short_turns() -> Iterator[None]:
    """Threads take turns hundreds of times as often as they would."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def stressed(
    files: Files, path: str, whose: str, threads: int, seconds: float, seed: int
) -> Stress:
    with ExitStack() as stack:
        log = stack.enter_context(
            EventLog.open(path, "process", files=files, segment_size=SEGMENT_SIZE)
        )
        stress = Stress(log, seed)
        stress.append()
        if whose == "log":
            readers: list[Reading] = [log] * threads
        elif whose == "reader":
            readers = [stack.enter_context(EventLog.read(path, files=files))] * threads
        else:
            readers = [
                stack.enter_context(EventLog.read(path, files=files)) for _ in range(threads)
            ]
        stress.run(readers, seconds)
        log.commit()
    with EventLog.open(path, files=files) as log:
        assert log.report.damaged == ()
        stress.ask_records(log, random.Random(0), stress.floor)
    return stress


FILES: dict[str, Callable[[], Files]] = {"disk": OSFiles, "memory": MemoryFiles}


@pytest.mark.parametrize("whose", ["log", "reader", "readers"])
@pytest.mark.parametrize("threads", [2, 8])
@pytest.mark.parametrize("where", FILES)
def test_a_log_is_read_by_threads_while_it_is_written(
    where: str, threads: int, whose: str, tmp_path: Path, rng: random.Random
) -> None:
    stressed(FILES[where](), str(tmp_path / "log"), whose, threads, 0.15, rng.getrandbits(32))


@pytest.mark.crash
@pytest.mark.parametrize("whose", ["log", "reader", "readers"])
@pytest.mark.parametrize("threads", [2, 8])
@pytest.mark.parametrize("where", FILES)
def test_a_log_is_read_by_threads_for_a_minute(
    where: str, threads: int, whose: str, tmp_path: Path, rng: random.Random, figures: Figures
) -> None:
    path = str(tmp_path / "log")
    stress = stressed(FILES[where](), path, whose, threads, 60, rng.getrandbits(32))
    figures.add("a log in threads", answers=stress.answers, records=stress.written)


@pytest.mark.parametrize("where", FILES)
def test_threads_truncate_and_close_one_log(where: str, tmp_path: Path) -> None:
    files = FILES[where]()
    for number in range(3):
        path = str(tmp_path / str(number))
        log = EventLog.open(path, "none", files=files, segment_size=SEGMENT_SIZE)
        for lsn in range(1, 100):
            log.append("event", {"lsn": lsn, "text": "x" * 60})
        errors: list[BaseException] = []

        def truncate(log: EventLog = log, errors: list[BaseException] = errors) -> None:
            try:
                for lsn in range(30, 100, 30):
                    log.truncate_before(lsn)
                log.append("event", {})
                log.commit()
            except BaseException as exc:
                errors.append(exc)

        with short_turns():
            run_together(truncate, truncate, truncate)
            assert errors == []
            run_together(log.close, log.close)
        with EventLog.open(path, files=files) as log:
            assert log.report.clean
            assert [record.lsn for record in log.records()] == list(range(log.oldest_lsn, 103))


def run_together(*works: Callable[[], object]) -> None:
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


class Watched(MemoryDirectory):
    """A directory with which something happens before call ``at``, and once only."""

    def __init__(self, files: MemoryFiles, path: str, at: int, act: Callable[[], object]) -> None:
        super().__init__(files, path)
        self.calls, self.at, self.act = 0, at, act

    def _count(self) -> None:
        self.calls += 1
        if self.calls == self.at:
            self.act()

    def names(self) -> list[str]:
        self._count()
        return super().names()

    def open(self, name: str, *, write: bool = False, create: bool = False) -> OpenMemoryFile:
        self._count()
        return super().open(name, write=write, create=create)

    def identity(self, name: str) -> object:
        self._count()
        return super().identity(name)


def follow_to_the_end(stress: Stress, log: LogReader, rng: random.Random) -> None:
    stress.follow(log, stress.over.set)


QUESTIONS: dict[str, Callable[..., None]] = {
    "records": Stress.ask_records,
    "tail": Stress.ask_tail,
    "snapshots": Stress.ask_snapshots,
    "fetch": Stress.ask_fetch,
    "ends": Stress.ask_ends,
    "follow": follow_to_the_end,
}


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("secret", [None, bytes(32)], ids=["", "encrypted"])
def test_the_writer_truncates_between_any_two_looks_of_a_reader(
    question: str, secret: bytes | None
) -> None:
    encryption = None if secret is None else Encryption(secret, accept_clear=True)
    for at in itertools.count(1):
        files = MemoryFiles()
        with EventLog.open("log", "process", files=files, segment_size=SEGMENT_SIZE) as log:
            stress = Stress(log, at)
            stress.append(5 * SNAPSHOT_EVERY)
        with EventLog.open(
            "log", "process", files=files, segment_size=SEGMENT_SIZE, encryption=encryption
        ) as log:
            stress.log = log
            stress.append(SNAPSHOT_EVERY)
            directory = Watched(files, "log", at, stress.follow_on)
            with LogReader(files, directory, encryption) as reader:
                QUESTIONS[question](stress, reader, random.Random(at))
                if directory.calls < at:
                    assert at > 3
                    break
                stress.ask_records(reader, random.Random(at))


class InPieces(MemoryDirectory):
    """A large directory, as the system lists it: in pieces, here the newest names first."""

    def __init__(self, files: MemoryFiles, path: str, between: Callable[[], object]) -> None:
        super().__init__(files, path)
        self.between = between

    def names(self) -> list[str]:
        first = sorted(super().names(), reverse=True)[: NAMES_AT_ONCE + 1]
        self.between()
        return first + [name for name in super().names() if name < first[-1]]


def test_segments_that_come_and_go_while_many_names_are_listed_are_no_damage() -> None:
    """The system lists a large directory in pieces, and does not stop the writer in between."""
    files = MemoryFiles()
    with EventLog.open("log", "none", files=files, segment_size=200) as log:
        while log.last_lsn < NAMES_AT_ONCE + 300:
            log.append("event", {"text": "x" * 200})
        truncations = iter((100, 200, 250))

        def truncate() -> None:
            for lsn in itertools.islice(truncations, 1):
                log.truncate_before(lsn)

        with LogReader(files, InPieces(files, "log", truncate)) as reader:
            lsns = [record.lsn for record in reader.records()]
        assert next(truncations, None) is None
    assert lsns == list(range(250, NAMES_AT_ONCE + 301))


def test_who_closes_a_reader_leads_no_other_thread_into_another_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A descriptor that is closed has its number taken by the next file that is opened."""
    for name in ("ours", "theirs"):
        with EventLog.open(tmp_path / name) as log:
            log.append("event", {"of": name})
    looks = itertools.count(1)
    while reads_as_it_is_closed(tmp_path, next(looks), monkeypatch):
        pass
    assert next(looks) > 5


def reads_as_it_is_closed(path: Path, at: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether a reader, closed when it is about to open a file for the ``at``-th time, was so."""
    reader, opened = EventLog.read(path / "ours"), os.open
    calls, others, found = itertools.count(1), list[LogReader](), list[Any]()

    def close_first(*args: Any, **kwargs: Any) -> int:
        if next(calls) == at:  # as another thread does it, between the look and the use
            reader.close()
            others.append(EventLog.read(path / "theirs"))
        return opened(*args, **kwargs)

    with monkeypatch.context() as patched, suppress(OSError):
        patched.setattr(os, "open", close_first)
        found = [record.body for record in reader.records()]
    reader.close()
    assert found in ([], [{"of": "ours"}])
    with pytest.raises(OSError, match="the log was closed"):
        list(reader.records())
    for other in others:
        other.close()
    return bool(others)


class SmallSegments(LogStore):
    """Runs in segments of a few records, so that retention always has something to remove."""

    def claim(self, run_id: str, takeover: bool = False) -> EventLog:
        return EventLog.open(
            self._path(run_id),
            "process",
            segment_size=SEGMENT_SIZE,
            takeover=takeover,
            files=self.files,
        )


@tool(after_crash="retry")
def look_up(step: int) -> dict[str, Any]:
    return {"step": step, "text": os.urandom(100).hex()}


@tool
async def send(what: str) -> str:
    await asyncio.sleep(0)
    return what


STEPS = 12


def keep(run: Run | SyncRun, found: dict[str, Any]) -> bool:
    run.messages.append({"role": "tool", "content": os.urandom(50).hex(), "step": found["step"]})
    del run.messages[:-3]
    run.state["steps"] = run.state.get("steps", 0) + 1
    return bool(run.state["steps"] == STEPS)


async def async_agent(run: Run) -> int:
    async for step in run.steps():
        found, *_ = await asyncio.gather(
            run.call(look_up, step), run.call(send, "a"), run.call(send, "b")
        )
        if keep(run, found):
            break
    return int(run.state["steps"])


def plain_agent(run: SyncRun) -> int:
    for step in run.steps():
        if keep(run, run.call(look_up, step)):
            break
    return int(run.state["steps"])


def watch(
    store: CheckpointStore, run_id: str, over: threading.Event, errors: list[BaseException]
) -> None:
    try:
        while not over.wait(0.001):
            if store.load_latest(run_id) is not None:
                status(store, run_id)
    except BaseException as exc:
        errors.append(exc)


def runs_with_retention(backend: SmallSegments, runs: int) -> int:
    """How many of them had their beginning removed. Each is read meanwhile, by another thread."""
    cut = 0
    for number in range(runs):
        kept: dict[str, Any] = (
            {"retention": "prune_old", "keep": 1} if number % 2 else {"retention": "latest_only"}
        )
        store, run_id = CheckpointStore(backend, **kept), f"run-{number}"
        agent = RecoverableAgent(
            plain_agent if number % 4 > 1 else async_agent, store, 1, max_recoveries=0
        )
        errors: list[BaseException] = []
        over = threading.Event()

        watcher = threading.Thread(target=watch, args=(store, run_id, over, errors))
        watcher.start()
        try:
            assert agent.run_with_recovery_sync("task", run_id)["result"] == STEPS
        finally:
            over.set()
            watcher.join()
        if errors:
            raise errors[0]
        reader = backend.read(run_id)
        assert reader is not None
        with reader:
            cut += reader.oldest_lsn > 1
            list(reader.records())
    return cut


@pytest.mark.parametrize("where", FILES)
def test_runs_with_retention_end(
    where: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with short_turns():  # how often retention pays, and is done in time, depends on the machine
        for round_ in itertools.count():
            place = SmallSegments(str(tmp_path / str(round_)), FILES[where](), "process")
            if runs_with_retention(place, 8):
                break
    assert [record.message for record in caplog.records if record.levelname != "INFO"] == []


@pytest.mark.crash
@pytest.mark.parametrize("where", FILES)
def test_a_thousand_runs_with_retention_end(
    where: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, figures: Figures
) -> None:
    with short_turns():
        backend = SmallSegments(str(tmp_path), FILES[where](), "process")
        figures.add("runs with retention", cut=runs_with_retention(backend, 1000), runs=1000)
    assert [record.message for record in caplog.records if record.levelname != "INFO"] == []
