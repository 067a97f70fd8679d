"""Forks of runs: what is in them, what is refused, and what a crash leaves of one."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from eventlog import LogLockedError, RefusedValueError
from eventlog.format.durable_mark import DurableMark
from eventlog.format.frame import FOOTER, HEADER_SIZE, decode_segment_header
from eventlog.format.torn_or_damaged import Segment
from eventlog.testing import Crash, SimulatedDisk
from recovery import (
    Checkpoint,
    CheckpointStore,
    InDoubtError,
    RecoverableAgent,
    RecoveryError,
    Resolution,
    Run,
    SyncRun,
    current_call,
    tool,
)
from recovery.agent.undo_run import undo
from recovery.control.relatives import lineage
from recovery.control.resolve import accept, resolve
from recovery.errors import DamagedRunError, DivergenceError, RunFailedError, TaskMismatchError
from recovery.history.first_record import started_of
from recovery.history.load import load
from recovery.ops.fork import fork
from recovery.replay.undo_plan import UndoPlan
from recovery.reports import ForkedFrom
from recovery.stores.log_store import LogStore
from tests.support.lives import Died

made: list[tuple[str, str]] = []  # (what, idempotency key)
dying: set[str] = set()


def act(what: str) -> dict[str, str]:
    call = current_call()
    assert call is not None
    made.append((what, call.idempotency_key))
    if what in dying:
        dying.discard(what)
        raise Died
    return {"did": what, "text": "y" * 40}


send = tool(name="send")(act)
look = tool(name="look", after_crash="retry")(act)


@tool
def both(what: str) -> list[Any]:
    return [send(f"{what} first"), send(f"{what} second")]


def agent(run: SyncRun) -> Any:
    run.call(send, "0 before")
    run.messages.append({"task": run.task})
    for step in run.steps():
        run.messages.append(run.call(send, f"{step} send"))
        run.state["steps"] = [*run.state.get("steps", []), step]
        run.call(both, f"{step} both")
        if step == 5:
            return [run.state["steps"], len(run.messages), run.now(), run.uuid()]


async def async_agent(run: Run) -> Any:
    await run.call(send, "0 before")
    run.messages.append({"task": run.task})
    async for step in run.steps():
        one, two = await asyncio.gather(
            run.call(send, f"{step} send"), run.call(look, f"{step} look")
        )
        run.messages += [one, two]
        run.state["steps"] = [*run.state.get("steps", []), step]
        if step == 5:
            return [run.state["steps"], len(run.messages), run.now(), run.uuid()]


AGENTS = [agent, async_agent]


pytestmark = pytest.mark.usefixtures("in_order")


@pytest.fixture(autouse=True)
def world() -> Iterator[None]:
    made.clear()
    dying.clear()
    yield


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CheckpointStore]:
    with CheckpointStore(None if request.param == "memory" else tmp_path) as store:
        yield store


def run(
    store: CheckpointStore, run_id: str, task: Any = "otters", fn: Callable[..., Any] = agent
) -> Any:
    made.clear()
    return RecoverableAgent(fn, store, 2).run_with_recovery_sync(task, run_id)["result"]


def steps_of(store: CheckpointStore, run_id: str) -> list[int | None]:
    return [one.step for one in store.run(run_id).checkpoints()]


def records(store: CheckpointStore, run_id: str) -> list[Any]:
    with store.backend.read(run_id) as reader:  # type: ignore[union-attr]
        return list(reader.records())


def after(step: int) -> Counter[str]:
    """What was made in later steps than this."""
    return Counter(what for what, _ in made if int(what.split()[0]) > step)


# -- what is in a fork


@pytest.mark.parametrize("fn", AGENTS)
@pytest.mark.parametrize("at_step", [5, None])
def test_a_fork_of_all_there_is_executes_nothing(store, fn, at_step):
    parent = run(store, "parent", fn=fn)
    fork(store, "parent", "child", at_step=at_step)
    assert run(store, "child", fn=fn) == parent, "the clock too is the recorded one"
    assert not made


@pytest.mark.parametrize("at_step", [0, 1, None])
def test_a_run_that_was_submitted_is_forked_before_its_first_checkpoint_too(store, at_step):
    """Its first record is that it was submitted."""
    store.submit("agent", "otters", "parent")
    made.clear()
    ended = RecoverableAgent(agent, store, 9).run_with_recovery_sync("otters", "parent")
    assert steps_of(store, "parent") == []
    fork(store, "parent", "child", at_step=at_step)
    again = run(store, "child")
    assert again[:2] == ended["result"][:2]
    assert after(0 if at_step is None else at_step) == Counter(what for what, _ in made)


def test_a_fork_begins_with_one_full_checkpoint_if_there_is_one(store):
    run(store, "parent")
    assert steps_of(store, "parent") == [4, 2]
    for at_step, found in ((4, [4]), (3, [2]), (2, [2]), (1, []), (0, [])):
        fork(store, "parent", f"child-{at_step}", at_step=at_step)
        assert steps_of(store, f"child-{at_step}") == found
        assert store.validate(f"child-{at_step}")
    there, here = store.load_at_step("parent", 4), store.load_at_step("child-4", 4)
    assert (there.state, there.messages) == (here.state, here.messages)
    assert there.timestamp == here.timestamp
    assert here.run_id == "child-4"


def test_the_parent_can_be_deleted(tmp_path):
    import shutil

    store = CheckpointStore(tmp_path)
    parent = run(store, "parent")
    fork(store, "parent", "three", at_step=3)
    fork(store, "parent", "four", at_step=4)
    shutil.rmtree(tmp_path / "parent")
    assert [run(store, name)[:2] for name in ("three", "four")] == [parent[:2]] * 2
    assert [link.run_id for link in lineage(store, "three")] == ["parent"]


def test_records_keep_their_time_and_values_their_bytes(store):
    run(store, "parent")
    fork(store, "parent", "child", at_step=1)
    there = {record.time_ns: record for record in records(store, "parent")}
    copied = records(store, "child")[1:]
    assert len(copied) > 5
    for record in copied:
        assert record.kind == there[record.time_ns].kind
        if record.kind == "outcome":
            assert record.body["value"] == there[record.time_ns].body["value"]


def test_recoveries_and_usage_are_counted_on(store):
    dying.add("4 send")
    with pytest.raises(Died):
        run(store, "parent")
    resolve(store, "parent", in_doubt(store, "parent"), Resolution.retry())
    run(store, "parent")
    agent_of = RecoverableAgent(agent, store, 2)
    for at_step, calls in ((2, 12), (3, 12), (4, 6)):
        fork(store, "parent", f"child-{at_step}", at_step=at_step)
        made.clear()
        found = agent_of.run_with_recovery_sync("otters", f"child-{at_step}")
        assert found["recovery_count"] == (3 if at_step == 4 else 1), "as many as up to there"
        assert len(made) <= calls
        with store.backend.read(f"child-{at_step}") as reader:
            history = load(reader, f"child-{at_step}")
        with store.backend.read("parent") as reader:
            there = load(reader, "parent")
        used, before = history.tallies.progress.usage(), there.tallies.progress.usage()
        assert used.steps == before.steps == 5
        assert used.calls == before.calls - (at_step < 4), "the attempt after the crash is one"


def test_a_fork_is_the_answer_to_a_divergence(store):
    dying.add("3 send")
    with pytest.raises(Died):
        run(store, "parent")

    def other(run: SyncRun) -> Any:
        run.call(send, "0 before")
        run.messages.append({"task": run.task})
        for step in run.steps():
            run.messages.append(run.call(send, f"{step} send" if step < 3 else "3 other"))
            run.state["steps"] = [*run.state.get("steps", []), step]
            run.call(both, f"{step} both")
            if step == 3:
                return run.state["steps"]

    with pytest.raises(DivergenceError) as caught:
        run(store, "parent", fn=other)
    assert "store.run('parent').fork('NEW_RUN_ID', at_step=2)" in str(caught.value)
    fork(store, "parent", "child", at_step=2)
    assert run(store, "child", fn=other) == [1, 2, 3]
    assert [what for what, _ in made] == ["3 other", "3 both first", "3 both second"]


def test_what_was_dropped_when_a_divergence_was_accepted_is_not_forked(store):
    dying.add("4 send")
    with pytest.raises(Died):
        run(store, "parent")
    resolve(store, "parent", in_doubt(store, "parent"), Resolution.outcome("by hand"))

    def shorter(run: SyncRun) -> Any:
        run.call(send, "0 before")
        run.messages.append({"task": run.task})
        for step in run.steps():
            run.messages.append(run.call(send, f"{step} send"))
            run.state["steps"] = [*run.state.get("steps", []), step]
            if step == 4:
                return [run.state["steps"], len(run.messages)]

    accept(store, "parent", why="both() is not needed any more")
    assert run(store, "parent", fn=shorter) == [[1, 2, 3, 4], 5]
    for at_step in (2, 3):
        fork(store, "parent", f"child-{at_step}", at_step=at_step)
        assert run(store, f"child-{at_step}", fn=shorter) == [[1, 2, 3, 4], 5]
        assert [what for what, _ in made] == [f"{step} send" for step in range(at_step + 1, 5)]


def in_doubt(store: CheckpointStore, run_id: str) -> int:
    with pytest.raises(InDoubtError) as caught:
        run(store, run_id)
    return int(caught.value.calls[0].lsn)


# -- in doubt


@pytest.mark.parametrize("at_step", [None])
def test_a_call_in_doubt_is_in_doubt_in_the_fork_under_its_key(store, at_step):
    dying.add("3 send")
    with pytest.raises(Died):
        run(store, "parent")
    (key,) = {key for what, key in made if what == "3 send"}
    with store.backend.read("parent") as reader:
        (started,) = [r.time_ns for r in reader.records() if r.kind == "call"][-1:]
    fork(store, "parent", "child", at_step=at_step)
    fork(store, "child", "grandchild", at_step=at_step)
    for run_id in ("child", "grandchild"):
        with pytest.raises(InDoubtError) as caught:
            run(store, run_id)
        (call,) = caught.value.calls
        assert call.idempotency_key == key
        assert call.started_ns == started, "since when to ask the world outside"
        assert not made
        resolve(store, run_id, call.lsn, Resolution.retry())
        run(store, run_id)
        assert made[0] == ("3 send", key), "the effect may have happened under this key"
        assert {key for _, key in made[1:]}.isdisjoint({key})


@pytest.mark.usefixtures("clock")
def test_how_a_call_under_way_at_the_end_of_the_step_has_ended_goes_along(store):
    async def slow(run: Run) -> Any:
        task = None
        async for step in run.steps():
            if step == 1:
                task = asyncio.create_task(run.call(look_slowly, "1 slow"))
                await asyncio.sleep(0.01)
            if step == 3:
                assert task is not None
                return await task

    @tool
    async def look_slowly(what: str) -> str:
        made.append((what, ""))
        await asyncio.sleep(0.05)
        return "seen"

    assert run(store, "parent", fn=slow) == "seen"
    fork(store, "parent", "child", at_step=1)
    assert run(store, "child", fn=slow) == "seen"
    assert not made
    with pytest.raises(RecoveryError, match="a task that it had started was in flight"):
        fork(store, "parent", "other", at_step=1, state={})


# -- runs in any state


def test_a_live_run_is_forked_and_not_disturbed(store):
    def forking(run: SyncRun) -> Any:
        for step in run.steps():
            run.call(send, f"{step} send")
            if step == 3:
                made_by_fork.append(fork(store, run.run_id, f"of-{run.run_id}", at_step=2))
                return step

    made_by_fork: list[ForkedFrom] = []
    assert run(store, "parent", fn=forking) == 3
    assert made_by_fork[0].step == 2
    made.clear()

    def other(run: SyncRun) -> Any:
        for step in run.steps():
            if step == 3:
                return "another end"
            run.call(send, f"{step} send")

    assert run(store, "of-parent", fn=other) == "another end"
    assert not made


def test_a_failed_run_goes_on_in_a_fork_with_code_that_handles_it(store):
    @tool
    def fails(what: str) -> None:
        made.append((what, ""))
        raise ValueError("bad address")

    def careless(run: SyncRun) -> Any:
        for step in run.steps():
            run.call(send, f"{step} send")
            run.call(fails, f"{step} fails")

    def careful(run: SyncRun) -> Any:
        for step in run.steps():
            run.call(send, f"{step} send")
            try:
                run.call(fails, f"{step} fails")
            except ValueError as exc:
                return str(exc)

    with pytest.raises(RunFailedError):
        run(store, "parent", fn=careless)
    fork(store, "parent", "child")
    assert run(store, "child", fn=careful) == "bad address"
    assert not made
    with pytest.raises(RecoveryError, match="has not reached the end of step 1: it is in step 1"):
        fork(store, "parent", "other", at_step=1)


def test_a_store_used_without_an_agent_is_forked_at_its_checkpoints(store):
    for step in (1, 2, 3):
        messages = [f"m{i}" for i in range(step)]
        store.save(Checkpoint("", "parent", step, {"n": step}, messages, [step], 1.0))
    with pytest.raises(RecoveryError, match="no agent has run 'parent': give the fork a task="):
        fork(store, "parent", "child", at_step=2)
    fork(store, "parent", "child", at_step=2, task="otters")
    found = store.load_latest("child")
    assert (found.state, found.messages, list(found.tool_results)) == ({"n": 2}, ["m0", "m1"], [2])

    def counting(run: SyncRun) -> Any:
        for step in run.steps():
            return [step, run.state, list(run.messages)]

    assert run(store, "child", fn=counting) == [3, {"n": 2}, ["m0", "m1"]]


def test_a_long_conversation_is_copied_in_pieces(store, monkeypatch):
    monkeypatch.setattr("recovery.ops.record_copy.PIECE_SIZE", 100)
    run(store, "parent")
    fork(store, "parent", "child", at_step=4)
    kinds = Counter(record.kind for record in records(store, "child"))
    assert kinds["snapshot"] == 1
    assert kinds["messages"] > 3
    assert store.load_latest("child").messages == store.load_at_step("parent", 4).messages
    run(store, "child")
    assert store.validate("child")


# -- changes


@pytest.mark.parametrize("fn", AGENTS)
@pytest.mark.parametrize("at_step", [0, 1, 2, 3, 4])
def test_state_and_messages_are_changed_at_any_step(store, fn, at_step):
    messages = run(store, "parent", fn=fn)[1]
    expected = after(at_step)
    fork(store, "parent", "state", at_step=at_step, state={"steps": ["changed"]})
    found = run(store, "state", fn=fn)
    assert found[:2] == [["changed", *range(at_step + 1, 6)], messages]
    assert Counter(what for what, _ in made) == expected
    fork(store, "parent", "both", at_step=at_step, state={}, messages=["one", {"two": 2}])
    assert run(store, "both", fn=fn)[0] == list(range(at_step + 1, 6))
    assert store.load_latest("both").messages[:2] == ["one", {"two": 2}]


def test_messages_alone_are_changed_where_there_is_a_checkpoint(store):
    run(store, "parent")
    fork(store, "parent", "child", at_step=2, messages=[])
    run(store, "child")
    (said, *_) = store.load_latest("child").messages
    assert said["did"] == "3 send"
    with pytest.raises(RecoveryError, match=r"its state there is not known: give state= too.*2, 4"):
        fork(store, "parent", "other", at_step=3, messages=[])


def test_the_conversation_of_a_step_without_a_checkpoint_is_what_was_recorded(store):
    """A message that is an outcome is a reference in the log, also to what a checkpoint hides."""

    def late(run: SyncRun) -> Any:
        kept: list[Any] = []
        for step in run.steps():
            kept.append(run.call(send, f"{step} send"))
            run.messages.append("filler")
            if step == 3:
                run.messages += kept
                run.messages[0] = "edited"
            if step == 4:
                return len(run.messages)

    run(store, "parent", fn=late)
    fork(store, "parent", "child", at_step=3, state={})
    there = store.load_at_step("child", 3).messages
    assert there[0] == "edited"
    assert [one["did"] for one in there[3:]] == ["1 send", "2 send", "3 send"]
    assert run(store, "child", fn=late) == 7


def test_a_message_from_before_the_checkpoint_is_copied_by_value(store):
    def late(run: SyncRun) -> Any:
        first = None
        for step in run.steps():
            if step == 1:
                first = run.call(send, "1 send")
                run.state["first"] = first
            if step == 4:
                run.messages.append(run.state["first"])  # recorded as a reference to the outcome
            if step == 6:
                return list(run.messages)

    def agent_of(every: int) -> RecoverableAgent:
        return RecoverableAgent(late, store, every)

    parent = agent_of(3).run_with_recovery_sync("otters", "parent")["result"]
    fork(store, "parent", "child", at_step=4)
    assert agent_of(3).run_with_recovery_sync("otters", "child")["result"] == parent


@pytest.mark.parametrize("at_step", [0, 2, 4])
def test_a_new_task_repeats_no_call_that_is_the_same(store, at_step):
    def asking(run: SyncRun) -> Any:
        run.call(send, "0 always")
        run.call(send, f"0 about {run.task}", call_id="plan")
        run.messages.append({"task": run.task})
        for step in run.steps():
            run.messages.append(run.call(send, f"{step} send"))
            if step == 5:
                return [run.task, run.messages[0]["task"]]

    run(store, "parent", fn=asking)
    fork(store, "parent", "child", at_step=at_step, task="beavers")
    with pytest.raises(TaskMismatchError):
        run(store, "child", fn=asking)
    # The conversation up to the step is that of the old task, unless it is changed too.
    assert run(store, "child", "beavers", asking) == ["beavers", "otters" if at_step else "beavers"]
    assert [what for what, _ in made] == [
        "0 about beavers",
        *(f"{step} send" for step in range(at_step + 1, 6)),
    ]
    # What the new task does without, its forks do without too, and so does the run resumed.
    fork(store, "child", "grandchild", at_step=4)
    assert run(store, "grandchild", "beavers", asking)[0] == "beavers"
    assert [what for what, _ in made] == ["5 send"]


def test_a_new_task_does_not_forget_a_call_in_doubt(store):
    dying.add("0 about otters")

    def asking(run: SyncRun) -> Any:
        run.call(send, f"0 about {run.task}")
        for step in run.steps():
            return step

    with pytest.raises(Died):
        run(store, "parent", fn=asking)
    with pytest.raises(RecoveryError, match="has not reached the end of step 0"):
        fork(store, "parent", "child", at_step=0, task="beavers")


def test_a_new_task_needs_a_step_that_it_can_begin_behind(store):
    run(store, "parent")
    with pytest.raises(RecoveryError, match="no checkpoint at the end of step 3"):
        fork(store, "parent", "child", at_step=3, task="beavers")
    fork(store, "parent", "child", at_step=3, task="beavers", state={"steps": []})
    assert run(store, "child", "beavers")[0] == [4, 5]


# -- undo and child runs


def test_a_fork_undoes_what_it_has_done_itself(store):
    undone: list[tuple[int, str]] = []

    @tool(undo=lambda call, outcome: undone.append((int(call.args[0]), call.run_id)))
    def pay(what: str) -> str:
        return f"paid {what}"

    def paying(run: SyncRun) -> Any:
        for step in run.steps():
            run.call(pay, f"{step}")
            if step == 4:
                return [one["call_id"] for one in run.undo()]

    run(store, "parent", fn=paying)
    assert undone == [(step, "parent") for step in (4, 3, 2, 1)]
    for at_step, own in ((1, [4, 3, 2]), (2, [4, 3])):
        undone.clear()
        name = f"child-{at_step}"
        fork(store, "parent", name, at_step=at_step)
        run(store, name, fn=paying)
        assert undone == [(step, name) for step in own]
    # A finished undo comes along as it is.
    undone.clear()
    fork(store, "parent", "whole")
    run(store, "whole", fn=paying)
    assert undone == []
    undo(store, "whole", tools=[pay])
    assert undone == []


@pytest.mark.parametrize("at_step, own", [(1, [5, 4, 3]), (2, [5, 4, 3]), (3, [5, 4]), (4, [5])])
def test_a_fork_undoes_since_a_step_that_its_own_log_does_not_have(store, at_step, own):
    """The steps up to its checkpoint are another run's: all that it has done itself is there."""
    undone: list[int] = []

    @tool(undo=lambda call, outcome: undone.append(int(call.args[0])))
    def pay(what: str) -> str:
        return f"paid {what}"

    def paying(run: SyncRun) -> Any:
        for step in run.steps():
            run.call(pay, f"{step}")
            if step == 5:
                return len(run.undo(since=3))

    run(store, "parent", fn=paying)
    assert undone == [5, 4, 3]
    undone.clear()
    fork(store, "parent", "child", at_step=at_step)
    assert run(store, "child", fn=paying) == len(own)
    assert undone == own


def test_a_fork_without_the_beginning_of_its_log_is_not_undone_from_before_that():
    plan = UndoPlan(undo_call_lsn=90, since=3, first_lsn=40, forked=20, base=15)
    assert not plan.begins_in_the_log
    assert UndoPlan(undo_call_lsn=90, since=3, first_lsn=1, forked=20, base=15).begins_in_the_log
    assert not UndoPlan(undo_call_lsn=90, since=3, first_lsn=1, forked=20).begins_in_the_log


def test_a_run_that_is_being_undone_is_forked_before_that(store):
    tries = [0]

    def give_back(call: Any, outcome: Any) -> None:
        tries[0] += 1
        if tries[0] == 1:
            raise Died

    @tool(undo=give_back)
    def pay(what: str) -> str:
        return what

    def paying(run: SyncRun) -> Any:
        for step in run.steps():
            run.call(pay, f"{step}")
            if step == 2:
                run.undo()

    with pytest.raises(Died):
        run(store, "parent", fn=paying)
    with pytest.raises(RecoveryError, match="has an undo in flight"):
        fork(store, "parent", "child")
    fork(store, "parent", "child", at_step=1)


def test_a_child_run_is_not_shared_with_a_fork(store):
    dying.add("1 child")

    def child(run: SyncRun) -> Any:
        return [run.call(look, "1 child"), run.run_id]

    children_agent = RecoverableAgent(child, store)

    def family(run: SyncRun) -> Any:
        for step in run.steps():
            found = run.child(children_agent, "otters")
            if step == 2:
                return found

    with pytest.raises(Died):
        run(store, "parent", fn=family)
    with pytest.raises(RecoveryError, match=r"has child run 'parent.*' in flight"):
        fork(store, "parent", "fork")
    theirs = run(store, "parent", fn=family)[1]
    fork(store, "parent", "fork", at_step=1)
    ours = run(store, "fork", fn=family)[1]
    assert [what for what, _ in made] == ["1 child"]
    assert theirs != ours
    assert ours.startswith("fork+")


# -- refused


def test_what_cannot_be_forked_is_refused_and_leaves_nothing(store):
    run(store, "parent")
    refused: Any = (
        ({"run_id": "nobody"}, RecoveryError, "there is no run 'nobody'"),
        ({"at_step": 9}, RecoveryError, "not reached the end of step 9: it is in step 5.*2, 4"),
        ({"at_step": -1}, ValueError, "at_step"),
        ({"new_run_id": "parent"}, ValueError, "a run_id of its own"),
        ({"new_run_id": "../x"}, ValueError, "run_id"),
        ({"state": {}}, ValueError, "give at_step="),
        ({"at_step": 2, "state": {1: 2}}, RefusedValueError, "state"),
        ({"at_step": 2, "messages": [object()]}, RefusedValueError, r"messages\[0\]"),
        ({"at_step": 2, "task": object()}, RefusedValueError, "task"),
    )
    for options, error, match in refused:
        given: Any = {"run_id": "parent", "new_run_id": "child", **options}
        with pytest.raises(error, match=match):
            fork(store, given.pop("run_id"), given.pop("new_run_id"), **given)
    assert store.backend.run_ids() == ["parent"]


def test_an_existing_run_is_refused(store):
    run(store, "parent")
    fork(store, "parent", "child", at_step=2)
    before = records(store, "child")
    for other in ({"at_step": 3}, {"at_step": 2, "why": "x"}, {"at_step": None}):
        with pytest.raises(RecoveryError, match=r"run 'child' exists.*Nothing was written"):
            fork(store, "parent", "child", **other)
        assert records(store, "child") == before
    run(store, "child")
    with pytest.raises(RecoveryError, match="run 'child' exists"):
        fork(store, "parent", "child", at_step=2)
    assert records(store, "child")[: len(before)] == before
    with store.claim("held") as log, pytest.raises(LogLockedError):
        fork(store, "parent", "held")
    assert log.last_lsn == 0


def test_a_fork_that_is_whole_and_was_not_run_is_made_again_as_it_is(store):
    """Its process may have died before it said so."""
    run(store, "parent")
    for options in OPTIONS:
        child = f"child_{len(store.backend.run_ids())}"
        link = fork(store, "parent", child, **options)
        before = records(store, child)
        assert fork(store, "parent", child, **options) == link
        assert records(store, child) == before


def test_a_fork_does_not_know_what_was_before_it(store):
    run(store, "parent")
    fork(store, "parent", "child", at_step=2)
    run(store, "child")
    with pytest.raises(RecoveryError, match=r"up to the end of step 1 is not in its log.*2, 4"):
        fork(store, "child", "grandchild", at_step=1)


def test_the_line_of_forks_can_be_read(store):
    run(store, "parent")
    assert lineage(store, "parent") == []
    one = fork(store, "parent", "one", at_step=4, who="ann", why="another end")
    two = fork(store, "one", "two")
    assert lineage(store, "two") == [two, one]
    assert (one.run_id, one.step, one.who, one.why) == ("parent", 4, "ann", "another end")
    with store.backend.read("parent") as reader:
        started = started_of(reader)
        assert started is not None and started.uid == one.uid
        assert [r.kind for r in reader.records(one.lsn)][:2] == ["snapshot", "step"]
    with pytest.raises(RecoveryError, match="no run 'three'"):
        lineage(store, "three")


# -- crashes and damage


def on(disk: SimulatedDisk) -> CheckpointStore:
    return CheckpointStore(LogStore("runs", disk, "power"))


OPTIONS: list[dict[str, Any]] = [
    {"at_step": 3},
    {"at_step": None},
    {"at_step": 2, "task": "beavers"},
    {"at_step": 1, "state": {"steps": []}, "messages": ["m"], "who": "ann"},
]


@pytest.mark.parametrize(
    ("options", "stride", "torn_sizes"),
    [
        *((one, 3, (20,)) for one in OPTIONS[::3]),
        *(pytest.param(one, 1, (0, 20, 1 << 20), marks=pytest.mark.crash) for one in OPTIONS),
    ],
    ids=str,
)
def test_a_fork_that_crashes_is_none_or_unfinished_or_whole(
    options: dict[str, Any], stride: int, torn_sizes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recovery.ops.fork.urandom", bytes)
    disk = SimulatedDisk(seed=1)
    run(on(disk), "parent")
    task = options.get("task", "otters")
    whole = disk.after_process_death()
    fork(on(whole), "parent", "child", **options)
    expected = [(r.kind, r.packed) for r in records(on(whole), "child")]
    result = run(on(whole.after_process_death()), "child", task)
    seen: Counter[str] = Counter()
    for at in range(0, len(whole.calls), stride):
        for torn in torn_sizes:
            dying_disk = disk.after_process_death()
            dying_disk.crash_at(at, torn)
            with pytest.raises(Crash):
                fork(on(dying_disk), "parent", "child", **options)
            for seed in (None, at, at + 1000):
                after = (
                    dying_disk.after_process_death()
                    if seed is None
                    else dying_disk.after_power_loss(seed)
                )
                seen[check_crashed(after, options, expected, (task, result))] += 1
    assert all(seen[what] for what in ("none", "unfinished", "whole")), seen


def check_crashed(disk: SimulatedDisk, options: Any, expected: Any, end: tuple[Any, Any]) -> str:
    store, (task, result) = on(disk), end
    before = records(store, "parent")
    reader = store.backend.read("child")
    found = []
    if reader is not None:
        with reader:
            found = [(r.kind, r.packed) for r in reader.records()]
    assert found == expected[: len(found)]
    if found and len(found) < len(expected):
        with pytest.raises(RecoveryError, match="a fork of 'parent' that was not finished"):
            run(store, "child", task)
        assert not made
        with pytest.raises(RecoveryError, match="finished or not, of something else"):
            fork(store, "parent", "child", **(options | {"why": "another reason"}))
        with pytest.raises(RecoveryError, match="exists"):
            fork(store, "child", "parent")
    fork(store, "parent", "child", **options)
    for after in (store, on(disk.after_power_loss(1))):
        assert [(r.kind, r.packed) for r in records(after, "child")] == expected
    assert records(store, "parent") == before
    assert run(store, "child", task)[:2] == result[:2]
    return "none" if not found else "unfinished" if len(found) < len(expected) else "whole"


def test_an_unfinished_fork_of_a_run_that_went_on_is_finished_as_it_was_begun():
    disk = SimulatedDisk(seed=1)
    dying.add("3 send")
    with pytest.raises(Died):
        run(on(disk), "parent")
    whole = disk.after_process_death()
    fork(on(whole), "parent", "child")
    expected = len(records(on(whole), "child"))
    for at in reversed(range(len(whole.calls))):
        crashed = disk.after_process_death()
        crashed.crash_at(at)
        with pytest.raises(Crash):
            fork(on(crashed), "parent", "child")
        store = on(crashed.after_process_death())
        if len(records(store, "child")) < expected:
            break
    assert len(records(store, "child")) == expected - 1
    resolve(store, "parent", in_doubt(store, "parent"), Resolution.retry())
    run(store, "parent")
    fork(store, "parent", "child")
    assert len(records(store, "child")) == expected
    assert in_doubt(store, "child")


def damage(disk: SimulatedDisk, run_id: str, lsn: int) -> None:
    """Flip a bit in the payload of a record."""
    (name,) = [name for name in disk.directories[f"runs/{run_id}"] if name.endswith(".seg")]
    file: Any = disk.directories[f"runs/{run_id}"][name]
    header = decode_segment_header(bytes(file.content))
    assert header is not None
    for item in Segment(1, bytes(file.content), header.salt, DurableMark(), None).walk(
        HEADER_SIZE, 1
    ):
        if isinstance(item, tuple) and item[0].lsn == lsn and item[0].kind != FOOTER:
            file.content[item[0].payload_offset + 3] ^= 1
            file.durable, file.pending = bytes(file.content), []
            return
    raise AssertionError(f"no LSN {lsn}")


def test_a_damaged_run_is_forked_where_it_is_sound():
    clean = SimulatedDisk(seed=1)
    run(on(clean), "parent")
    store = on(clean)
    snapshots = {one.lsn for one in store.run("parent").checkpoints()}
    steps = {r.body["step"]: r.lsn for r in records(store, "parent") if r.kind == "step"}
    for lsn in range(2, records(store, "parent")[-1].lsn, 2):
        disk = clean.after_process_death()
        damage(disk, "parent", lsn)
        for at_step in range(5):
            end = steps[at_step + 1]
            sound = [one for one in on(disk).run("parent").checkpoints() if one.validity]
            base = next((one for one in sound if (one.step or 0) <= at_step), None)
            begin = base.lsn + 1 if base else 1
            if begin <= lsn <= end and lsn not in snapshots and (not base or base.step != at_step):
                with pytest.raises(DamagedRunError) as caught:
                    fork(on(disk), "parent", f"child-{at_step}", at_step=at_step)
                assert "Steps with a sound checkpoint" in str(caught.value.__notes__)
            else:
                fork(on(disk), "parent", f"child-{at_step}", at_step=at_step)
                run(on(disk), f"child-{at_step}")


def test_a_fork_without_its_first_checkpoint_is_not_run_from_the_beginning():
    disk = SimulatedDisk(seed=1)
    run(on(disk), "parent")
    fork(on(disk), "parent", "child", at_step=4)
    link = lineage(on(disk), "child")[0]
    damage(disk, "child", link.base)
    with pytest.raises(DamagedRunError, match="the checkpoint with which the fork began"):
        run(on(disk), "child")
    assert not made
    with pytest.raises(DamagedRunError):
        resolve(on(disk), "child", 2, Resolution.retry())


# -- the checkpoints of a run


def test_the_checkpoints_of_a_run_are_listed(store):
    run(store, "parent")
    newest, oldest = store.run("parent").checkpoints()
    assert (newest.step, oldest.step) == (4, 2)
    assert newest.lsn > oldest.lsn
    assert newest.size == len({r.lsn: r for r in records(store, "parent")}[newest.lsn].packed)
    assert newest.timestamp == store.load_at_step("parent", 4).timestamp
    assert newest.checkpoint_id == "parent-000004"
    assert newest.validity
    assert str(newest) == f"step 4 (LSN {newest.lsn}, {newest.size} bytes): sound"
    assert store.run("nobody").checkpoints() == []


def test_a_checkpoint_is_listed_as_sound_if_and_only_if_it_can_be_restored():
    clean = SimulatedDisk(seed=1)
    for step in range(1, 6):  # five, so that they refer to each other
        with on(clean) as store:
            messages = [f"message {i}" * 5 for i in range(step + 1)]
            state = {"n": step, "same": "x" * 50}
            store.save(Checkpoint("", "parent", step, state, messages, [], 1.0))
    steps = {one.lsn: one.step for one in on(clean).run("parent").checkpoints()}
    assert [*steps.values()] == [5, 4, 3, 2, 1]
    for lsn in range(1, max(steps) + 1):
        disk = clean.after_process_death()
        damage(disk, "parent", lsn)
        listed = on(disk).run("parent").checkpoints()
        # A part of one that is damaged cannot be told from a checkpoint.
        assert [one.lsn for one in listed] == sorted({*steps, lsn}, reverse=True)
        for one in listed:
            restored = on(disk).load_at_step("parent", steps.get(one.lsn) or 0)
            assert bool(one.validity) == (restored is not None), str(one)
            assert one.step == (None if one.lsn == lsn else steps[one.lsn])
            assert bool(one.validity) == (str(one.validity) == "sound")
