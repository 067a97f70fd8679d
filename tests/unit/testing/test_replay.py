"""A recorded run is replayed through its agent: nothing is executed, and differences are found."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from eventlog import EventLog, LogReader
from eventlog.encryption import Encryption
from eventlog.transfer import export
from recovery import CheckpointManager, CheckpointStore, RecoverableAgent, RecoveryError, tool
from recovery.errors import DamagedRunError, DivergenceError, InDoubtError
from recovery.graph import Graph, GraphExecutor
from recovery.stores.memory import MemoryStore
from recovery.testing import Replayed, replay

DONE: list[Any] = []  # what was executed


@tool(after_crash="retry")
async def ask(question: str) -> str:
    DONE.append(question)
    await asyncio.sleep(random.random() * 0.01)
    return question.upper()


@tool
def pay(cents: int, *, to: str = "ann") -> str:
    DONE.append((cents, to))
    return f"paid {cents} to {to}"


@tool
async def order(cents: int) -> str:
    """A tool that makes calls."""
    return await ask(f"inside {cents}") + pay(cents)


class Mail:
    """A tool that is a method."""

    def __init__(self, name: str) -> None:
        self.name = name

    @tool(identity=lambda self, to: [self.name, to])
    async def send(self, to: str) -> str:
        DONE.append(to)
        return f"{self.name} to {to}"


async def simple(run: Any) -> Any:
    """Locals over checkpoints, state, messages, own sleeps."""
    total = 0
    async for step in run.steps():
        answer = await run.call(ask, f"question {step}")
        run.messages.append({"role": "assistant", "content": answer})
        total += len(answer)
        await asyncio.sleep(0.01)
        run.state["total"] = total
        if step == 8:
            return [total, run.random(), run.now(), await run.call(pay, total)]


async def gathered(run: Any) -> Any:
    """Coroutines, whose order differs from run to run; methods, partials, lambdas, threads."""
    order_of = []

    async def one(number: int) -> str:
        answer = await run.call(ask, f"part {number}")
        order_of.append(number)
        return str(answer)

    parts = await asyncio.gather(*map(one, range(20)))
    mails = [Mail("a"), Mail("b")]
    sent = await asyncio.gather(*(run.call(mail.send, "ann") for mail in mails))
    bound = await run.call(partial(pay, 10, to="bob"))
    quick = await run.call(tool(name="quick")(lambda n: n + len(DONE) * 0), 1)
    threads = await asyncio.gather(*(asyncio.to_thread(pay, n) for n in range(5)))
    nested = await run.call(order, 7)
    return [parts, order_of, sent, bound, quick, threads, nested]


def plain(run: Any) -> Any:
    """A plain agent."""
    for step in run.steps():
        time.sleep(0.001)
        run.messages.append(run.call(pay, step))
        if step == 5:
            return len(run.messages)


async def streaming(run: Any) -> Any:
    """A stream, sleeps and a failing tool."""

    @tool(after_crash="retry")
    async def chunks() -> Any:
        for word in ("a", "b", "c"):
            DONE.append(word)
            yield word

    @tool
    def fails() -> None:
        DONE.append("fails")
        raise LookupError("nothing there")

    got = ["".join([chunk async for chunk in run.stream(chunks)])]
    await run.sleep(0.05)
    try:
        await run.call(fails)
    except LookupError as exc:
        got.append(str(exc))
    try:
        async with asyncio.timeout(0.3):
            await run.call(tool(after_crash="retry", name="slow")(asyncio.sleep), 30)
    except TimeoutError:
        got.append("slow")
    return got


async def with_child(run: Any) -> Any:
    """A child run."""
    return [await run.child(simple, 1, name="kid"), await run.call(pay, 1)]


def recorded(agent: Any, store: Any = None, **options: Any) -> tuple[CheckpointStore, Any]:
    """The store of a run "r" that was executed, and its result."""
    store = store or CheckpointStore(MemoryStore())
    made = RecoverableAgent(agent, store, **{"check_locals": False, **options})
    result = made.run_with_recovery_sync("a task", "r")["result"]
    DONE.clear()
    return store, result


@pytest.mark.parametrize("agent", [simple, gathered, plain, streaming, with_child])
def test_a_finished_run_gives_its_result_and_executes_nothing(agent: Any) -> None:
    store, result = recorded(agent, checkpoint_every_n=2)
    before = [store.backend.size("r"), *_lines(store)]
    began = time.monotonic()
    for made in (agent, RecoverableAgent(agent, check_locals=False)):
        ended = replay(store, made, "r")
        assert (ended.result, ended.error, ended.record_end) == (result, None, "")
        assert ended.served > 0
    assert DONE == []
    assert time.monotonic() - began < 25  # nobody waits for the slow call
    assert [store.backend.size("r"), *_lines(store)] == before


def _lines(store: CheckpointStore) -> list[str]:
    reader = store.backend.read("r")
    assert isinstance(reader, LogReader)
    with reader:
        return list(export(reader))


def test_the_run_may_be_a_store_a_path_or_an_export(tmp_path: Path) -> None:
    store, result = recorded(gathered, CheckpointStore(tmp_path / "runs"))
    file = tmp_path / "run.jsonl"
    file.write_text("".join(f"{line}\n" for line in _lines(store)))
    before = {one: one.read_bytes() for one in tmp_path.rglob("*") if one.is_file()}
    for one in tmp_path.rglob("*"):
        one.chmod(0o500 if one.is_dir() else 0o400)
    sources: list[tuple[Any, ...]] = [
        (tmp_path / "runs" / "r", gathered),
        (str(file), gathered),
        (tmp_path / "runs", gathered, "r"),
        (store.backend, gathered, "r"),
    ]
    try:
        assert [replay(*one).result for one in sources] == [result] * 4
    finally:
        for one in tmp_path.rglob("*"):
            one.chmod(0o700 if one.is_dir() else 0o600)
    assert before == {one: one.read_bytes() for one in tmp_path.rglob("*") if one.is_file()}
    file.write_text(file.read_text().replace("part 3", "part 4", 1))
    with pytest.raises(Exception, match="export was changed"):
        replay(file, gathered)


def test_a_run_that_was_submitted_is_replayed_as_any_other(tmp_path: Path) -> None:
    """Its first record is that it was submitted."""
    store, file = CheckpointStore(MemoryStore()), tmp_path / "run.jsonl"
    store.submit("plain", "a task", "r")
    with pytest.raises(RecoveryError, match="nothing to replay"):
        replay(store, plain, "r")
    store, result = recorded(plain, store)
    file.write_text("".join(f"{line}\n" for line in _lines(store)))
    assert replay(store, plain, "r").result == replay(file, plain).result == result
    assert DONE == []


def test_a_live_run_is_replayed_while_its_process_has_it(tmp_path: Path) -> None:
    store, result = recorded(simple, CheckpointStore(tmp_path / "runs"))
    with store.claim("r"):
        assert replay(store, simple, "r").result == result


def test_an_encrypted_run_needs_its_key(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    keys = Encryption(bytes(range(32)))
    _, result = recorded(simple, CheckpointStore(tmp_path, encryption=keys))
    assert replay(tmp_path / "r", simple, encryption=keys).result == result
    with pytest.raises(Exception, match="key"):
        replay(tmp_path / "r", simple)


def test_it_can_be_called_in_a_running_loop() -> None:
    store, result = recorded(simple)

    async def test() -> Replayed:
        return replay(store, simple, "r")

    assert asyncio.run(test()).result == result


# -- code that does something else


async def other_argument(run: Any) -> Any:
    """``simple``, with another question in step 3."""
    async for step in run.steps():
        answer = await run.call(ask, f"question {step}" if step != 3 else "another")
        run.messages.append({"role": "assistant", "content": answer})
        if step == 8:
            return [run.random(), run.now(), await run.call(pay, 10)]


async def other_message(run: Any) -> Any:
    """``simple``, with another message in step 2."""
    async for step in run.steps():
        answer = await run.call(ask, f"question {step}")
        run.messages.append({"role": "assistant", "content": answer.lower()})


async def one_call_more(run: Any) -> Any:
    """``simple`` with a call after its last."""
    result = await simple(run)
    await run.call(pay, 1)
    return result


async def one_call_less(run: Any) -> Any:
    """``simple`` without its last steps."""
    async for step in run.steps():
        run.messages.append(
            {"role": "assistant", "content": await run.call(ask, f"question {step}")}
        )
        if step == 7:
            return 0


async def another_result(run: Any) -> Any:
    """``simple`` with another result."""
    return [*await simple(run), "more"]


@pytest.mark.parametrize(
    ("agent", "said"),
    [
        (other_argument, "question 3.*another"),
        (other_message, "QUESTION 1.*question 1"),
        (one_call_more, "the run finished"),
        (one_call_less, "question 8.*the agent returned"),
        (another_result, "it returned"),
    ],
)
def test_it_fails_where_the_code_does_something_else(agent: Any, said: str) -> None:
    store, _ = recorded(simple)
    with pytest.raises(DivergenceError, match=f"(?s){said}"):
        replay(store, agent, "r")
    assert DONE == []


def test_an_error_that_is_not_recorded_is_raised() -> None:
    async def broken(run: Any) -> Any:
        await simple(run)
        raise KeyError("new")

    store, _ = recorded(simple)
    with pytest.raises(KeyError) as raised:
        replay(store, broken, "r")
    assert "does not have this error" in raised.value.__notes__[0]


# -- runs that did not finish


async def crashes(run: Any) -> Any:
    """An agent with a bug."""
    async for step in run.steps():
        await run.call(pay, step)
        if step == 3:
            return dict[str, int]()["customer"]


def test_a_recorded_error_is_the_error_of_the_replay() -> None:
    store = CheckpointStore(MemoryStore())
    with pytest.raises(KeyError):
        RecoverableAgent(crashes, store, max_recoveries=0).run_with_recovery_sync("t", "r")
    DONE.clear()
    ended = replay(store, crashes, "r")
    assert isinstance(ended.error, KeyError)
    assert (ended.served, ended.record_end, DONE) == (3, "", [])


def test_a_call_that_failed_for_good_is_the_error_of_the_replay() -> None:
    @tool
    def refuse() -> None:
        DONE.append(1)
        raise ValueError("no")

    async def agent(run: Any) -> Any:
        return await run.call(refuse)

    store = CheckpointStore(MemoryStore())
    with pytest.raises(Exception, match="no"):
        RecoverableAgent(agent, store, max_recoveries=0).run_with_recovery_sync("t", "r")
    DONE.clear()
    assert isinstance(replay(store, agent, "r").error, ValueError)
    assert DONE == []


def test_a_run_in_doubt_is_replayed_up_to_the_call() -> None:
    @tool
    async def doubtful() -> None:
        DONE.append(1)
        raise asyncio.CancelledError

    async def agent(run: Any) -> Any:
        await run.call(pay, 1)
        done = await asyncio.gather(run.call(ask, "b"), run.call(ask, "c"))
        return [done, await run.call(doubtful)]

    store = CheckpointStore(MemoryStore())
    with pytest.raises((InDoubtError, asyncio.CancelledError)):
        RecoverableAgent(agent, store).run_with_recovery_sync("t", "r")
    DONE.clear()
    ended = replay(store, agent, "r")
    assert ended.served == 3
    assert "doubtful" in ended.record_end
    assert DONE == []


@pytest.mark.parametrize("sent", [False, True])
def test_a_run_that_waits_is_replayed_up_to_the_wait(sent: bool) -> None:
    async def agent(run: Any) -> Any:
        first = asyncio.create_task(run.call(ask, "a"))
        said = await run.wait_for("yes")
        await run.sleep(3600)
        return [await first, said]

    store = CheckpointStore(MemoryStore())
    made = RecoverableAgent(agent, store, park_after_s=0)
    with pytest.raises(Exception, match="parked"):
        made.run_with_recovery_sync("t", "r")
    if sent:
        store.run("r").signal("yes", 1)
        with pytest.raises(Exception, match="parked"):
            made.resume_sync("r")
    DONE.clear()
    ended = replay(store, agent, "r")
    assert ("sleep" if sent else "wait_for") in ended.record_end
    assert ended.served == 1 + sent
    assert DONE == []


def test_an_unfinished_run_ends_before_the_first_new_call() -> None:
    async def agent(run: Any) -> Any:
        async for step in run.steps():
            await run.call(pay, step)
            if step == 3 and stops:
                raise SystemExit

    store, stops = CheckpointStore(MemoryStore()), True
    with pytest.raises(SystemExit):
        RecoverableAgent(agent, store).run_with_recovery_sync("t", "r")
    stops = False
    DONE.clear()
    ended = replay(store, agent, "r")
    assert ended.served == 3
    assert "step 4" in ended.record_end
    assert "before a new call: pay" in ended.record_end
    assert DONE == []


def test_a_run_resumed_from_a_checkpoint_begins_at_its_first_step() -> None:
    async def agent(run: Any) -> Any:
        seen.append("begins")
        async for step in run.steps():
            seen.append(step)
            run.state["sum"] = run.state.get("sum", 0) + len(await run.call(ask, str(step)))
            if step == 4 and stops:
                raise SystemExit
            if step == 6:
                return run.state["sum"]

    seen: list[Any] = []
    store, stops = CheckpointStore(MemoryStore()), True
    made = RecoverableAgent(agent, store, checkpoint_every_n=1)
    with pytest.raises(SystemExit):
        made.run_with_recovery_sync("t", "r")
    stops = False
    assert made.resume_sync("r")["result"] == 6
    seen.clear()
    assert replay(store, made, "r").result == 6
    assert seen == ["begins", 1, 2, 3, 4, 5, 6]


def test_a_run_whose_beginning_was_removed_is_refused() -> None:
    class Small(MemoryStore):
        def claim(self, run_id: str, takeover: bool = False) -> EventLog:
            return EventLog.open(self._path(run_id), segment_size=400, files=self.files)

    store = CheckpointStore(Small(), retention="latest_only")
    recorded(simple, store, checkpoint_every_n=1)
    with pytest.raises(RecoveryError, match="beginning of the run is not in the record"):
        replay(store, simple, "r")


def test_a_damaged_run_is_refused(tmp_path: Path) -> None:
    recorded(simple, CheckpointStore(tmp_path))
    segment = next((tmp_path / "r").glob("*.seg"))
    data = segment.read_bytes()
    segment.write_bytes(data.replace(b"question 2", b"question 9", 1))
    with pytest.raises(DamagedRunError):
        replay(tmp_path / "r", simple)


# -- swap


def test_a_swapped_tool_is_executed_and_nothing_else() -> None:
    store, result = recorded(simple)
    asked = []

    async def same(question: str) -> str:
        asked.append(question)
        return question.upper()

    ended = replay(store, simple, "r", swap={"ask": same})
    assert (ended.result, ended.differences) == (result, ())
    assert asked == [f"question {step}" for step in range(1, 9)]
    assert DONE == []


@pytest.mark.parametrize("kind", ["async", "plain"])
def test_after_another_outcome_arguments_are_not_compared(kind: str) -> None:
    def shorter(question: str) -> str:
        return question[:1]

    async def shorter_async(question: str) -> str:
        return question[:1]

    store, result = recorded(simple)
    swap: Callable[..., Any] = shorter if kind == "plain" else shorter_async
    ended = replay(store, simple, "r", swap={"ask": swap})
    assert ended.result[0] == 8
    assert ended.result[3] == result[3]  # pay(8) got what was recorded of pay(88)
    assert any("pay" in line and "8" in line for line in ended.differences)
    assert DONE == []


def test_after_another_outcome_ids_of_calls_are_not_compared_where_none_is_equal() -> None:
    """The ids are the model's: another reply has others."""

    async def agent(run: Any) -> Any:
        ids = await run.call(ask, "ab")
        return [await run.call(pay, n, call_id=name) for n, name in enumerate(ids)]

    store, result = recorded(agent)
    assert result == ["paid 0 to ann", "paid 1 to ann"]
    ended = replay(store, agent, "r", swap={"ask": lambda question: "XY"})
    assert ended.result == result
    assert DONE == []


def test_a_swapped_tool_may_raise_and_the_agent_may_go_another_way() -> None:
    async def agent(run: Any) -> Any:
        try:
            return await run.call(ask, "a")
        except OSError:
            return await run.call(pay, 3)

    def fails(question: str) -> str:
        raise OSError("no network")

    store, _ = recorded(agent)
    with pytest.raises(DivergenceError, match="pay"):
        replay(store, agent, "r", swap={"ask": fails})
    assert DONE == []


# -- graphs


def test_a_graph() -> None:
    async def first(ctx: Any) -> dict[str, Any]:
        DONE.append("first")
        return {"a": 1}

    async def second(ctx: Any) -> dict[str, Any]:
        DONE.append("second")
        return {"b": 2}

    graph = Graph("g")
    graph.node("first", first)
    graph.node("second", second)
    graph.edge("first", "second")
    manager = CheckpointManager(CheckpointStore(MemoryStore()))
    done = GraphExecutor(checkpoint_manager=manager).execute_sync(graph, "goal", run_id="r")
    assert done.success
    DONE.clear()
    ended = replay(manager.store, graph, "r")
    assert ended.error is None
    assert DONE == []
