"""What happens in a run, told: to who follows its log, and to the process that runs it."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import threading
import time
from collections import Counter
from dataclasses import make_dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import recovery.agent.recoverable
import recovery.inspect.follow
import recovery.inspect.run_event
from eventlog import Packed
from eventlog.format.names import segment_name
from eventlog.testing import SimulatedDisk
from recovery import (
    CheckpointStore,
    InDoubtError,
    PermanentError,
    RecoverableAgent,
    RecoveryError,
    Resolution,
    Run,
    SyncRun,
    register,
    tool,
)
from recovery.control.resolve import resolve
from recovery.errors import DamagedRunError, RunFailedError, UnreadableValueError
from recovery.inspect.follow import Until, events
from recovery.inspect.run_event import EventReader
from recovery.journal.encoding import encode
from recovery.journal.events import CallReturned, MessagesChanged
from recovery.replay.progress import ProgressTally
from recovery.reports import RunEvent
from recovery.values import codec
from recovery.values.backrefs import CompositeMessage
from recovery.values.pack import pack
from recovery.values.types import Ref
from tests.support.lives import Died, Disk


@pytest.fixture(autouse=True)
def _fresh(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery.inspect.follow, "PAUSE_S", 0.001)
    monkeypatch.setattr(recovery.inspect.follow, "PAUSE_MAX_S", 0.001)
    deaths.clear()


UNTIL: tuple[Until, ...] = ("ended", "parked", "now")
deaths: list[int] = []  # steps in which the process dies, once each


@tool(after_crash="retry")
def look(what: Any) -> str:
    return f"a long enough look at {what} to be referred to"


@tool
def send(what: Any) -> str:
    if what in deaths:
        deaths.remove(what)
        raise Died
    if what == 2:
        raise KeyError("two")
    return f"sent {look(what)}"


def plain(run: SyncRun) -> str:
    run.now()
    run.call(look, "ahead")
    for step in run.steps():
        run.messages.append(run.call(look, step, call_id=f"c{step}"))
        try:
            run.call(send, step)
        except KeyError:
            run.messages[-1:] = ["edited", step]
        if step == 5:
            return "done"
    raise AssertionError


async def agent(run: Run) -> str:
    run.now()
    await run.call(look, "ahead")
    async for step in run.steps():
        run.messages.append(await run.call(look, step, call_id=f"c{step}"))
        await asyncio.gather(run.call(look, "a"), run.call(look, "b"))
        try:
            await run.call(send, step)
        except KeyError:
            run.messages[-1:] = ["edited", step]
        if step == 5:
            return "done"
    raise AssertionError


def live(function: Any, store: CheckpointStore, told: list[RunEvent], **options: Any) -> Any:
    options = dict[str, Any](checkpoint_every_n=2, on_event=told.append) | options
    return RecoverableAgent(function, store, **options).run_with_recovery_sync("task", "run")


def everything(store: CheckpointStore, after: int = 0) -> list[RunEvent]:
    return list(events(store, "run", after=after, until="now"))


def mine(event: RunEvent) -> RunEvent:
    """The event as another process knows it."""
    return replace(event, progress=replace(event.progress, served=0))


def counted(store: CheckpointStore) -> tuple[int, int, int]:
    """Steps, calls and failed calls, counted in the log by other means."""
    reader = store.backend.read("run")
    assert reader is not None
    with reader:
        kinds = Counter(record.kind for record in reader.records())
    return kinds["step"], kinds["call"] + kinds["retry"], kinds["failure"]


def settled(store: CheckpointStore, parked: InDoubtError) -> None:
    for call in parked.calls:
        resolve(store, "run", call.lsn, Resolution.retry(), who="ann", why="looked")


def lives(
    function: Any, dies_at: list[int], **options: Any
) -> tuple[CheckpointStore, list[list[RunEvent]]]:
    """A run that ends after so many deaths: where it is, and what each life was told."""
    store = CheckpointStore(Disk(SimulatedDisk()))
    deaths[:] = dies_at
    all_told: list[list[RunEvent]] = []
    for _ in range(20):
        all_told.append([])
        try:
            live(function, store, all_told[-1], **options)
        except Died:
            assert isinstance(store.backend, Disk)
            store = CheckpointStore(Disk(store.backend.disk.after_process_death()))
        except InDoubtError as parked:
            settled(store, parked)
        else:
            return store, all_told
    raise AssertionError("it does not end")


# -- what is told


@pytest.mark.parametrize("function", [agent, plain])
def test_the_process_is_told_what_a_follower_reads(function: Any) -> None:
    store, told = CheckpointStore(), list[RunEvent]()
    live(function, store, told)
    assert told == everything(store)
    assert [event.lsn for event in told] == list(range(1, len(told) + 1))
    assert [event.value for event in told] == [event.value for event in everything(store)]
    assert list(map(str, told)) == list(map(str, everything(store)))
    progress = told[-1].progress
    found = progress.usage.steps, progress.usage.calls, progress.failed
    assert found == counted(store) and progress.step == 5
    assert (progress.status, progress.in_flight, progress.last_tool) == ("finished", 0, "look")


def test_an_event_says_what_a_progress_display_asks() -> None:
    store, told = CheckpointStore(), list[RunEvent]()
    live(plain, store, told)
    started = told[0]
    assert (started.kind, started.step, started.value) == ("run_started", 0, "task")
    assert abs(started.timestamp - time.time()) < 60
    of_step_2 = [event for event in told if event.step == 2]
    call = next(event for event in of_step_2 if event.kind == "call" and event.tool == "look")
    assert (call.call, call.call_id, call.attempt, call.value) == (call.lsn, "c2", 1, [[2], {}])
    assert call.progress.in_flight == 1 and call.duration_s is None
    outcome = next(e for e in of_step_2 if e.call == call.call and e.kind == "outcome")
    assert (outcome.tool, outcome.call_id, outcome.value) == ("look", "c2", look(2))
    assert outcome.duration_s is not None and outcome.duration_s >= 0
    assert outcome.duration_s == pytest.approx(outcome.timestamp - call.timestamp, abs=1e-5)
    failure = next(event for event in of_step_2 if event.kind == "failure")
    assert (failure.tool, failure.error, failure.value) == ("send", "KeyError: 'two'", None)
    edit = next(
        event for event in of_step_2 if event.kind == "messages" and "edited" in event.value
    )
    assert edit.body == {"start": 1, "stop": 2, "new": ["edited", 2]} and edit.value[1] == 2
    assert any(event.kind == "snapshot" and event.step == 2 for event in of_step_2)
    inner = next(
        event
        for event in told
        if event.kind == "call" and event.body["scope"] != "1" and event.progress.in_flight == 2
    )
    assert (inner.tool, inner.step) == ("look", 1)
    assert (told[-1].kind, told[-1].value) == ("run_finished", "done")


def test_an_event_is_a_line_of_text() -> None:
    store, told = CheckpointStore(), list[RunEvent]()
    live(plain, store, told)
    lines = [str(event) for event in told]
    assert lines[0] == "LSN 1, step 0: run run started: 'task'"
    assert "LSN 5, step 1: step 1 began" in lines
    assert "LSN 6, step 1: look(1)" in lines
    assert any(re.search(r"send failed after \d+\.\d\d s: KeyError: 'two'", x) for x in lines)
    assert any("checkpoint at the end of step 2" in line for line in lines)
    assert any("messages[1:2] = ['edited', 2]" in line for line in lines)
    assert any("now() = 1" in line for line in lines)
    assert lines[-1].endswith("finished: 'done'")
    assert all("\n" not in line and len(line) < 300 for line in lines)
    shown = str(told[5].progress)
    assert re.fullmatch(r"running, 1 step, 2 attempts, \d+\.\d s, 1 in flight", shown)


@pytest.mark.parametrize("function", [agent, plain])
def test_a_resumed_process_is_told_where_it_is_and_nothing_that_is_replayed(function: Any) -> None:
    _, told = lives(function, [1, 3, 4, 5])
    lsns = [event.lsn for life in told for event in life]
    assert lsns == sorted(set(lsns)), "told twice"
    assert [life[0].kind for life in told] == ["run_started"] + ["run_resumed"] * (len(told) - 1)
    for before, life in itertools.pairwise(told):
        first, last = life[0].progress, before[-1].progress
        assert (first.step, first.usage.calls, first.failed) == (
            last.step,
            last.usage.calls,
            last.failed,
        )
        assert first.in_flight == 0 and first.status == "running"
    assert any(event.progress.served for event in told[-1])


@pytest.mark.parametrize("function", [agent, plain])
@pytest.mark.parametrize("every", [1, 2, 9])
def test_totals_survive_crashes_and_checkpoints(function: Any, every: int) -> None:
    store, told = lives(function, [1, 3, 4, 5], checkpoint_every_n=every)
    last = told[-1][-1].progress
    assert (last.usage.steps, last.usage.calls, last.failed) == counted(store)
    assert replace(last, served=0) == everything(store)[-1].progress


# -- who follows


@pytest.mark.parametrize("function", [agent, plain])
def test_reading_goes_on_behind_any_event(function: Any) -> None:
    store, _ = lives(function, [1, 3, 4, 5])
    whole = everything(store)
    for i, event in enumerate(whole):
        rest = everything(store, after=event.lsn)
        assert rest == whole[i + 1 :]
        assert [one.value for one in rest] == [one.value for one in whole[i + 1 :]]


def test_where_following_ends() -> None:
    for status in ("running", "parked", "finished", "failed", "undone"):
        tally = ProgressTally()
        tally.status = status
        over = {
            until: events(CheckpointStore(), "run", until=until)._is_over(tally) for until in UNTIL
        }
        assert over["now"]
        assert over["parked"] == (status != "running")
        assert over["ended"] == (status not in ("running", "parked"))


def test_it_ends_when_the_run_has_failed_and_goes_on_when_it_does() -> None:
    def gives_up(run: SyncRun) -> Any:
        return run.call(send, 2)

    store = CheckpointStore()
    with pytest.raises(RunFailedError) as failed:
        live(gives_up, store, [])
    found = list(events(store, "run"))
    assert (found[-1].kind, found[-1].progress.status) == ("run_failed", "failed")
    assert (found[-1].error, found[-1].call, found[-1].tool) == ("KeyError: 'two'", 2, "send")
    resolve(store, "run", failed.value.call, Resolution.outcome("by hand"), who="ann")
    found = list(events(store, "run", until="parked"))
    assert (found[-1].kind, found[-1].progress.status) == ("resolved", "parked")
    assert (found[-1].tool, found[-1].body["who"]) == ("send", "ann")
    assert live(gives_up, store, [])["result"] == "by hand"
    found = list(events(store, "run"))  # is not stopped by the failure that was mended
    assert found[-1].kind == "run_finished" and [e.kind for e in found].count("run_failed") == 1


def test_it_can_end_where_the_run_parks() -> None:
    store = CheckpointStore(Disk(SimulatedDisk()))
    deaths[:] = [1]
    with pytest.raises(Died):
        live(plain, store, [])
    assert isinstance(store.backend, Disk)
    store = CheckpointStore(Disk(store.backend.disk.after_process_death()))
    with pytest.raises(InDoubtError) as parked:
        live(plain, store, [])
    found = list(events(store, "run", until="parked"))
    assert (found[-1].kind, found[-1].progress.status) == ("run_parked", "parked")
    settled(store, parked.value)
    assert next(iter(events(store, "run", after=found[-1].lsn, until="parked"))).kind == "resolved"
    live(plain, store, [])
    assert list(events(store, "run", until="parked"))[-1].kind == "run_finished"


def test_a_run_that_is_not_there() -> None:
    store = CheckpointStore()
    with pytest.raises(RecoveryError, match="there is no run 'run'"):
        everything(store)
    with pytest.raises(ValueError, match='until is "ended"'):
        events(store, "run", until="never")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="run_id"):
        events(store, "../run")


def test_it_waits_for_a_run_and_follows_it_over_all_its_lives(tmp_path: Path) -> None:
    found: list[RunEvent] = []

    def follow() -> None:
        found.extend(events(CheckpointStore(tmp_path), "run"))

    follower = threading.Thread(target=follow)
    follower.start()
    deaths[:] = [1, 3]
    for _ in range(5):
        with CheckpointStore(tmp_path) as store:
            try:
                live(plain, store, [])
            except Died:
                pass
            except InDoubtError as parked:
                settled(store, parked)
    follower.join(60)
    assert not follower.is_alive()
    with CheckpointStore(tmp_path) as store:
        assert found == everything(store) and found[-1].kind == "run_finished"


def test_async_followers_and_the_agent_share_an_event_loop() -> None:
    store = CheckpointStore()
    runner = RecoverableAgent(agent, store)

    async def follow() -> list[RunEvent]:
        return [event async for event in runner.run("run").events()]

    async def both() -> list[list[RunEvent]]:
        async with asyncio.TaskGroup() as group:
            followers = [group.create_task(follow()) for _ in range(3)]
            await runner.run_with_recovery("task", "run")
        return [task.result() for task in followers]

    assert asyncio.run(both()) == [everything(store)] * 3


def test_a_follower_may_be_cancelled_while_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    store, reading, go_on = CheckpointStore(), threading.Event(), threading.Event()
    live(plain, store, [])
    read, problems = EventReader.from_log, list[Any]()

    def slow(self: EventReader, item: Any) -> RunEvent:
        reading.set()
        assert go_on.wait(60)
        return read(self, item)

    async def follow() -> None:
        async for _ in events(store, "run"):
            pass

    async def cancelled() -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: problems.append(context)
        )
        task = asyncio.create_task(follow())
        await asyncio.to_thread(reading.wait, 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()

    monkeypatch.setattr(EventReader, "from_log", slow)
    asyncio.run(cancelled())
    assert problems == []


def test_damage_is_an_event_and_reading_goes_on() -> None:
    store = CheckpointStore(Disk(SimulatedDisk()))
    live(plain, store, [])
    whole = everything(store)
    lost = next(event for event in whole if event.kind == "call" and event.value == [[3], {}])
    assert isinstance(store.backend, Disk)
    content = store.backend.disk.directories["home/run"][segment_name(1)].content
    at = bytes(content).index(b"call_id\xa2c3") + 8
    content[at] ^= 1
    found = everything(store)
    (damage,) = [event for event in found if event.kind == "damage"]
    assert (damage.lsn, damage.step) == (lost.lsn, 3) and damage.damage is not None
    assert str(damage.damage) == damage.error and "DAMAGE: " in str(damage)
    assert [e.lsn for e in found] == [e.lsn for e in whole]
    outcome = next(e for e in found if e.call == lost.lsn)  # of a call that nobody knows any more
    assert (outcome.tool, outcome.call_id, outcome.duration_s) == ("", "", None)
    assert str(outcome).split(": ")[1].startswith(f"call {lost.lsn} returned")
    assert all(e.kind != "damage" for e in everything(store, after=lost.lsn))
    assert any(e.kind == "damage" for e in everything(store, after=lost.lsn - 1))
    message = next(e for e in found if e.kind == "messages" and e.step == 3)
    assert message.value == [look(3)]


def test_a_message_that_is_lost_is_an_error_where_it_is_asked_for() -> None:
    store = CheckpointStore(Disk(SimulatedDisk()))
    live(plain, store, [])
    outcome = next(event for event in everything(store) if event.value == look(3))
    assert isinstance(store.backend, Disk)
    content = store.backend.disk.directories["home/run"][segment_name(1)].content
    content[bytes(content).index(look(3).encode())] ^= 1
    message = next(e for e in everything(store) if e.kind == "messages" and e.step == 3)
    with pytest.raises(DamagedRunError, match=f"LSN {outcome.lsn}"):
        _ = message.value
    assert str(message).endswith("records are damaged.")


def test_a_message_that_cannot_be_read_names_the_record_that_holds_it() -> None:
    kind: Any = register(make_dataclass("Place", ["name"]), name="a place that is gone")
    place = Packed(pack(kind("x" * 99), ""))
    del codec.BY_NAME["a place that is gone"]
    store = CheckpointStore()
    with store.claim("run") as log:
        for value in ("ahead", place):
            lsn = log.append(*encode(CallReturned(1, value)))
        for message in (Ref(lsn), CompositeMessage(((lsn, 40, 99),))):
            log.append(*encode(MessagesChanged(0, 0, [message])))
    *_, of_gone_type, cut_short = everything(store)
    with pytest.raises(UnreadableValueError, match="'a place that is gone'") as unreadable:
        _ = of_gone_type.value
    assert unreadable.value.lsn == lsn
    with pytest.raises(DamagedRunError, match=f"LSN {lsn} lost") as senseless:
        _ = cut_short.value
    assert str(senseless.value.damage[0]).endswith(f"; LSN {lsn} lost")
    assert str(senseless.value.damage[0])[:8] != "segment "  # nobody knows where it was


def test_kinds_of_other_writers_and_of_later_versions_are_passed_on() -> None:
    store = CheckpointStore()
    with store.claim("run") as log:
        log.append("run_thought", {"of": "otters"})
        log.append("note", "plain text")
        log.append("step", {"step": "three"})  # makes no sense: what is in it is lost
        log.append_snapshot({"not": "a checkpoint of a run"})
        log.append("step", {"step": 3, "why": "a field of a later version"})
    thought, note, wrong, snapshot, step = everything(store)
    assert (thought.kind, thought.body, thought.value) == ("run_thought", {"of": "otters"}, None)
    assert str(thought) == "LSN 1, step 0: run_thought {'of': 'otters'}"
    assert note.body == {"body": "plain text"}
    assert (wrong.kind, wrong.lsn) == ("damage", 3)
    assert (snapshot.kind, step.step) == ("snapshot", 3)


def test_values_are_decoded_when_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    @tool
    def large() -> list[str]:
        return ["x" * 1000] * 1000

    def asks(run: SyncRun) -> Any:
        return run.call(large)

    store = CheckpointStore()
    live(asks, store, [])
    decoded: list[int] = []

    def noted(packed: bytes) -> Any:
        decoded.append(len(packed))
        return recovery.values.pack.unpack(packed)

    monkeypatch.setattr(recovery.inspect.run_event, "unpack", noted)
    outcome = next(event for event in everything(store) if event.kind == "outcome")
    assert decoded == []
    assert str(outcome).endswith(f"large: outcome of {outcome.size:,} bytes") and decoded == []
    assert outcome.value == ["x" * 1000] * 1000 and max(decoded) > 1_000_000


# -- who runs it


@pytest.mark.parametrize("function", [agent, plain])
def test_what_the_callback_raises_is_logged_and_hurts_nobody(
    function: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(event: RunEvent) -> None:
        raise ZeroDivisionError(event.kind)

    store, other = CheckpointStore(), CheckpointStore()
    with caplog.at_level(logging.ERROR):
        assert live(function, store, [], on_event=broken)["result"] == "done"
    live(function, other, [], on_event=None)
    # Of calls at once, in any order.
    assert Counter(e.kind for e in everything(store)) == Counter(e.kind for e in everything(other))
    assert len(caplog.records) == len(everything(store))
    assert caplog.records[2].getMessage() == "run run: on_event failed at LSN 3"


def test_what_the_callback_does_is_no_part_of_the_run() -> None:
    store = CheckpointStore()

    def calls(event: RunEvent) -> None:
        assert look(event.kind) and recovery.current_call() is None

    live(plain, store, [], on_event=calls)
    other = CheckpointStore()
    live(plain, other, [], on_event=None)
    assert counted(store) == counted(other)


def test_the_callback_is_a_plain_function() -> None:
    async def wrong(event: RunEvent) -> None: ...

    for callback in (wrong, "print"):
        with pytest.raises(TypeError, match="on_event is a plain function"):
            RecoverableAgent(agent, on_event=callback)  # type: ignore[arg-type]


def test_failed_lives_and_recoveries_in_the_process_are_told_too() -> None:
    def unlucky(run: SyncRun) -> None:
        for step in run.steps():
            run.call(look, step)
            if run.recovery_count < 2:
                raise ConnectionError("lost")
            raise PermanentError("for good")

    store, told = CheckpointStore(), list[RunEvent]()
    with pytest.raises(RunFailedError):
        live(unlucky, store, told)
    assert [mine(event) for event in told] == everything(store)
    assert [event.kind for event in told] == [
        "run_started",
        "step",
        "call",
        "outcome",
        "agent_raised",
        "run_resumed",
        "agent_raised",
        "run_resumed",
        "run_failed",
    ]
    assert told[-1].error == "recovery.PermanentError: for good"
    assert told[-1].progress.status == "failed" and told[-1].progress.served == 1
