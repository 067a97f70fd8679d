"""Retention: only what may go is gone, all of it goes, and no crash in the middle changes that."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from eventlog import EventLog, LogLockedError
from eventlog.testing import Crash, SimulatedDisk
from recovery import RecoveryError
from recovery.agent.undo_run import undo
from recovery.inspect.states import State
from recovery.inspect.status import RunStatus, runs
from recovery.journal.encoding import encode
from recovery.journal.events import Event, RunCancelled, RunFailed, RunFinished, RunStarted
from recovery.journal.forked_from import ForkedFrom
from recovery.journal.related_runs import ParentRun
from recovery.ops.gc import gc
from recovery.ops.remove import ENDED, remove
from recovery.stores import protocol
from recovery.stores.log_store import LogStore
from tests.support.lives import Disk

NOW_S = 2_000_000_000
OVER: tuple[State, ...] = ("finished", "cancelled", "undone")
ENDS: dict[str, Event] = {
    "finished": RunFinished("result"),
    "failed": RunFailed("builtins.ValueError", "no"),
    "cancelled": RunCancelled("", ""),
}


@dataclass(frozen=True)
class Spec:
    """One run: how it stands, how long ago it ended, and to which earlier ones it belongs."""

    state: str
    age_s: int = 0
    parent: int | None = None
    stale: bool = False  # the parent's name is another run's now
    fork_of: int | None = None  # a fork of it, cut short
    damaged: bool = False
    held: bool = False
    inbox: bool = False


@dataclass(frozen=True)
class Settings:
    older_than_s: float | None
    keep: int | None
    states: tuple[State, ...]

    def gc(self, store: LogStore, dry_run: bool = False) -> list[Any]:
        clock = SimpleNamespace(time_ns=lambda: NOW_S * 1_000_000_000, time=lambda: NOW_S)
        with mock.patch.object(protocol, "time", clock):
            return gc(
                store,
                older_than_s=self.older_than_s,
                keep=self.keep,
                states=self.states,
                dry_run=dry_run,
            )


def name(number: int) -> str:
    return f"r{number}"


def make(store: Disk, number: int, spec: Spec) -> None:
    time_ns = (NOW_S - spec.age_s) * 1_000_000_000
    parent = fork = None
    if spec.parent is not None:
        uid = "another" if spec.stale else f"uid-{spec.parent}"
        parent = ParentRun(name(spec.parent), uid, 2).packable()
    if spec.fork_of is not None:
        fork = ForkedFrom(name(spec.fork_of), f"uid-{spec.fork_of}", 1, 2, until=9).packable()
    with store.claim(name(number)) as log:
        if spec.state != "empty":
            started = RunStarted(name(number), "task", f"uid-{number}", parent, fork or {})
            log.append(*encode(started), time_ns=time_ns)
        if spec.state in ENDS:
            log.append(*encode(ENDS[spec.state]), time_ns=time_ns)
    if spec.state == "undone":
        undo(store, name(number), tools=[])
    if spec.inbox:
        store.post(name(number), "signal", {"name": "x", "value": 1, "who": ""})
    directory = store.disk.open_directory(f"home/{name(number)}")
    directory.sync()  # else a loss of power unmakes a run without records
    if spec.damaged:
        segment = next(one for one in directory.names() if one.endswith(".seg"))
        file = directory.open(segment, write=True)
        file.pwrite(b"?" * 8, 64 + 40)
        file.sync()  # else a loss of power mends it


@st.composite
def specs(draw: Any) -> list[Spec]:
    made: list[Spec] = []
    for number in range(draw(st.integers(1, 6))):
        earlier = st.none() | st.integers(0, number - 1) if number else st.none()
        state = draw(st.sampled_from([*ENDS, "finished", "undone", "interrupted", "empty"]))
        rarely = st.integers(0, 4).map(lambda n: n == 4)
        made.append(
            Spec(
                state,
                draw(st.sampled_from([0, 10, 10, 20, 30, 1_000_000])),
                draw(earlier),
                draw(rarely),
                draw(earlier) if state == "interrupted" else None,
                state != "empty" and draw(rarely),
                draw(rarely),
                draw(st.booleans()),
            )
        )
    return made


SETTINGS = st.builds(
    Settings,
    st.none() | st.sampled_from([0, 5, 10, 10.5, 25, 1e9]),
    st.none() | st.integers(0, 4),
    st.lists(st.sampled_from(ENDED), unique=True).map(tuple),
)


@contextmanager
def holding(store: Disk, made: list[Spec]) -> Iterator[None]:
    with ExitStack() as held:
        for number, spec in enumerate(made):
            if spec.held:
                held.enter_context(_lenient(store.claim(name(number))))
        yield


@contextmanager
def _lenient(log: EventLog) -> Iterator[None]:
    """A log whose process may be dead by the time it is closed."""
    try:
        yield
    finally:
        try:
            log.close()
        except Crash:
            log._release()


def contents(store: Disk) -> dict[str, dict[str, bytes]]:
    """The records of each run and what was sent to it, as bytes."""
    found: dict[str, dict[str, bytes]] = {}
    for path, entries in store.disk.directories.items():
        if path.startswith("home/"):
            kept = {
                one: bytes(file.content) for one, file in entries.items() if one.endswith(".seg")
            }
            found[path.removeprefix("home/")] = kept
    return found


def over(one: RunStatus) -> bool:
    return one.state in OVER and not one.damage


def expected(found: dict[str, RunStatus], held: set[str], wanted: Settings) -> set[str]:
    """What is to go, said in another way than the code does: by what keeps a run."""
    if wanted.keep is None and wanted.older_than_s is None:
        return set()
    ended = sorted(
        (one for one in found.values() if one.state in wanted.states and not one.damage),
        key=lambda one: one.run_id,
    )
    ended.sort(key=lambda one: one.last, reverse=True)  # stable: ties by id
    going = set()
    for rank, one in enumerate(ended):
        is_old = wanted.older_than_s is None or NOW_S - one.last >= wanted.older_than_s
        if is_old and rank >= (wanted.keep or 0) and one.run_id not in held:
            going.add(one.run_id)
    for one in found.values():
        if one.forked_from is not None and one.last_lsn < one.forked_from.until:
            going.discard(one.forked_from.run_id)
    for _ in found:  # each time at least one that is kept keeps its children
        for one in found.values():
            above = found.get(one.parent.run_id) if one.parent is not None else None
            if above is None or above.uid not in ("", one.parent.uid if one.parent else ""):
                continue
            if not over(above) and above.run_id not in going:
                going.discard(one.run_id)
    return going


def look(store: Disk) -> dict[str, RunStatus]:
    return {one.run_id: one for one in runs(store)}


@given(specs(), SETTINGS, st.data())
@example([Spec("failed"), Spec("finished", parent=0)], Settings(0, None, ("finished",)), None)
@example([Spec("failed", held=True), Spec("failed", parent=0)], Settings(0, None, ENDED), None)
@example([Spec("finished"), Spec("interrupted", fork_of=0)], Settings(0, None, ENDED), None)
@example([Spec("finished", 10), Spec("finished", 10)], Settings(None, 1, ENDED), None)
@example([Spec("failed", 10), Spec("finished", 20, parent=0)], Settings(0, None, ENDED), None)
@example([Spec("finished", 30), Spec("finished", 10)], Settings(20, 2, ENDED), None)
@example([Spec("finished", 30), Spec("finished", 10)], Settings(None, 1, ENDED), None)
@example([Spec("finished", 30, damaged=True)], Settings(0, None, ENDED), None)
def test_only_what_may_go_is_gone_and_nothing_needed(
    made: list[Spec], wanted: Settings, data: st.DataObject | None
) -> None:
    store = Disk(SimulatedDisk())
    for number, spec in enumerate(made):
        make(store, number, spec)
    whole = contents(store)
    held = {name(number) for number, spec in enumerate(made) if spec.held}
    with holding(store, made):
        found = look(store)
        for number, spec in enumerate(made):
            one = found[name(number)]
            assert bool(one.damage) is spec.damaged or one.state == "unreadable"
        going = expected(found, held, wanted)
        may = expected(found, set(), wanted)
        would = wanted.gc(store, dry_run=True)
        assert contents(store) == whole
        assert {one.run_id for one in would} == may
        if data is None or not data.draw(st.booleans()):
            gone = wanted.gc(store)
            assert {one.run_id for one in gone} == going
            assert [one for one in would if one.run_id in going] == gone
        else:
            store.disk.crash_at(data.draw(st.integers(0, 40)))
            try:
                wanted.gc(store)
            except Crash:
                disk = store.disk
                seed = data.draw(st.none() | st.integers(0, 1000))
                store = Disk(
                    disk.after_process_death() if seed is None else disk.after_power_loss(seed)
                )
                check_safe(store, found, may)
                held = set()
                wanted.gc(store)
                going = expected(found, held, wanted)
    left = {
        path: files
        for path, files in contents(store).items()
        if path.partition("/")[0] not in going
    }
    assert {path: {n: b[:64] for n, b in files.items()} for path, files in left.items()} == {
        path: {n: b[:64] for n, b in files.items()}
        for path, files in whole.items()
        if path.partition("/")[0] not in going
    }
    assert set(store.run_ids()) == set(found) - going
    assert store.unswept() == []
    check_unchanged(store, found)


def check_unchanged(store: Disk, found: dict[str, RunStatus]) -> None:
    for one in look(store).values():
        before = found[one.run_id]
        assert one.last_lsn == before.last_lsn
        assert one.state == before.state or before.state == "running"  # it was held


def check_safe(store: Disk, found: dict[str, RunStatus], may: set[str]) -> None:
    """After a crash: only what may go has gone, and no child before a parent that may go on."""
    left = set(store.run_ids())
    assert set(found) - left <= may
    check_unchanged(store, found)
    for run_id in set(found) - left:
        link = found[run_id].parent
        above = found.get(link.run_id) if link is not None else None
        if link is not None and above is not None and above.uid in ("", link.uid):
            assert over(above) or above.run_id not in left


def test_the_examples_go_as_expected() -> None:
    """That the oracle of the test above is not empty."""
    store = Disk(SimulatedDisk())
    for number, spec in enumerate([Spec("finished", 30), Spec("finished", 10), Spec("failed", 99)]):
        make(store, number, spec)
    assert [one.run_id for one in Settings(20, None, OVER).gc(store, dry_run=True)] == ["r0"]
    assert [one.run_id for one in Settings(None, 1, OVER).gc(store, dry_run=True)] == ["r0"]
    assert [one.run_id for one in Settings(20, 1, ENDED).gc(store, dry_run=True)] == ["r2", "r0"]
    assert Settings(None, None, ENDED).gc(store) == []
    gone = Settings(0, None, ENDED).gc(store)
    assert [(one.run_id, one.state, NOW_S - one.ended) for one in gone] == [
        ("r2", "failed", 99),
        ("r0", "finished", 30),
        ("r1", "finished", 10),
    ]
    assert all(one.size > 0 and one.records == 2 for one in gone)


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"keep": -1}, "keep"),
        ({"older_than_s": -0.1}, "older_than_s"),
        ({"older_than_s": float("nan")}, "older_than_s"),
        ({"states": ["running"]}, "states are of"),
        ({"states": ("empty", "finished")}, "states are of"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], what: str) -> None:
    store = Disk(SimulatedDisk())
    make(store, 0, Spec("finished"))
    with pytest.raises(ValueError, match=what):
        gc(store, **settings)
    assert store.run_ids() == ["r0"]


def test_failed_runs_go_only_when_they_are_asked_for() -> None:
    store = Disk(SimulatedDisk())
    make(store, 0, Spec("failed", 10))
    assert gc(store, keep=0) == []
    assert len(gc(store, keep=0, states=["failed"])) == 1


def test_a_dry_run_changes_nothing() -> None:
    store = Disk(SimulatedDisk())
    make(store, 0, Spec("finished", 10))
    make(store, 1, Spec("finished", 10))
    store.disk.crash_at(5)
    with pytest.raises(Crash):
        store.remove("r0")
    store = Disk(store.disk.after_process_death())
    assert store.unswept() == ["r0"]
    whole = contents(store)
    assert [one.run_id for one in gc(store, keep=0, dry_run=True)] == ["r1"]
    assert (store.unswept(), contents(store)) == (["r0"], whole)
    assert gc(store) == []
    assert (store.unswept(), store.run_ids()) == ([], ["r1"])


def test_two_at_once_remove_each_run_once() -> None:
    store = Disk(SimulatedDisk())
    for number in range(4):
        make(store, number, Spec("finished"))
    by_other: list[str] = []

    class Late(Disk):
        def remove(self, run_id: str, at: int | None = None, inbox: int | None = None) -> None:
            if not by_other:
                by_other.extend(one.run_id for one in gc(store, keep=2))
            super().remove(run_id, at, inbox)

    mine = [one.run_id for one in gc(Late(store.disk), keep=1)]
    assert (by_other, mine) == (["r2", "r3"], ["r1"])


def test_a_run_that_goes_on_meanwhile_stays() -> None:
    store = Disk(SimulatedDisk())
    make(store, 0, Spec("failed"))

    class Late(Disk):
        def remove(self, run_id: str, at: int | None = None, inbox: int | None = None) -> None:
            with store.claim(run_id) as log:
                log.append("something", {})
            super().remove(run_id, at, inbox)

    assert gc(Late(store.disk), keep=0, states=ENDED) == []
    assert store.run_ids() == ["r0"]


def test_gc_reads_from_the_newest_checkpoint_on() -> None:
    """What it reads of a run does not grow with the run."""
    reads = []
    for length in (100, 5000):
        store = Disk(SimulatedDisk())
        with EventLog.open("home/r0", segment_size=4096, files=store.disk) as log:
            log.append(*encode(RunStarted("r0", "task", "uid")))
            for number in range(length):
                log.append("noise", {"n": number})
        make_checkpoint(store)
        before = store.disk.reads
        assert len(gc(store, keep=0, dry_run=True)) == 1
        reads.append(store.disk.reads - before)
    assert reads[1] <= reads[0] + 10, reads  # to find them, by halving


def make_checkpoint(store: Disk) -> None:
    from recovery import Checkpoint, CheckpointStore

    with CheckpointStore(store) as checkpoints:
        checkpoints.save(Checkpoint("", "r0", 1, {}, [], [], 0.0))
    with store.claim("r0") as log:
        log.append(*encode(RunFinished("result")))


def test_a_store_that_is_not_there_has_nothing_to_remove() -> None:
    store = Disk(SimulatedDisk())
    assert gc(store, keep=0) == []
    with pytest.raises(RecoveryError):
        remove(store, "r0")


def test_time_passes() -> None:
    """The clock that ages are measured with."""
    store = Disk(SimulatedDisk())
    with store.claim("r0") as log:
        log.append(*encode(RunStarted("r0", "task", "uid")))
        log.append(*encode(RunFinished(1)), time_ns=time.time_ns() - 3600 * 10**9)
    assert gc(store, older_than_s=3700) == []
    assert len(gc(store, older_than_s=3600)) == 1


def test_a_held_run_is_named_by_its_owner() -> None:
    store = Disk(SimulatedDisk())
    make(store, 0, Spec("finished"))
    with store.claim("r0"), pytest.raises(LogLockedError, match="process 1 on simulated"):
        store.remove("r0")
