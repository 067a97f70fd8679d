"""A run whose log was repaired: for each kind of record, what it means that it is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from eventlog import EventLog
from eventlog.format.frame import HEADER_SIZE, frames_ahead
from eventlog.repair import REPAIRED, plan, repair
from eventlog.testing import SimulatedDisk
from recovery import CheckpointStore, InDoubtError, Resolution, current_call, tool
from recovery.agent.undo_run import undo
from recovery.control.resolve import resolve
from recovery.control.send import approve, signal
from recovery.errors import DamagedRunError, DivergenceError, WaitingError
from recovery.history.load import load
from recovery.inspect.follow import events
from recovery.inspect.status import status
from recovery.journal.encoding import decode
from recovery.journal.events import (
    CallDecided,
    CallIntended,
    CallResolved,
    CallReturned,
    Event,
    RecordsLost,
    RunStarted,
    StepStarted,
    ValueRecorded,
)
from recovery.reports import RunEvent
from tests.support.lives import (
    RUN,
    Died,
    Disk,
    after_death,
    disk_store,
    executed,
    recorded,
    run_sync,
    send,
)

PATH = f"home/{RUN}"
pytestmark = pytest.mark.usefixtures("fresh")


def disk_of(store: CheckpointStore) -> SimulatedDisk:
    assert isinstance(store.backend, Disk)
    return store.backend.disk


def damage(store: CheckpointStore, wanted: Callable[[Event], Any]) -> list[int]:
    """Damage the records of these events, all of them durable; their LSNs."""
    store.backend.claim(RUN).close()
    disk, hit = disk_of(store), []
    with EventLog.read(PATH, files=disk) as reader:
        for record in reader.records():
            event = decode(record)
            if event is not None and wanted(event):
                hit.append(record.lsn)
    assert hit
    for name, file in disk.directories[PATH].items():
        if name.endswith(".seg"):
            for frame in list(
                frames_ahead(bytes(file.content), HEADER_SIZE, bytes(file.content[56:60]))
            ):
                if frame.lsn in hit:
                    file.content[frame.payload_end - 1] ^= 1
    return hit


def lose(store: CheckpointStore, wanted: Callable[[Event], Any]) -> list[int]:
    """The same, and repair the log."""
    hit = damage(store, wanted)
    assert repair(PATH, files=disk_of(store), who="ops", why="bad sector").lsn
    return hit


def a_run(agent: Callable[[Any], Any], **options: Any) -> CheckpointStore:
    """A run that died in its last step."""

    store = disk_store()
    with pytest.raises(Died):
        run_sync(agent, store, **options)
    return after_death(store)


def of(what: str) -> Callable[[Event], bool]:
    """The intent of a call of ``send`` with this argument."""
    return lambda event: (
        isinstance(event, CallIntended) and bool(event.args) and (event.args[0] == [what])
    )


def sent(what: Any) -> str:
    executed[what] += 1
    return f"sent {what}"


class Agent:
    """Sends in each of three steps, and dies at the end of the last one, once."""

    def __init__(self, extra: Callable[[Any], Any] = lambda run: None) -> None:
        self.dies, self.extra = True, extra

    def __call__(self, run: Any) -> Any:
        for step in run.steps():
            self.extra(run)
            run.messages.append(run.call(send, f"letter {step}"))
            if step == 3:
                if self.dies:
                    self.dies = False
                    raise Died
                return list(run.messages)
        return None


def test_a_call_whose_intent_is_lost_is_in_doubt_and_its_resolution_is_served() -> None:
    agent = Agent()
    store = a_run(agent, checkpoint_every_n=100)
    lose(store, of("letter 2"))
    assert executed["letter 2"] == 1
    with pytest.raises(InDoubtError) as stopped:
        run_sync(agent, store)
    (call,) = stopped.value.calls
    assert (call.tool, call.args, call.step) == ("send", ("letter 2",), "2")
    assert status(store, RUN).state == "in doubt"
    resolve(store, RUN, call.lsn, Resolution.outcome("sent letter 2"), who="me")
    result = run_sync(agent, store)
    assert result["result"] == ["sent letter 1", "sent letter 2", "sent letter 3"]
    assert executed == {"letter 1": 1, "letter 2": 1, "letter 3": 1}
    report = result["report"]
    assert report.lost and "repaired by ops: bad sector" in report.lost[0]
    assert f"LOST: {report.lost[0]}" in str(report)


@pytest.mark.parametrize("of_both", [False, True], ids=["outer", "both"])
def test_what_is_made_inside_a_call_whose_intent_is_lost_is_known_by_its_key(of_both: bool) -> None:
    """The outer call is recorded anew elsewhere; the outside world knows the inner one by key."""
    paid: dict[str, int] = {}

    def known(call: Any) -> Resolution:
        return Resolution.outcome("paid") if call.idempotency_key in paid else Resolution.retry()

    @tool(reconcile=known)
    def pay(amount: int) -> str:
        call = current_call()
        assert call is not None
        paid[call.idempotency_key] = amount
        return "paid"

    dies = [True]

    @tool(after_crash="retry")
    def order(number: int) -> str:
        outcome = pay(number)
        if dies:
            dies.pop()
            raise Died
        return outcome

    def agent(run: Any) -> Any:
        for _ in run.steps():
            return run.call(order, 7)

    store = a_run(agent)
    assert len(paid) == 1
    lose(
        store, lambda event: isinstance(event, CallIntended) and (of_both or event.tool == "order")
    )
    assert run_sync(agent, store)["result"] == "paid"
    assert len(paid) == 1, "paid twice, under another key"


def test_a_call_that_reports_what_is_unknown_parks_where_it_may_be_lost() -> None:
    """An agent that tries until it is told the outcome would try for ever."""

    @tool(after_crash="report")
    def mail(to: str) -> str:
        executed[to] += 1
        return "sent"

    def agent(run: Any) -> Any:
        for _ in run.steps():
            for attempt in range(99):
                if run.call(mail, "bob", call_id=f"try {attempt}") == "sent":
                    break
            if executed["end"]:
                return attempt
            executed["end"] += 1
            raise Died

    store = a_run(agent)
    lose(store, lambda event: isinstance(event, CallIntended))
    with pytest.raises(InDoubtError) as stopped:
        run_sync(agent, store)
    assert stopped.value.calls[0].call_id == "try 0" and executed["bob"] == 1
    resolve(store, RUN, stopped.value.calls[0].lsn, Resolution.outcome("sent"))
    assert run_sync(agent, store)["result"] == 0 and executed["bob"] == 1


def test_an_agent_that_may_do_something_else_meets_what_is_lost_later() -> None:
    """The model is asked again and wants more things first; the mail comes when as much was done
    as is lost, and had been sent."""
    wanted = [["a", "b", "c", "mail"], ["mail"]]

    @tool(after_crash="retry")
    def ask() -> list[str]:
        return wanted.pop()

    def agent(run: Any) -> Any:
        for _ in run.steps():
            for what in run.call(ask):
                run.call(send, what)
            if executed["end"]:
                return "done"
            executed["end"] += 1
            raise Died

    store = a_run(agent)
    assert executed["mail"] == 1
    lose(store, lambda event: isinstance(event, CallReturned | CallIntended))
    for _ in range(4):
        with pytest.raises(InDoubtError) as stopped:
            run_sync(agent, store)
        (call,) = stopped.value.calls
        how = Resolution.outcome("sent") if executed[call.args[0]] else Resolution.retry()
        resolve(store, RUN, call.lsn, how, who="me")
    assert run_sync(agent, store)["result"] == "done"
    assert executed == {"mail": 1, "a": 1, "b": 1, "c": 1, "end": 1}


def test_a_signal_that_was_taken_by_a_wait_whose_record_is_lost_is_not_waited_for_again() -> None:
    def agent(run: Any) -> Any:
        for _ in run.steps():
            heard = [run.wait_for("news"), run.wait_for("news"), run.call(send, "thanks")]
            if executed["end"]:
                return heard
            executed["end"] += 1
            raise Died

    store = disk_store()
    with pytest.raises(WaitingError):
        run_sync(agent, store, park_after_s=0)
    signal(store, RUN, "news", 1)
    signal(store, RUN, "news", 2)
    with pytest.raises(Died):
        run_sync(agent, store)
    store = after_death(store)
    # The signals were taken, so nobody will send them again; where both waits are lost, in order.
    lose(store, lambda event: isinstance(event, CallIntended) and event.tool == "wait_for")
    assert run_sync(agent, store, park_after_s=0)["result"] == [1, 2, "sent thanks"]
    assert executed["thanks"] == 1


def test_a_call_that_was_to_be_made_again_and_may_have_been_is_in_doubt() -> None:
    """Somebody resolved it to be repeated; it was, and how it ended is lost."""
    agent = Agent()

    def dying(what: str) -> str:
        executed[what] += 1
        raise Died

    dies_in_it = tool(name="send")(dying)
    store = a_run(lambda run: [run.call(dies_in_it, "letter") for _ in run.steps()])
    plain = lambda run: next(run.call(send, "letter") for _ in run.steps())  # noqa: E731
    with pytest.raises(InDoubtError) as stopped:
        run_sync(plain, store)
    lsn = stopped.value.calls[0].lsn
    resolve(store, RUN, lsn, Resolution.retry())
    assert run_sync(plain, store)["result"] == "sent letter" and executed["letter"] == 2
    store = after_death(store)
    lose(
        store,
        lambda event: (
            isinstance(event, CallReturned) or event.kind == "run_finished" or event.kind == "retry"
        ),
    )
    with pytest.raises(InDoubtError) as stopped:
        run_sync(plain, store)
    assert stopped.value.calls[0].lsn == lsn and executed["letter"] == 2
    assert agent.dies


def test_a_call_whose_yes_may_be_lost_is_in_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    """It asked, somebody said yes, it took effect: what is left says only that it asked."""
    paid = []

    @tool(needs_approval=True)
    def pay(amount: int) -> str:
        paid.append(amount)
        raise Died

    def agent(run: Any) -> Any:
        for _ in run.steps():
            return run.call(pay, 5)

    from tests.support.lives import disk_store

    store = disk_store()
    with pytest.raises(WaitingError):
        run_sync(agent, store, park_after_s=0)
    intent = next(event for event in recorded(store, CallIntended))
    assert intent.tool == "pay"
    (waiting,) = [call for call in status(store, RUN).calls if call.state == "asks"]
    approve(store, RUN, waiting.lsn, who="me")
    with pytest.raises(Died):
        run_sync(agent, store, park_after_s=0)
    store = after_death(store)
    lose(store, lambda event: isinstance(event, CallDecided))
    with pytest.raises(InDoubtError):
        run_sync(agent, store, park_after_s=0)
    assert paid == [5]
    # And where the intent is lost as well: nobody is asked, for it may have been made.
    store = after_death(store)
    lose(store, lambda event: isinstance(event, CallIntended))
    with pytest.raises(InDoubtError):
        run_sync(agent, store, park_after_s=0)
    assert paid == [5]


def test_a_repair_that_was_interrupted_has_to_be_finished_first() -> None:
    agent = Agent()
    store = a_run(agent)
    lose(store, of("letter 3"))
    # The record that says so is gone again, with the segment that it is in.
    disk = disk_of(store)
    name = max(name for name in disk.directories[PATH] if name.endswith(".seg"))
    del disk.directories[PATH][name], disk.directories[PATH]["MARK"]
    with pytest.raises(DamagedRunError, match="logdump repair` finishes it"):
        run_sync(agent, store)
    assert status(store, RUN).state == "damaged"
    with EventLog.read(PATH, files=disk) as reader:
        assert plan(reader).unfinished
    repair(PATH, files=disk)
    with pytest.raises(InDoubtError):
        run_sync(agent, store)
    assert executed["letter 3"] == 1


def test_no_checkpoint_stands_between_a_loss_and_the_calls_that_may_be_among_it() -> None:
    agent = Agent()
    store = a_run(agent, checkpoint_every_n=1)
    # All of steps 2 and 3, and the checkpoint behind step 1 with them.
    seen = []

    def behind(event: Event) -> bool:
        seen.append(event)
        return any(isinstance(one, StepStarted) and one.step == 2 for one in seen)

    lose(store, behind)
    for step in (2, 3):
        with pytest.raises(InDoubtError) as stopped:
            run_sync(agent, store, checkpoint_every_n=1)
        (call,) = stopped.value.calls
        assert call.args == (f"letter {step}",)
        resolve(store, RUN, call.lsn, Resolution.outcome(f"sent letter {step}"))
        store = after_death(store)
        if step == 2:  # and dies where the next step has begun, and nothing of it is done again
            with pytest.raises(Died):
                run_sync(Agent(dies_in_step_3), store, checkpoint_every_n=1)
            store = after_death(store)
    assert run_sync(agent, store, checkpoint_every_n=1)["result"] == [
        "sent letter 1",
        "sent letter 2",
        "sent letter 3",
    ]
    assert set(executed.values()) == {1}


def dies_in_step_3(run: Any) -> None:
    if run.step == 3:
        raise Died


def test_the_log_says_how_to_go_on_where_it_is_not_repaired() -> None:
    agent = Agent()
    store = a_run(agent)
    damage(store, of("letter 2"))
    with pytest.raises(DamagedRunError, match="logdump repair"):
        run_sync(agent, store)


def test_a_run_whose_first_record_is_lost_is_not_resumed() -> None:
    agent = Agent()
    store = a_run(agent, checkpoint_every_n=1)
    lose(store, lambda event: isinstance(event, RunStarted))
    with pytest.raises(DamagedRunError, match="the record with which the run began"):
        run_sync(agent, store)
    assert set(executed.values()) == {1}


def test_a_lost_value_that_the_calls_behind_it_need_is_a_divergence() -> None:
    """The code is given another number, and so makes another call than the one that is recorded."""

    def agent(run: Any) -> Any:
        for step in run.steps():
            number = run.uuid()
            run.call(send, f"{step}: {number}")
            if step == 2:
                raise Died

    store = a_run(agent, checkpoint_every_n=100)
    lost = recorded(store, ValueRecorded)[0]
    lose(store, lambda event: event == lost)
    with pytest.raises(DivergenceError):
        run_sync(agent, store)
    assert len(executed) == 2


@pytest.mark.parametrize("after_crash", ["park", "retry"])
def test_a_lost_value_that_chooses_the_tool_is_a_divergence(after_crash: Any) -> None:
    """The same call of the model, and beside it one that is more like the recorded one."""
    tools = [tool(name=name, after_crash=after_crash)(sent) for name in ("a", "b")]

    def agent(run: Any) -> Any:
        for _ in run.steps():
            run.uuid()
            lives.append(1)
            run.call(tools[len(lives) > 1], "letter", call_id="c1")
            run.call(tools[1], "other")
            raise Died

    lives: list[int] = []
    store = a_run(agent)
    lose(store, lambda event: isinstance(event, ValueRecorded))
    with pytest.raises(DivergenceError) as caught:
        run_sync(agent, store)
    assert caught.value.differences[0] == "tool: 'a' -> 'b'"
    assert executed == {"letter": 1, "other": 1}


@pytest.mark.parametrize(("lost", "asked"), [("1b", ["1b"]), ("2a", ["2a", "2b"]), ("1a", ["1a"])])
def test_each_unrecorded_side_effect_is_asked_about_until_a_step_begins_behind_the_loss(
    lost: str, asked: list[str]
) -> None:
    lives = []

    def agent(run: Any) -> Any:
        lives.append(run)
        for step in run.steps():
            run.call(send, f"{step}a")
            if step == 2 and len(lives) == 1:
                raise Died
            run.call(send, f"{step}b")
            if step == 3:
                return "done"

    store, found = a_run(agent, checkpoint_every_n=100), []
    lose(store, of(lost))
    for _ in asked:
        with pytest.raises(InDoubtError) as stopped:
            run_sync(agent, store)
        (call,) = stopped.value.calls
        (what,) = call.args
        found.append(what)
        how = Resolution.outcome("sent") if executed[what] else Resolution.retry()
        resolve(store, RUN, call.lsn, how, who="me", force=True)
    assert run_sync(agent, store)["result"] == "done" and found == asked
    assert executed == {f"{step}{letter}": 1 for step in (1, 2, 3) for letter in "ab"}


def test_a_lost_signal_is_taken_again_from_the_inbox() -> None:
    def agent(run: Any) -> Any:
        for step in run.steps():
            answer = run.wait_for("answer")
            run.call(send, f"{step}: {answer}")
            if step == 1:
                raise Died
            return answer

    store = disk_store()
    with pytest.raises(WaitingError):
        run_sync(agent, store, park_after_s=0)
    signal(store, RUN, "answer", "yes")
    with pytest.raises(Died):
        run_sync(agent, store)
    store = after_death(store)
    lose(store, lambda event: event.kind == "signal")
    with pytest.raises(Died):
        run_sync(agent, store)
    assert executed == {"1: yes": 1}


def test_a_child_whose_call_is_lost_is_the_same_child() -> None:
    def child(run: Any) -> Any:
        for _ in run.steps():
            return run.call(send, "from the child")

    class Parent:
        dies = True

        def __call__(self, run: Any) -> Any:
            for _ in run.steps():
                got = run.child(child, "its task")
                if self.dies:
                    self.dies = False
                    raise Died
                return got

    parent = Parent()
    store = a_run(parent)
    lose(store, lambda event: isinstance(event, CallIntended))
    assert run_sync(parent, store)["result"] == "sent from the child"
    assert executed == {"from the child": 1}


def test_an_undo_does_not_pass_over_what_is_lost() -> None:
    agent = Agent()
    store = a_run(agent, checkpoint_every_n=1)
    lose(store, of("letter 1"))
    with pytest.raises(DamagedRunError, match="lost before a repair"):
        undo(store, RUN, tools=[send], who="me")


def test_a_call_that_was_never_made_is_in_doubt_once_and_then_made() -> None:
    """The operator says that it did not happen."""
    agent = Agent()
    store = a_run(agent, checkpoint_every_n=100)
    lose(store, of("letter 3"))
    executed["letter 3"] = 0
    with pytest.raises(InDoubtError) as stopped:
        run_sync(agent, store)
    resolve(store, RUN, stopped.value.calls[0].lsn, Resolution.retry(), force=True)
    run_sync(agent, store)
    assert executed["letter 3"] == 1
    (how,) = recorded(store, CallResolved)
    assert how.how == "retry"


def test_what_was_lost_is_told_with_the_events_of_the_run() -> None:
    agent = Agent()
    store = a_run(agent, checkpoint_every_n=100)
    hit = lose(store, of("letter 2"))
    told: list[RunEvent] = list(events(store, RUN, until="now"))
    assert f"lost: records up to LSN {hit[0]}" in "\n".join(map(str, told))
    assert "repaired by ops: bad sector; lost: LSN" in "\n".join(map(str, told))
    assert recorded(store, RecordsLost) == [RecordsLost(hit[0])]
    with EventLog.read(PATH, files=disk_of(store)) as reader:
        assert [record.kind for record in reader.records()][-1] == REPAIRED
        losses = load(reader, RUN).replay.losses
    assert losses is not None and losses.hold(hit[0])
