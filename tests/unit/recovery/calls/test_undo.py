"""Undo: compensations, newest first, once only, from inside a run and from outside."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

import pytest

from eventlog import EventLog, RefusedValueError
from recovery import (
    Call,
    Checkpoint,
    CheckpointStore,
    InDoubtError,
    OutcomeUnknown,
    RecoverableAgent,
    RecoveryError,
    Resolution,
    Retry,
    SyncRun,
    current_call,
    current_run,
    tool,
)
from recovery.agent.run import execution_of
from recovery.agent.undo_run import undo
from recovery.control.resolve import resolve
from recovery.declare import tool as tool_module
from recovery.errors import LeftBehindError, RunFailedError, RunUndoneError, StoppedError, UndoError
from recovery.journal.encoding import decode
from recovery.journal.events import CallIntended, RunUndone
from recovery.stores.file import FileStore
from tests.support.lives import Died

did: list[Any] = []
broken: dict[str, Any] = {}  # by what a compensation undoes: an exception that it raises, once


def note(call: Call, outcome: Any) -> str:
    now = current_call()
    assert now is not None
    if call.args and str(call.args[0]) in broken:
        raise broken.pop(str(call.args[0]))
    did.append((f"un{call.tool}", *call.args, outcome))
    return f"undone {outcome}"


async def note_async(call: Call, outcome: Any) -> str:
    return note(call, outcome)


@tool(undo=note)
def book(what: Any, nights: int = 1) -> str:
    if f"book {what}" in broken:
        raise broken.pop(f"book {what}")
    did.append(("book", what))
    return f"booked {what}"


@tool(undo=note_async)
async def fly(what: str) -> str:
    did.append(("fly", what))
    return f"flown {what}"


@tool
def look(what: str) -> str:
    did.append(("look", what))
    return what


TOOLS = (book, fly, look)


pytestmark = pytest.mark.usefixtures("in_order")


@pytest.fixture(autouse=True)
def _fresh() -> None:
    did.clear()
    broken.clear()


def start(agent: Any, store: CheckpointStore, every: int = 3) -> Any:
    of = RecoverableAgent(agent, store, every, max_recoveries=1)
    return of.run_with_recovery_sync("task", "run")["result"]


def undone() -> list[Any]:
    return [what[1] for what in did if what[0].startswith("un")]


@pytest.fixture(params=["async", "plain"])
def kind(request: pytest.FixtureRequest) -> Callable[[Callable[[Any], Any]], Any]:
    """Makes an agent of a generator function that yields what is to be awaited."""

    def agent(steps: Callable[[Any], Any]) -> Any:
        async def asynchronous(run: Any) -> Any:
            going, answer, error = steps(run), None, None
            while True:
                try:
                    what = going.throw(error) if error else going.send(answer)
                except StopIteration as done:
                    return done.value
                answer = error = None
                try:
                    answer = await what if inspect.isawaitable(what) else what
                except Exception as exc:
                    error = exc

        def plain(run: Any) -> Any:
            going, answer, error = steps(Late(run)), None, None
            while True:
                try:
                    what = going.throw(error) if error else going.send(answer)
                except StopIteration as done:
                    return done.value
                answer = error = None
                try:
                    answer = what()
                except Exception as exc:
                    error = exc

        return asynchronous if request.param == "async" else plain

    return agent


class Late:
    """A plain run of which calls are made when the agent yields them."""

    def __init__(self, run: SyncRun) -> None:
        self.run = run

    def __getattr__(self, name: str) -> Any:
        if name not in ("call", "undo"):
            return getattr(self.run, name)
        return lambda *args, **kwargs: lambda: getattr(self.run, name)(*args, **kwargs)


# -- what is undone


def test_a_compensation_knows_the_call_and_has_a_key_of_its_own(kind):
    seen: list[Any] = []

    def remember(call: Call, outcome: Any) -> None:
        seen.append((call, current_call()))

    @tool(undo=remember)
    def pay(to: str, *, cents: int) -> dict[str, Any]:
        call = current_call()
        assert call is not None
        return {"id": 7, "key": call.idempotency_key}

    def steps(run: Any) -> Any:
        paid = yield run.call(pay, "ann", cents=5, call_id="c1")
        undoing = yield run.undo()
        return [paid, undoing]

    paid, (undoing,) = start(kind(steps), CheckpointStore())
    ((call, now),) = seen
    assert (call.tool, call.args, call.kwargs, call.call_id) == (
        "pay",
        ("ann",),
        {"cents": 5},
        "c1",
    )
    assert call.idempotency_key == paid["key"] != now.idempotency_key
    assert (now.tool, now.call_id) == ("undo pay", str(call.lsn))
    assert (now.args, now.kwargs) == (("ann",), {"cents": 5})
    assert undoing["call"] == call.lsn


def test_what_failed_or_was_resolved_as_failed_is_not_undone(kind):
    store = CheckpointStore()
    broken["book a"] = ValueError("full")
    broken["book b"] = Died()

    def steps(run: Any) -> Any:
        for what in "abc":
            try:
                yield run.call(book, what)
            except Exception as exc:
                did.append(str(exc))
        return (yield run.undo())

    with pytest.raises(Died):
        start(kind(steps), store)
    with pytest.raises(InDoubtError) as caught:
        start(kind(steps), store)
    resolve(store, "run", caught.value.calls[0].lsn, Resolution.fail("no room"))
    start(kind(steps), store)
    assert undone() == ["c"]


def test_an_outcome_given_by_a_person_is_undone_and_an_unknown_one_is_told(kind):
    store = CheckpointStore()
    broken["book a"] = Died()

    @tool(undo=note, after_crash="report")
    def report(what: str) -> str:
        did.append(("report", what))
        if did.count(("report", what)) == 1 and len(did) == 2:
            raise Died
        return what

    def steps(run: Any) -> Any:
        yield run.call(book, "a")
        yield run.call(report, "b")
        yield run.undo()

    did.append("")
    with pytest.raises(Died):
        start(kind(steps), store)
    with pytest.raises(InDoubtError) as caught:
        start(kind(steps), store)
    resolve(store, "run", caught.value.calls[0].lsn, Resolution.outcome("was there"))
    with pytest.raises(Died):
        start(kind(steps), store)
    start(kind(steps), store)
    assert did[2][:2] == ("unreport", "b")
    assert isinstance(did[2][2], OutcomeUnknown)
    assert did[3] == ("unbook", "a", "was there")


def test_an_outer_compensation_covers_what_was_called_inside(kind):
    @tool(undo=note)
    def trip(what: str) -> str:
        book(f"hotel {what}")
        if what == "bad":
            raise ValueError("no flights")
        return what

    @tool
    def bundle(what: str) -> str:
        return book(f"car {what}")

    def steps(run: Any) -> Any:
        yield run.call(trip, "good")
        with suppress(ValueError):
            yield run.call(trip, "bad")
        yield run.call(bundle, "x")
        yield run.undo()

    start(kind(steps), CheckpointStore())
    # Of the failed trip and of the bundle, which has no compensation, what they did is undone.
    assert undone() == ["car x", "hotel bad", "good"]


def test_what_a_compensation_calls_is_not_undone_itself(kind):
    @tool(undo=lambda call, outcome: book(f"sorry for {call.args[0]}"))
    def deal(what: str) -> str:
        return what

    def steps(run: Any) -> Any:
        yield run.call(deal, "a")
        yield run.undo()
        return (yield run.undo())

    assert start(kind(steps), CheckpointStore()) == []
    assert did == [("book", "sorry for a")]


def test_since_a_step(kind):
    def steps(run: Any) -> Any:
        yield run.call(book, "before")
        for step in range(1, 4):
            execution_of(run).next_step()
            yield run.call(book, step)
        first = yield run.undo(since=2)
        second = yield run.undo()
        return [len(first), len(second)]

    assert start(kind(steps), CheckpointStore()) == [2, 2]
    assert undone() == [3, 2, 1, "before"]


@pytest.mark.parametrize("since", [-1, 2])
def test_since_is_a_step_of_the_run(since):
    def agent(run: SyncRun) -> None:
        next(run.steps())
        run.undo(since=since)

    with pytest.raises(ValueError, match=r"a step of the run, 0 to 1"):
        start(agent, CheckpointStore())


# -- once only


@pytest.mark.parametrize("every", [1, 2, 100])
def test_after_a_crash_nothing_is_undone_twice_whatever_the_checkpoint(kind, every):
    store = CheckpointStore()
    broken["1"] = Died()

    def steps(run: Any) -> Any:
        while (step := execution_of(run).next_step()) < 4:
            yield run.call(book, step)
        done = yield run.undo()
        if run.recovery_count < 3:
            raise OSError
        return done

    with pytest.raises(Died):
        start(kind(steps), store, every)
    assert undone() == [3, 2]
    with pytest.raises(InDoubtError) as caught:
        start(kind(steps), store, every)
    (call,) = caught.value.calls
    assert (call.tool, call.args) == ("undo book", (1,))
    resolve(store, "run", call.lsn, Resolution.retry())
    assert [one["result"] for one in start(kind(steps), store, every)] == [
        "undone booked 3",
        "undone booked 2",
        "undone booked 1",
    ]
    assert undone() == [3, 2, 1]


def test_a_failed_compensation_stops_the_undo_which_then_goes_on_there(kind):
    broken["b"] = ConnectionError("no line")
    errors: list[UndoError] = []
    keys: list[Any] = []

    def steps(run: Any) -> Any:
        for what in "abc":
            yield run.call(book, what)
        try:
            yield run.undo()
        except UndoError as exc:
            errors.append(exc)
        keys.append(list(undone()))
        return (yield run.undo())

    store = CheckpointStore()
    found = start(kind(steps), store)
    assert keys == [["c"]]
    assert undone() == ["c", "b", "a"]
    a, b = (one["call"] for one in reversed(found))
    (error,) = errors
    assert (len(error.done), error.failed, error.left) == (1, b, (a,))
    assert "book: ConnectionError: no line" in str(error)
    assert "continues with call" in str(error)


def test_the_error_is_the_same_on_replay_and_the_key_on_the_next_try(kind):
    errors: list[str] = []
    keys: list[str] = []

    def cancel(call: Call, outcome: Any) -> None:
        now = current_call()
        assert now is not None
        keys.append(now.idempotency_key)
        if len(keys) == 1:
            raise ConnectionError("no line")

    @tool(undo=cancel)
    def rent(what: str) -> str:
        return what

    def steps(run: Any) -> Any:
        yield run.call(rent, "a")
        try:
            yield run.undo()
        except UndoError as exc:
            errors.append(str(exc))
        yield run.undo()
        if run.recovery_count == 0:
            raise OSError

    start(kind(steps), CheckpointStore())
    assert len(errors) == 2 and errors[0] == errors[1]
    assert keys == [keys[0]] * 2


def test_an_undo_that_the_agent_lets_fail_goes_on_when_that_is_decided(kind):
    store = CheckpointStore()

    def steps(run: Any) -> Any:
        for what in "abc":
            yield run.call(book, what)
        return len((yield run.undo()))

    for time in (1, 2):
        broken["b"] = ConnectionError("no line")
        with pytest.raises(RunFailedError) as caught:
            start(kind(steps), store)
        assert undone() == ["c"], time
        resolve(store, "run", caught.value.call, Resolution.retry())
    assert start(kind(steps), store) == 3
    assert undone() == ["c", "b", "a"]


def test_a_compensation_that_is_to_be_tried_again_is_made_once_when_its_undo_is_repeated(kind):
    """A person repeats an undo that was stopped between two attempts of a compensation."""
    store, tries = CheckpointStore(), []

    @tool(retry=Retry(delay_s=0.01))
    def cancel(call: Call, outcome: Any) -> str:
        tries.append(outcome)
        if len(tries) == 1:
            agent.stop()
            raise ConnectionError("no line")
        return note(call, outcome)

    @tool(undo=cancel)
    def rent(what: str) -> str:
        return what

    def steps(run: Any) -> Any:
        yield run.call(rent, "a")
        yield run.undo()

    agent = RecoverableAgent(kind(steps), store, max_recoveries=1)
    with pytest.raises(StoppedError):
        agent.run_with_recovery_sync("task", "run")
    (undo_call,) = [one for one in store.run("run").status().calls if one.tool == "run.undo"]
    resolve(store, "run", undo_call.lsn, Resolution.retry())
    start(kind(steps), store)
    assert (undone(), tries) == (["a"], ["a", "a"])


def test_a_compensation_in_doubt_is_made_once_when_it_and_its_undo_are_to_be_repeated(kind):
    """`status` names both as in doubt."""
    store = CheckpointStore()
    broken["a"] = Died()

    def steps(run: Any) -> Any:
        yield run.call(book, "a")
        yield run.undo()

    for error in (Died, InDoubtError):
        with pytest.raises(error):
            start(kind(steps), store)
    inner, outer = sorted(store.run("run").status().in_doubt, key=lambda call: -call.lsn)
    assert (inner.tool, outer.tool) == ("undo book", "run.undo")
    for call in (inner, outer):
        resolve(store, "run", call.lsn, Resolution.retry())
    start(kind(steps), store)
    assert undone() == ["a"]


# -- what has to be settled, or known, first


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("every", [1, 100])
@pytest.mark.parametrize(
    ("how", "expected"),
    [
        (Resolution.outcome("it was made"), ["x", "a"]),
        (Resolution.retry(), ["a"]),
        (Resolution.fail("no trace"), ["a"]),
    ],
)
def test_a_call_in_doubt_is_resolved_before_anything_is_undone(every, how, expected):
    """One that the agent cancelled, to go on without: nobody makes it again."""
    store = CheckpointStore()

    @tool(undo=note, on_timeout="fail")
    async def hang(what: str) -> None:
        await asyncio.Event().wait()

    async def agent(run: Any) -> Any:
        async for step in run.steps():
            if step == 1:
                await run.call(book, "a")
                task = asyncio.ensure_future(hang("x"))
                await asyncio.sleep(0.01)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                assert task.cancelled()  # on replay too, whatever was resolved
            if step == 3:
                return len(await run.undo(tools=[hang]))

    for _ in range(2):
        with pytest.raises(InDoubtError) as caught:
            start(agent, store, every)
        (call,) = caught.value.calls
        assert call.tool == "hang"
    assert undone() == []
    resolve(store, "run", call.lsn, how)
    assert start(agent, store, every) == len(expected)
    assert undone() == expected
    with pytest.raises(RecoveryError, match=r"(has an outcome|is no open call of this run)"):
        resolve(store, "run", call.lsn, Resolution.retry())


@pytest.mark.usefixtures("clock")
def test_calls_under_way_are_to_be_awaited_first():
    store = CheckpointStore()
    gate: list[asyncio.Event] = []

    @tool(undo=note)
    async def hold(what: str) -> None:
        await gate[0].wait()

    async def agent(run: Any) -> Any:
        gate[:] = [asyncio.Event()]
        task = asyncio.ensure_future(hold("x"))
        await asyncio.sleep(0.01)
        if len(did) == 0:
            did.append("tried")
            asyncio.get_running_loop().call_later(0.01, gate[0].set)
            await run.undo()
        await task
        return len(await run.undo())

    with pytest.raises(RecoveryError, match="began while other calls of the run were in flight"):
        start(agent, store)
    assert undone() == []


def test_two_undos_at_once_are_refused():
    async def agent(run: Any) -> None:
        await run.call(book, "a")
        await asyncio.gather(run.undo(), run.undo())

    with pytest.raises(RecoveryError, match="in flight"):
        start(agent, CheckpointStore())


def test_an_undo_inside_a_tool_is_refused():
    @tool
    def inner() -> None:
        current.undo()

    current: Any = None

    def agent(run: SyncRun) -> None:
        nonlocal current
        current = run
        run.call(inner)

    with pytest.raises(RecoveryError, match=r"run.undo\(\) inside a call of inner"):
        start(agent, CheckpointStore())


def test_a_tool_that_is_not_known_is_missed_before_anything_is_undone(kind):
    store = CheckpointStore()
    lost: list[Any] = []

    def steps(run: Any) -> Any:
        @tool(undo=note)
        def local(what: str) -> str:
            return what

        while (step := execution_of(run).next_step()) < 3:
            yield run.call(local, f"local {step}")
            yield run.call(book, step)
        if not lost:
            lost.append(True)
            raise Died
        return len((yield run.undo(tools=[local] if len(lost) > 1 else [])))

    with pytest.raises(Died):
        start(kind(steps), store, 1)
    with pytest.raises(
        RecoveryError, match=r"known by the name of local \(LSN \d+, undone by note"
    ):
        start(kind(steps), store, 1)
    assert undone() == []
    lost.append(True)
    assert start(kind(steps), store, 1) == 4


def test_two_tools_of_one_name_are_told_apart_by_the_run():
    namespace: dict[str, Any] = {"tool": tool, "note": note, "__name__": "elsewhere"}
    exec("@tool(undo=lambda call, outcome: 1 / 0)\ndef book(what): ...", namespace)  # noqa: S102
    try:

        def agent(run: SyncRun) -> int:
            run.call(book, "a")
            return len(run.undo())

        assert start(agent, CheckpointStore()) == 1
    finally:
        tool_module.undoable_tools["book"] = book.tool_spec  # type: ignore[attr-defined]


def test_a_name_that_two_modules_use_is_not_known():
    """Of a run that has been resumed: it has not called the tool in this process."""
    spec = book.tool_spec  # type: ignore[attr-defined]
    try:
        tool_module.register(replace(spec, function=undo))  # of another module, by the same name
        assert tool_module.undoable_tools["book"] is None
        tool_module.register(spec)
        assert tool_module.undoable_tools["book"] is None
    finally:
        tool_module.undoable_tools["book"] = spec
    tool_module.register(spec)  # its module is loaded again
    assert tool_module.undoable_tools["book"] is spec


def test_names_of_undo_are_not_for_tools():
    for name in ("run.undo", "undo book"):
        with pytest.raises(ValueError, match=r"those of run\.undo"):
            tool(name=name)(lambda: None)


def test_what_cannot_be_carried_is_refused_with_its_path():
    def agent(run: SyncRun) -> None:
        run.call(book, object())

    with pytest.raises(RefusedValueError, match=r"book\(args\[0\]\)"):
        start(agent, CheckpointStore())


class SmallSegments(FileStore):
    """Logs of which the beginning can be removed soon."""

    def claim(self, run_id: str, takeover: bool = False) -> EventLog:
        path = self._path(run_id)
        return EventLog.open(path, segment_size=300_000, takeover=takeover, files=self.files)


@pytest.mark.parametrize("since", [0, 5])
def test_a_log_without_its_beginning_is_undone_from_a_step_that_it_still_has(tmp_path, since):
    def agent(run: Any) -> Any:
        for step in run.steps():
            if step == 7:
                break
            run.call(book, step)
            run.call(look, "x" * 200_000)
        records: Any = execution_of(run).records
        last = next(iter(records.snapshots())).lsn
        records.truncate_before(last - 8)
        assert next(iter(records.records(1))).lsn > 1
        return len(run.undo(since=since))

    store = CheckpointStore(SmallSegments(tmp_path))
    if since:
        assert start(agent, store, 1) == 2
        assert undone() == [6, 5]
        return
    with pytest.raises(RecoveryError, match=r"records before LSN \d+ were removed from its log"):
        start(agent, store, 1)
    assert undone() == []


# -- from outside


@tool
def fail() -> None:
    raise ZeroDivisionError


def finished(run: SyncRun) -> int:
    for what in "abc":
        run.call(book, what)
    run.call(fly, "d")
    return 4


@pytest.mark.parametrize("ended", ["finished", "failed", "crashed", "parked"])
def test_a_run_is_undone_from_outside_however_it_ended(ended):
    store = CheckpointStore()

    def agent(run: SyncRun) -> Any:
        found = finished(run)
        if ended == "failed":
            run.call(fail)
        if ended == "crashed":
            raise Died
        if ended == "parked":
            broken["book z"] = Died()
            run.call(tool(name="other")(cast(Any, book).tool_spec.function), "z")
        return found

    if ended == "finished":
        assert start(agent, store) == 4
    else:
        with pytest.raises((RunFailedError, Died)):
            start(agent, store)
    if ended == "parked":
        with pytest.raises(InDoubtError):
            start(agent, store)
    found = undo(store, "run", tools=TOOLS, who="ann", why="cancelled trip")
    assert undone() == ["d", "c", "b", "a"]
    assert undo(store, "run", tools=TOOLS) == found
    assert undone() == ["d", "c", "b", "a"]
    with pytest.raises(RunUndoneError, match="undone, by ann, cancelled trip"):
        start(agent, store)


def test_what_the_agent_has_undone_is_not_undone_from_outside():
    store = CheckpointStore()

    def agent(run: SyncRun) -> None:
        for what in "abc":
            run.call(book, what)
        broken["b"] = ConnectionError("no line")
        run.undo()

    with pytest.raises(RunFailedError):
        start(agent, store)
    assert undone() == ["c"]
    undo(store, "run", tools=TOOLS)
    assert undone() == ["c", "b", "a"]


def test_outside_it_goes_on_after_a_crash_a_failure_and_a_doubt():
    store = CheckpointStore()
    start(finished, store)
    broken["c"] = ConnectionError("no line")
    with pytest.raises(UndoError) as failed:
        undo(store, "run", tools=TOOLS)
    assert (len(failed.value.done), len(failed.value.left)) == (1, 2)
    broken["b"] = Died()
    with pytest.raises(Died):
        undo(store, "run", tools=TOOLS)
    assert undone() == ["d", "c"]
    with pytest.raises(InDoubtError) as caught:
        undo(store, "run", tools=TOOLS)
    with pytest.raises(RunUndoneError):
        start(finished, store)
    resolve(store, "run", caught.value.calls[0].lsn, Resolution.outcome("it was"))
    found = undo(store, "run", tools=TOOLS)
    assert undone() == ["d", "c", "a"]
    assert [one["result"] for one in found] == ["undone booked c", "it was", "undone booked a"]


def test_outside_a_run_of_checkpoints_alone_has_nothing_to_undo():
    with CheckpointStore() as store:
        store.save(Checkpoint("", "run", 1, {"n": 1}, [], [], 1.0))
        store.close_run("run")
        with pytest.raises(RecoveryError, match="checkpoints alone: it has made no calls"):
            undo(store, "run", tools=TOOLS)
        assert store.save(Checkpoint("", "run", 2, {"n": 2}, [], [], 1.0)), "it is not aborted"


def test_outside_nothing_is_written_when_a_tool_is_missing():
    store = CheckpointStore()
    start(finished, store)
    with store.claim("run") as log:
        before = log.last_lsn
    with pytest.raises(RecoveryError, match=r"known by the name of fly"):
        undo(store, "run", tools=[book])
    with pytest.raises(ValueError, match="two of the tools"):
        undo(store, "run", tools=[book, book])
    with pytest.raises(RecoveryError, match="there is no run"):
        undo(store, "other", tools=[])
    with store.claim("run") as log:
        assert log.last_lsn == before
    assert start(finished, store) == 4


def test_outside_a_call_in_doubt_is_resolved_first():
    store = CheckpointStore()
    broken["book b"] = Died()
    with pytest.raises(Died):
        start(finished, store)
    with pytest.raises(InDoubtError) as caught:
        undo(store, "run", tools=TOOLS)
    (call,) = caught.value.calls
    assert (call.tool, call.args) == ("book", ("b",))
    with store.claim("run") as log:
        assert not any(isinstance(decode(record), RunUndone) for record in log.records(1))
    resolve(store, "run", call.lsn, Resolution.retry())  # it did not happen
    undo(store, "run", tools=TOOLS)
    assert undone() == ["a"]


def test_outside_what_a_compensation_leaves_at_work_is_not_recorded_after_the_undo():
    store, found = CheckpointStore(), list[Any]()

    def unsend(call: Call, outcome: Any) -> None:
        found.append(current_run())

    @tool(undo=unsend)
    def send(what: str) -> None: ...

    start(lambda run: run.call(send, "a"), store)
    undo(store, "run", tools=[send])
    (run,) = found
    with pytest.raises(LeftBehindError):
        run.call(send, "b")


def test_a_call_records_which_compensation_it_has():
    store = CheckpointStore()
    start(finished, store)
    with store.claim("run") as log:
        made = [
            event for record in log.records(1) if isinstance(event := decode(record), CallIntended)
        ]
    assert [(one.tool, one.undo) for one in made] == [("book", "note")] * 3 + [
        ("fly", "note_async")
    ]


@pytest.mark.parametrize("where", ["here", "given", "in a module", "without checkpoints"])
def test_a_tool_that_a_later_process_may_not_find_is_named(
    where: str, caplog: pytest.LogCaptureFixture
) -> None:
    @tool(undo=note, name=f"book {where}")
    def book_here(what: str) -> str:
        return what

    booked = book if where == "in a module" else book_here

    def agent(run: SyncRun) -> None:
        for step in run.steps():
            run.call(booked, "room")
            if step == 2:
                run.undo(tools=[book_here] if where == "given" else [])
                return

    of = RecoverableAgent(
        agent, CheckpointStore(), None if where == "without checkpoints" else 1, max_recoveries=0
    )
    of.run_with_recovery_sync("task", "run")
    assert undone() == ["room", "room"]
    said = [text for text in caplog.messages if "only because this process has called it" in text]
    assert [text.partition(" (")[0] for text in said] == [
        "run run: run.undo() knows tool book here"
    ] * (where == "here")
