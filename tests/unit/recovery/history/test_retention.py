"""Retention inside a run: what is kept, what goes, and what says so when it is asked for."""

from __future__ import annotations

import asyncio
import contextvars
import io
import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import make_dataclass
from typing import Any
from unittest.mock import Mock

import pytest

import recovery.history.retention
import recovery.history.write_full_checkpoint
from eventlog import EventLog, LogReader, LogRecords, ReadableLog, Snapshot
from eventlog.dump import verify
from eventlog.format.frame import ALIGNMENT, SNAPSHOT, Frame
from eventlog.repair import repair
from eventlog.testing import SimulatedDisk
from eventlog.transfer import export, import_
from eventlog.write.appender import Appender
from recovery import (
    Checkpoint,
    CheckpointConfig,
    CheckpointManager,
    CheckpointStore,
    RecoverableAgent,
    RecoveryError,
    Resolution,
    register,
    tool,
)
from recovery.agent.undo_run import undo
from recovery.control.relatives import children, lineage, parent
from recovery.control.resolve import resolve
from recovery.errors import DamagedRunError, RunFailedError
from recovery.graph import Graph, GraphExecutor
from recovery.history.load import load
from recovery.history.load_shallow import load_shallow
from recovery.history.restore_checkpoint import BrokenCheckpointError, checkpoints_in, restore
from recovery.history.retention import Kept, Pruning, Retention, first_needed
from recovery.history.write_checkpoint import CheckpointWriter
from recovery.inspect.compare import compare
from recovery.inspect.follow import events
from recovery.inspect.status import status
from recovery.journal.call_key import step_scope
from recovery.journal.encoding import encode
from recovery.journal.events import CallIntended
from recovery.ops.fork import fork
from recovery.reports import RunEvent
from recovery.stores.log_store import LogStore
from recovery.values.backrefs import is_chunk
from tests.model.harm import frames
from tests.support.lives import RUN, AtOnce, executed, run_sync, send

SEGMENT = 4000
BEGINNING = "the beginning " * 10


class Small(LogStore):
    """Runs on a simulated disk, in segments of some records."""

    def __init__(self, disk: SimulatedDisk | None = None) -> None:
        self.disk = disk or SimulatedDisk()
        super().__init__("runs", self.disk, "process")

    def claim(self, run_id: str, takeover: bool = False) -> EventLog:
        return EventLog.open(
            self._path(run_id),
            "process",
            segment_size=SEGMENT,
            takeover=takeover,
            files=self.files,
        )

    def oldest(self, run_id: str = RUN) -> int:
        reader = self.read(run_id)
        assert reader is not None
        with reader:
            return reader.oldest_lsn


class Bytes:
    """What is written to logs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        append = Appender.append

        def counted(
            this: Appender, kind: int, count: int, payload: bytes, hold: bool = False
        ) -> int:
            self.count += len(payload)
            return append(this, kind, count, payload, hold)

        monkeypatch.setattr(Appender, "append", counted)


def windowed(steps: int, seen: Callable[[int], None] = lambda step: None) -> Callable[[Any], Any]:
    """An agent whose conversation and state stay of one size."""

    def agent(run: Any) -> Any:
        run.messages.append({"role": "system", "content": run.call(send, BEGINNING)})
        run.state["of the beginning"] = "b" * 300
        for step in run.steps():
            run.messages.append({"role": "tool", "content": run.call(send, f"{step:200}")})
            del run.messages[1:-10]
            run.state["step"] = step
            seen(step)
            if step == steps:
                return [run.state, len(run.messages), run.messages[-1]]

    return agent


class Died(BaseException):
    """The process dies here, as far as the agent can tell."""


def dies_at(at: int) -> Callable[[int], None]:
    def seen(step: int) -> None:
        if step == at:
            raise Died

    return seen


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"retention": "some"}, "retention is"),
        ({"keep": 2}, "keep is for"),
        ({"retention": "latest_only", "keep": 2}, "keep is for"),
        ({"retention": "prune_old", "keep": 0}, "1 or more"),
    ],
)
def test_settings_that_make_no_sense(given: dict[str, Any], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        CheckpointStore(**given)


def test_an_agent_without_checkpoints_has_no_store_that_keeps_a_few() -> None:
    store = CheckpointStore(retention="latest_only")
    with pytest.raises(ValueError, match="nothing would ever be removed"):
        RecoverableAgent(windowed(3), store, None)
    agent = RecoverableAgent(windowed(3), store)
    with pytest.raises(ValueError, match="nothing would ever be removed"):
        agent.checkpoint_every_n = None


@pytest.mark.usefixtures("at_once", "fresh")
@pytest.mark.parametrize(
    ("given", "most"),
    [
        ({"retention": "latest_only"}, 5),
        ({"retention": "prune_old"}, 8),
        ({"retention": "prune_old", "keep": 20}, 16),
    ],
)
def test_a_run_takes_no_more_room_the_longer_it_goes(given: dict[str, Any], most: int) -> None:
    backend = Small()
    sizes: list[int] = []
    store = CheckpointStore(backend, **given)
    run_sync(windowed(600, lambda step: sizes.append(backend.size(RUN))), store)
    live = 4000
    assert max(sizes) < most * (live + SEGMENT)
    assert max(sizes[300:]) < 1.1 * max(sizes[:300])
    kept = [one for one in store.run(RUN).checkpoints() if one.validity]
    assert len(kept) >= given.get("keep", 1)


@pytest.mark.usefixtures("at_once", "fresh")
def test_a_conversation_of_which_nothing_goes_is_not_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def agent(run: Any) -> Any:
        for step in run.steps():
            run.messages.append({"content": f"{step:500}"})
            if step == 400:
                return len(run.messages)

    written = Bytes(monkeypatch)
    run_sync(agent, CheckpointStore(Small()))
    without, written.count = written.count, 0
    run_sync(agent, CheckpointStore(Small(), retention="latest_only"))
    assert written.count < 1.3 * without


@pytest.mark.usefixtures("at_once", "fresh")
def test_a_pruned_run_goes_on_where_it_was() -> None:
    backend = Small()

    def dies(step: int) -> None:
        if executed["died"] < 3 and step == 50 * (executed["died"] + 1) + 1:
            executed["died"] += 1
            raise Died

    kinds: tuple[Kept, ...] = ("latest_only", "prune_old", "all")
    for kept in kinds:
        with pytest.raises(Died):
            run_sync(windowed(200, dies), CheckpointStore(backend, retention=kept))
        assert backend.oldest() > 1
    found = run_sync(windowed(200, dies), CheckpointStore(backend, retention="latest_only"))
    everything = run_sync(windowed(200), CheckpointStore(Small()))
    assert found["result"] == everything["result"]
    del executed["died"], executed[BEGINNING]
    assert set(executed.values()) == {2}
    assert found["recovery_count"] == 3 and found["usage"].calls == 201


@pytest.mark.usefixtures("at_once", "fresh")
def test_a_message_refers_to_no_outcome_that_is_removed() -> None:
    store = CheckpointStore(Small(), retention="latest_only")

    def agent(run: Any) -> Any:
        for step in run.steps():
            said = run.call(send, f"{step:200}")
            if step == 1:
                run.state["first"] = said
            if step == 150:
                run.messages.append(run.state["first"])
                executed["died"] += 1
                if executed["died"] == 1:
                    raise Died
                return [*run.messages]

    with pytest.raises(Died):
        run_sync(agent, store)
    assert isinstance(store.backend, Small) and store.backend.oldest() > 5
    assert run_sync(agent, store)["result"] == [f"sent {1:200}"]


# -- what refuses


def reader(store: CheckpointStore) -> ReadableLog:
    found = store.backend.read(RUN)
    assert found is not None
    return found


def needed(log: LogRecords, checkpoints: int, generations: int) -> int:
    return first_needed(log, Retention(checkpoints, generations))[0]


def pruned(steps: int = 200, agent: Any = None, kept: Kept = "prune_old") -> CheckpointStore:
    store = CheckpointStore(Small(), retention=kept)
    with suppress(Died):
        run_sync(agent or windowed(steps), store)
    assert isinstance(store.backend, Small) and store.backend.oldest() > 1
    return store


@pytest.mark.usefixtures("fresh")
def test_records_are_removed_later_if_no_thread_could_be_started_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    submit, refused = AtOnce().submit, [RuntimeError("can't start new thread")] * 2

    def submitted(work: Callable[[], None]) -> Any:
        if refused:
            raise refused.pop()
        return submit(work)

    monkeypatch.setattr(recovery.history.retention, "_cutters", Mock(submit=submitted))
    store = pruned()
    assert not refused and status(store, RUN).recoveries == 0


@pytest.mark.usefixtures("at_once", "fresh")
def test_what_is_gone_is_refused_by_name() -> None:
    store = pruned()
    with pytest.raises(RecoveryError, match="were removed from its log by retention"):
        undo(store, RUN, tools=[])
    with pytest.raises(RecoveryError, match=r"is not in its log: retention has removed it"):
        fork(store, RUN, "other", at_step=3)
    with pytest.raises(RecoveryError, match=r"is not in its log: retention has removed it"):
        fork(store, RUN, "other", at_step=0)
    newest = store.load_latest(RUN)
    assert newest is not None and store.load_at_step(RUN, 3) is None
    with pytest.raises(RecoveryError, match="were removed by retention"):
        list(newest.tool_results)
    assert "removed by retention" in repr(newest)
    store.run(RUN).remove()
    with pytest.raises(RecoveryError, match=f"run {RUN!r} is gone"):
        list(newest.tool_results)


@pytest.mark.usefixtures("at_once", "fresh")
def test_a_fork_of_a_pruned_run_is_whole() -> None:
    store = pruned()
    link = fork(store, RUN, "other", at_step=195)
    agent = RecoverableAgent(windowed(205), store)
    assert agent.run_with_recovery_sync("task", "other")["result"][0]["step"] == 205
    assert lineage(store, "other") == [link]
    assert executed[BEGINNING] == 1
    found = compare(store, RUN, "other")
    assert found.since == 195 and found.b.forked_from == link
    assert next(one.step for one in found.differences) == 201


@pytest.mark.usefixtures("at_once", "fresh")
def test_two_runs_are_compared_from_where_both_are_told() -> None:
    store = pruned()
    RecoverableAgent(windowed(200), store).run_with_recovery_sync("task", "again")
    found = compare(store, RUN, "again")
    assert 100 < found.since < 200 and found.alike
    RecoverableAgent(windowed(199), store).run_with_recovery_sync("task", "shorter")
    (first, *_) = compare(store, "shorter", RUN).differences
    assert first.step == 200


@pytest.mark.usefixtures("at_once", "fresh")
def test_the_task_and_the_first_record_stay_known() -> None:
    store = pruned()
    found = status(store, RUN)
    assert found.state == "finished" and found.uid and found.progress.usage.calls == 201
    result = RecoverableAgent(windowed(200), store).run_with_recovery_sync("task", RUN)
    assert result["report"].executed == 0
    with pytest.raises(RecoveryError, match="is about another task"):
        RecoverableAgent(windowed(200), store).run_with_recovery_sync("another", RUN)
    assert lineage(store, RUN) == [] and parent(store, RUN) is None


@pytest.mark.usefixtures("at_once", "fresh")
def test_what_is_left_of_other_checkpoints_is_not_taken_for_damage() -> None:
    """Segments go as a whole: some checkpoints are there, and what they need is not."""

    def agent(run: Any) -> Any:
        for step in run.steps():
            run.messages.append(run.call(send, f"{step:50}"))
            del run.messages[:-5]
            if step == run.task:
                return step

    left_over = 0
    for steps in range(100, 200, 10):
        store = CheckpointStore(Small(), retention="latest_only")
        RecoverableAgent(agent, store, checkpoint_every_n=1).run_with_recovery_sync(steps, RUN)
        with reader(store) as log:
            there = [restorable(log, one) for one in checkpoints_in(log)]
            left_over += there.count(False)
        assert store.validate(RUN)
        assert all(one.validity for one in store.run(RUN).checkpoints())
    assert left_over


def restorable(log: LogRecords, snapshot: Snapshot) -> bool:
    try:
        restore(log.fetch, snapshot)
    except BrokenCheckpointError:
        return False
    return True


def harm(store: CheckpointStore, wanted: Callable[[Frame], bool]) -> None:
    """Flip a bit in the payload of each frame that is wanted."""
    assert isinstance(store.backend, Small)
    for name, frame in frames(store.backend.disk):
        if wanted(frame):
            file: Any = store.backend.disk.directories[f"runs/{RUN}"][name]
            file.content[frame.payload_offset + 40] ^= 1


@pytest.mark.usefixtures("at_once", "fresh")
def test_a_run_whose_checkpoints_are_all_lost_is_damaged_and_not_begun_anew() -> None:
    store = pruned(200, windowed(200, dies_at(190)))
    harm(store, lambda frame: frame.kind == SNAPSHOT)
    before = executed.copy()
    with pytest.raises(DamagedRunError, match="removed by retention, and no checkpoint") as caught:
        RecoverableAgent(windowed(300), store).run_with_recovery_sync("task", RUN)
    assert executed == before
    with reader(store) as log:
        (lost,) = [(one.first_lsn, one.last_lsn) for one in caught.value.damage]
        assert lost == (1, log.oldest_lsn - 1)
    found = status(store, RUN)
    assert found.state == "unreadable" and "removed by retention" in found.why


@pytest.mark.usefixtures("at_once", "fresh")
@pytest.mark.parametrize("portion", [0, -1])
def test_nothing_goes_while_the_checkpoint_that_is_to_stay_is_not_sound(
    portion: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two generations are there, and what the newer one has in common is lost: the older stays.

    The first portion has records of the code before the first step, the last one messages.
    """
    monkeypatch.setattr(recovery.history.write_full_checkpoint, "PORTION_SIZE", 500)
    store = pruned(200)
    with reader(store) as log:
        newest, older = (
            restore(log.fetch, one).generation.first
            for one in (next(checkpoints_in(log)), list(checkpoints_in(log))[-1])
        )
        assert older < newest == needed(log, 1, 1)
        assert older == needed(log, 3, 2) == needed(log, 1, 2)
        assert needed(log, 1000, 1) == 0
        portions = [one.lsn for one in log.records(newest) if is_chunk(one)]
    harm(store, lambda frame: frame.lsn == portions[portion])
    with reader(store) as log:
        assert needed(log, 1, 1) == older
        assert needed(log, 3, 2) == 0
    assert store.load_latest(RUN).step_number < 200  # type: ignore[union-attr]


@pytest.mark.usefixtures("at_once", "fresh")
def test_a_repaired_run_that_lost_a_message_of_its_beginning_stays_whole() -> None:
    """No checkpoint stands for what is lost of the code before the first step: all are needed."""
    backend = Small()
    with pytest.raises(Died):
        run_sync(windowed(100, dies_at(2)), CheckpointStore(backend))
    path, disk = f"runs/{RUN}", backend.disk.after_process_death()
    with EventLog.read(path, files=disk) as log:
        lost = next(record.lsn for record in log.records() if record.kind == "messages")
    ((name, frame),) = [found for found in frames(disk) if found[1].lsn == lost]
    file: Any = disk.directories[path][name]
    file.content[frame.payload_end - 1] ^= 1
    EventLog.open(path, files=disk).close()
    assert repair(path, files=disk).lost_count == 1
    backend = Small(disk)
    with pytest.raises(Died):
        run_sync(windowed(100, dies_at(80)), CheckpointStore(backend, retention="latest_only"))
    assert backend.oldest() == 1
    backend = Small(disk.after_process_death())
    found = run_sync(windowed(100), CheckpointStore(backend, retention="latest_only"))
    assert found["result"] == run_sync(windowed(100), CheckpointStore(Small()))["result"]


@pytest.mark.usefixtures("at_once", "fresh")
def test_a_checkpoint_that_a_task_has_outlived_does_not_count() -> None:
    store = pruned(200)
    with store.claim(RUN) as log:
        (newest, *_) = checkpoints_in(log)
        step = restore(log.fetch, newest).step
        first = needed(log, 1, 1)
        late = CallIntended(step_scope(step - 5), "late", "", b"", 1, "retry", None, 0)
        log.append(*encode(late))
        assert 0 < needed(log, 1, 1) <= first
        log.append(*encode(CallIntended(step_scope(1), "late", "", b"", 1, "retry", None, 0)))
        assert needed(log, 1, 1) == 0


@pytest.mark.usefixtures("at_once", "fresh")
def test_what_a_task_of_an_earlier_step_records_meanwhile_keeps_what_it_needs() -> None:
    store = pruned(200)
    assert isinstance(store.backend, Small)
    oldest = store.backend.oldest()

    class Meanwhile(nullcontext[None]):
        def __enter__(self) -> None:
            log.append(*encode(late))

    with store.claim(RUN) as log:
        restored = restore(log.fetch, next(checkpoints_in(log)))
        first, step, _ = first_needed(log, Retention(1, 1))
        assert first > oldest
        late = CallIntended(step_scope(step), "late", "", b"", 1, "retry", None, 0)
        pruning = Pruning(
            log, CheckpointWriter(log, restored), Retention(1, 1), lambda: store.backend.read(RUN)
        )
        pruning.prune(Meanwhile())
        pruning.check(late)  # it is not refused
    assert store.backend.oldest() == oldest


@pytest.mark.usefixtures("at_once", "fresh")
def test_nothing_goes_from_a_run_that_has_lost_records_and_they_are_named_once() -> None:
    """Also if a task has outlived the newest checkpoint, so that its records are read again."""
    store = pruned(200, windowed(200, dies_at(199)))
    with store.claim(RUN) as log:
        lost, newest = log.last_lsn - 1, next(checkpoints_in(log))
        step = restore(log.fetch, newest).step
    assert isinstance(store.backend, Small)
    for name, frame in frames(store.backend.disk):
        if frame.lsn > newest.lsn and frame.payload_end % ALIGNMENT:
            file: Any = store.backend.disk.directories[f"runs/{RUN}"][name]
            file.content[frame.payload_end] ^= 1  # padding: no record is lost
    with reader(store) as log:
        assert needed(log, 1, 1) > 0
    harm(store, lambda frame: frame.lsn == lost)
    with store.claim(RUN) as log:
        with pytest.raises(ValueError, match=f"damaged log: .*LSN {lost} lost"):
            needed(log, 1, 1)
        log.append(*encode(CallIntended(step_scope(step - 1), "", "", b"", 1, "retry", None, 0)))
        with pytest.raises(DamagedRunError) as caught:
            load(log, RUN)
        for damage in caught.value.damage, load_shallow(log, RUN).lost:
            assert [one.first_lsn for one in damage] == [lost]


# -- others of a run


@pytest.mark.usefixtures("at_once", "fresh")
def test_children_of_a_pruned_run_are_known_by_their_own_logs() -> None:
    def child(run: Any) -> Any:
        return run.call(send, run.task)

    def agent(run: Any) -> Any:
        for step in run.steps():
            if step in (1, 2, 150):
                run.child(child, f"child {step}")
            run.messages.append(run.call(send, f"{step:200}"))
            del run.messages[:-5]
            if step == 150:
                return step

    store = pruned(agent=agent)
    found = children(store, RUN)
    assert [one.state for one in found] == ["finished"] * 3
    assert [one.agent for one in found] == ["child"] * 3
    assert parent(store, found[0].run_id).run_id == RUN  # type: ignore[union-attr]
    store.run(RUN).remove(children=True)
    assert store.backend.run_ids() == []


@pytest.mark.usefixtures("at_once", "fresh")
@pytest.mark.parametrize("late_by", [12, 13])  # the oldest checkpoint is that of step 147
def test_a_task_that_no_recovery_could_bring_back_is_refused(late_by: int) -> None:
    """A thread of a plain agent makes a call in the step in which it was started, long after."""
    go = threading.Event()
    held: list[threading.Thread] = []
    refused: list[BaseException] = []

    def late(context: contextvars.Context, run: Any) -> None:
        go.wait(10)
        try:
            context.run(run.call, send, "late")
        except BaseException as exc:
            refused.append(exc)

    def agent(run: Any) -> Any:
        for step in run.steps():
            if step == 160 - late_by:
                held.append(threading.Thread(target=late, args=[contextvars.copy_context(), run]))
                held[0].start()
            run.messages.append(run.call(send, f"{step:200}"))
            del run.messages[:-5]
            if step == 160 and held:
                go.set()
                held.pop().join()
            if step == 163 and not executed["died"]:
                executed["died"] += 1
                raise Died
            if step == 300:
                return step

    backend = Small()
    store = CheckpointStore(backend, retention="prune_old")
    if late_by > 12:
        with pytest.raises(RecoveryError, match=f"a task of step {160 - late_by} is at work"):
            run_sync(agent, store)
        assert refused and executed["late"] == 0 and executed[f"{160:200}"] == 1
        with suppress(Died):
            run_sync(agent, store)
        assert run_sync(agent, store)["result"] == 300
    else:
        with suppress(Died):
            run_sync(agent, store)
        assert run_sync(agent, store)["result"] == 300
        assert executed["late"] == 1 and not refused
    assert backend.oldest() > 1


@pytest.mark.usefixtures("at_once", "fresh")
def test_errors_that_are_held_keep_nothing() -> None:
    """Their tracebacks hold on to the steps in which they were raised."""
    raised: list[ValueError] = []

    def agent(run: Any) -> Any:
        for step in run.steps():
            try:
                run.call(fails, step)
            except ValueError as exc:
                raised.append(exc)
            run.messages.append(run.call(send, f"{step:200}"))
            del run.messages[:-5]
            if step == 200:
                return step

    @tool
    def fails(n: int) -> None:
        raise ValueError(n)

    pruned(agent=agent)


@pytest.mark.usefixtures("at_once", "fresh")
def test_a_graph_goes_on_from_what_its_nodes_have_written() -> None:
    graph = Graph("g", max_visits=200)

    @graph.node("again", max_visits=200)
    async def again(context: Any) -> Any:
        n = context.memory["n"] + 1
        send(f"{n:900}")
        if n == 120 and not executed["died"]:
            executed["died"] += 1
            raise Died
        return {"n": n}

    graph.edge("again", "again", lambda output, memory: output["n"] < 150)
    manager = CheckpointManager(
        backend := Small(),
        CheckpointConfig(retention="prune_old", max_checkpoints_per_run=2),
    )
    executor = GraphExecutor(checkpoint_manager=manager)
    with pytest.raises(Died):
        asyncio.run(executor.execute(graph, "goal", {"n": 0}, RUN))
    assert backend.oldest() > 1
    result = asyncio.run(executor.resume(graph, RUN))
    assert result.output["n"] == 150 and len(result.path) == 150
    assert [executed[f"{n:900}"] for n in range(1, 151)] == [1] * 150
    with pytest.raises(ValueError, match="to the CheckpointStore itself"):
        CheckpointManager(CheckpointStore(), CheckpointConfig(retention="latest_only"))


# -- what is carried


@pytest.mark.usefixtures("at_once", "fresh")
def test_a_message_that_is_there_many_times_is_carried_once() -> None:
    def agent(run: Any) -> Any:
        big = {"content": "x" * 3000}
        for step in run.steps():
            if step <= 5:
                run.messages.append(big)
            run.call(send, f"{step:400}")
            if step == 200:
                return len(run.messages)

    store = pruned(agent=agent, kept="latest_only")
    with reader(store) as log:
        portions = [r for r in log.records() if isinstance(r, Snapshot) and is_chunk(r)]
    assert portions and all(len(one.packed) < 5000 for one in portions)
    newest = store.load_latest(RUN)
    assert newest is not None and newest.messages == [{"content": "x" * 3000}] * 5


@pytest.mark.usefixtures("at_once", "fresh")
@pytest.mark.parametrize("where", ["a step", "the beginning"])
def test_a_message_that_equals_an_outcome_that_is_gone_is_recorded_whole(where: str) -> None:
    """The record to which it could refer is in front of the generation, or in a portion."""

    def agent(run: Any) -> Any:
        first = run.call(send, f"{'first':200}") if where == "the beginning" else None
        for step in run.steps():
            if step == 1:
                run.state["first"] = first or run.call(send, f"{'first':200}")
            run.messages.append({"n": f"{step:200}"})
            run.messages.append(run.state["first"])
            del run.messages[:-6]
            if step in (201, 202) and executed["died"] < step - 200:
                executed["died"] += 1
                raise Died
            if executed["died"] == 2:
                newest = store.load_latest(RUN)
                assert newest is not None and newest.step_number >= step - 4
            if step == 260:
                return list(run.messages)

    store = CheckpointStore(Small(), retention="latest_only")
    for _ in range(2):
        with pytest.raises(Died):
            run_sync(agent, store)
    assert len(run_sync(agent, store)["result"]) == 6
    assert store.validate(RUN) and executed[f"{'first':200}"] == 1


@pytest.mark.usefixtures("at_once", "fresh")
def test_a_generation_names_its_messages_once() -> None:
    def agent(run: Any) -> Any:
        run.messages.extend({"n": n} for n in range(300))
        for step in run.steps():
            run.call(send, f"{step:300}")
            if step == 200:
                return len(run.messages)

    store = CheckpointStore(Small(), retention="prune_old")
    run_sync(agent, store, checkpoint_every_n=1)
    with reader(store) as log:
        assert log.oldest_lsn > 1
        found = [
            (restore(log.fetch, one).generation.first, len(one.packed))
            for one in list(checkpoints_in(log))[:20]
        ]
    assert len({first for first, _ in found}) == sum(size > 2000 for _, size in found) > 1
    assert all(not 700 < size < 2000 for _, size in found)


@pytest.mark.usefixtures("at_once", "fresh")
def test_a_message_whose_type_has_changed_is_carried_as_it_was() -> None:
    """Its record is another than that of an equal one that is made now."""

    def place(*fields: Any) -> Any:
        return register(make_dataclass("Place", fields, frozen=True), name="a place of before")

    old = place(("x", int))

    def agent(run: Any) -> Any:
        for step in run.steps():
            if step == 1:
                run.messages.append(old(1))
            run.call(send, f"{step:300}")
            if step == 2 and not executed["died"]:
                executed["died"] += 1
                raise Died
            if step == 200:
                return list(run.messages)

    store = CheckpointStore(Small(), retention="latest_only")
    with suppress(Died):
        run_sync(agent, store, checkpoint_every_n=1)
    new = place(("x", int), ("y", int, 7))
    assert run_sync(agent, store)["result"] == [new(1, 7)]
    assert isinstance(store.backend, Small) and store.backend.oldest() > 1
    newest = store.load_latest(RUN)
    assert newest is not None and newest.messages == [new(1, 7)] and store.validate(RUN)


@pytest.mark.usefixtures("at_once", "fresh")
def test_a_retry_from_above_counts_once_in_a_pruned_child() -> None:
    """The child's record that it was retried is gone when it fails again, at another call."""
    disk = SimulatedDisk()
    before: list[SimulatedDisk] = []

    @tool
    def broken(n: int) -> None:
        executed["broken", n] += 1
        if n == 1 and executed["broken", n] == 2:
            return
        before.append(disk.after_process_death())
        raise ValueError("broken")

    def child(run: Any) -> Any:
        for step in run.steps():
            if step in (1, 150):
                run.call(broken, step)
            run.messages.append(run.call(send, f"{step:200}"))
            del run.messages[:-5]

    def agent(run: Any) -> Any:
        run.child(child, "task")

    def failed(disk: SimulatedDisk) -> RunFailedError:
        with pytest.raises(RunFailedError) as caught:
            run_sync(agent, CheckpointStore(Small(disk), retention="latest_only"))
        return caught.value

    store = CheckpointStore(Small(disk), retention="latest_only")
    resolve(store, RUN, failed(disk).call, Resolution.retry())
    failed(disk)
    (one,) = children(store, RUN)
    assert isinstance(store.backend, Small) and store.backend.oldest(one.run_id) > 1
    # The process died when the failure was in the child's log, and not yet in the parent's.
    after = disk.after_process_death()
    after.directories[f"runs/{RUN}"] = before[-1].directories[f"runs/{RUN}"]
    failed(after)
    assert executed["broken", 1] == 2 and executed["broken", 150] == 1


@pytest.mark.usefixtures("at_once", "fresh")
def test_a_large_state_is_carried_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery.history.write_full_checkpoint, "PORTION_SIZE", 500)

    def agent(run: Any) -> Any:
        for i in range(10):
            run.state[f"key {i}"] = f"{i:300}"
        for step in run.steps():
            run.call(send, f"{step:400}")
            if step == 100:
                return run.state

    store = pruned(agent=agent, kept="latest_only")
    newest = store.load_latest(RUN)
    assert newest is not None and newest.state == {f"key {i}": f"{i:300}" for i in range(10)}
    assert store.validate(RUN)


@pytest.mark.usefixtures("at_once", "fresh")
def test_saved_checkpoints_are_pruned_as_well() -> None:
    backend = Small()
    with CheckpointStore(backend, retention="prune_old", keep=2) as store:
        for step in range(1, 300):
            state = {"step": step, "text": f"{step:300}", "fixed": "f" * 300}
            store.save(Checkpoint("", RUN, step, state, [{"n": step}], [], float(step)))
        newest = store.load_latest(RUN)
        assert newest is not None and newest.state == state and newest.messages == [{"n": 299}]
        assert store.load_at_step(RUN, 298) is not None
        assert store.load_at_step(RUN, 3) is None
        assert backend.oldest() > 1 and backend.size(RUN) < 12 * SEGMENT
    with CheckpointStore(backend) as store:
        newest = store.load_latest(RUN)
        assert newest is not None and newest.state == state


@pytest.mark.usefixtures("at_once", "fresh")
def test_who_follows_a_pruned_run_sees_what_is_there_and_no_portions() -> None:
    store = pruned()
    told: list[RunEvent] = []
    agent = RecoverableAgent(windowed(260), store, on_event=told.append)
    before = list(events(store, RUN, until="now"))
    with reader(store) as log:
        there = [record for record in log.records() if not is_chunk(record)]
    assert [event.lsn for event in before] == [record.lsn for record in there]
    assert before[-1].progress.usage.calls == 201
    fork(store, RUN, "other", at_step=198)
    agent.run_with_recovery_sync("task", "other")
    seen = [event.lsn for event in events(store, "other", until="now")]
    assert seen == [event.lsn for event in told if event.lsn >= seen[0]] and seen[0] > 20


@pytest.mark.usefixtures("at_once", "fresh")
def test_a_pruned_run_is_exported_and_goes_on_elsewhere() -> None:
    died = pruned(200, windowed(400, dies_at(201)))
    with reader(died) as log:
        assert isinstance(log, LogReader)
        lines = b"".join(line.encode() + b"\n" for line in export(log))
    disk = SimulatedDisk()
    disk.make_directory("runs").close()
    import_(io.BytesIO(lines), f"runs/{RUN}", files=disk)
    there = CheckpointStore(Small(disk), retention="prune_old")
    found, expected = run_sync(windowed(400), there), run_sync(windowed(400), CheckpointStore())
    assert found["result"] == expected["result"]
    assert found["recovered_from_step"] == 198
    with EventLog.read(f"runs/{RUN}", files=disk) as log:
        assert list(verify(log)) == []


@pytest.mark.usefixtures("fresh")
def test_the_log_is_cut_by_another_thread_and_the_end_waits_for_it() -> None:
    backend = Small()
    store = CheckpointStore(backend, retention="latest_only")
    result = run_sync(windowed(400), store)["result"]
    assert result == run_sync(windowed(400), CheckpointStore(Small()))["result"]
    assert store.validate(RUN)


@pytest.mark.usefixtures("at_once", "fresh")
def test_to_find_what_may_go_takes_one_restore_for_each_generation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    restored, looked = list[int](), list[int]()

    def counted(source: Any, snapshot: Any, read: Any) -> Any:
        restored.append(snapshot.lsn)
        return restore(source, snapshot, read)

    def counted_looks(log: Any, retention: Retention) -> Any:
        looked.append(log.tail().next_lsn)
        return first_needed(log, retention)

    monkeypatch.setattr(recovery.history.retention, "restore", counted)
    monkeypatch.setattr(recovery.history.retention, "first_needed", counted_looks)
    store = CheckpointStore(Small())
    run_sync(windowed(40), store, checkpoint_every_n=1)
    with reader(store) as log:
        assert first_needed(log, Retention(3, 2))[0] == 0
        assert first_needed(log, Retention(3, 1))[0] == 1
    assert len(restored) == 1 + 2
    # Somebody looks once a generation, and where there is one, nobody.
    module = recovery.history.write_full_checkpoint
    write = Mock(side_effect=module.write_full_checkpoint)
    monkeypatch.setattr(module, "write_full_checkpoint", write)
    run_sync(windowed(200), CheckpointStore(Small(), retention="prune_old"), checkpoint_every_n=1)
    assert len(looked) == write.call_count > 2
    looked.clear()
    store = CheckpointStore(Small(), retention="prune_old")
    run_sync(windowed(6), store, checkpoint_every_n=1)
    assert looked == [] and len(store.run(RUN).checkpoints()) == 5
