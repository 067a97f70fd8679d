"""A stream gives on replay what it gave first, or says at once what would not be the same."""

from __future__ import annotations

import asyncio
import inspect
import io
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from eventlog import RefusedValueError
from recovery import CheckpointStore, RecoverableAgent, RecoveryError, tool
from recovery.calls.stream import STATE_SIZE_MAX
from recovery.values.pack import pack

RUN = "run"


class Died(BaseException):
    """The process dies here, as far as the agent can tell."""


@tool(after_crash="retry")
async def words() -> AsyncIterator[str]:
    for word in ("a", "b", "c"):
        yield word


@tool(after_crash="retry")
def words_plain() -> Iterator[str]:
    yield from ("a", "b", "c")


@tool(after_crash="retry")
def numbers() -> Iterator[int]:
    yield from range(1, 10)


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Any) -> CheckpointStore:
    return CheckpointStore(None if request.param == "memory" else tmp_path / "runs")


def run(agent: Callable[[Any], Any], store: CheckpointStore) -> Any:
    runner = RecoverableAgent(agent, store, max_recoveries=0)
    if inspect.iscoroutinefunction(agent):
        return asyncio.run(runner.run_with_recovery("task", RUN))["result"]
    return runner.run_with_recovery_sync("task", RUN)["result"]


def asked(stream: Any) -> str:
    """What asking for the result gives."""
    try:
        return str(stream.result)
    except RecoveryError as exc:
        return str(exc).rpartition(": ")[2]


TOO_EARLY = "it was not read to its end, or it failed"


@pytest.mark.parametrize("left", [False, True])
def test_a_result_asked_for_too_early_is_the_same_error_both_times(
    store: CheckpointStore, left: bool
) -> None:
    lives: list[list[str]] = []

    async def agent(run: Any) -> list[str]:
        said: list[str] = []
        lives.append(said)
        async with run.stream(words) as stream:
            said.append(asked(stream))
            async for _ in stream:
                said[1:] = [asked(stream)]  # as often as there are chunks: the same each time
                if left:
                    break
        said.append(asked(stream))
        if len(lives) == 1:
            raise Died
        return said

    with pytest.raises(Died):
        run(agent, store)
    assert run(agent, store) == lives[0]
    assert lives[0] == [TOO_EARLY, TOO_EARLY, "a" if left else "abc"]


def test_a_result_asked_for_too_early_in_a_plain_agent(store: CheckpointStore) -> None:
    lives: list[list[str]] = []

    def agent(run: Any) -> list[str]:
        said: list[str] = []
        lives.append(said)
        with run.stream(words_plain) as stream:
            for _ in stream:
                said[:] = [asked(stream)]
        said.append(asked(stream))
        if len(lives) == 1:
            raise Died
        return said

    with pytest.raises(Died):
        run(agent, store)
    assert run(agent, store) == lives[0] == [TOO_EARLY, "abc"]


def counted(run: Any, chunk: str) -> None:
    run.state["chunks"] = run.state.get("chunks", 0) + 1


def collected(run: Any, chunk: str) -> None:
    run.state.setdefault("parts", []).append(chunk)


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("change", [counted, collected])
@pytest.mark.parametrize("plain", [False, True])
def test_a_state_that_chunks_change_stops_the_run(
    store: CheckpointStore, change: Any, plain: bool
) -> None:
    async def agent(run: Any) -> Any:
        async for _ in run.steps():
            async with run.stream(words) as stream:
                async for chunk in stream:
                    change(run, chunk)
            return dict(run.state)

    def agent_plain(run: Any) -> Any:
        for _ in run.steps():
            with run.stream(words_plain) as stream:
                for chunk in stream:
                    change(run, chunk)
            return dict(run.state)

    with pytest.raises(RecoveryError, match=r"run\.state was changed while the stream of words"):
        run(agent_plain if plain else agent, store)


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("chunk", range(1, 9))
@pytest.mark.parametrize("more", [0, 1])
def test_a_large_state_is_looked_at_after_every_chunk_whose_number_is_a_power_of_two(
    chunk: int, more: int
) -> None:
    def agent(run: Any) -> None:
        run.state["x"] = "x" * (STATE_SIZE_MAX - len(pack({"x": "", "n": 0}, "")) - 2 + more)
        run.state["n"] = 0
        assert len(pack(run.state, "")) == STATE_SIZE_MAX + more
        with run.stream(numbers) as stream:
            for number in stream:
                run.state["n"] += number == chunk

    if more and chunk not in (1, 2, 4, 8):
        run(agent, CheckpointStore())
    else:
        with pytest.raises(RecoveryError, match=r"run\.state was changed"):
            run(agent, CheckpointStore())


@pytest.mark.parametrize("where", ["before", "after", "beside"])
def test_a_state_that_something_else_changes_is_no_harm(store: CheckpointStore, where: str) -> None:
    async def agent(run: Any) -> Any:
        run.state["n"] = 0

        async def other() -> None:
            for _ in range(3):
                run.state["n"] += 1
                await asyncio.sleep(0)

        beside = asyncio.create_task(other()) if where == "beside" else None
        if where == "before":
            run.state["n"] = 3
        async for _ in (stream := run.stream(words)):
            await asyncio.sleep(0)
        if where == "after":
            run.state["n"] = len(stream.result)
        if beside is not None:
            await beside
        return run.state["n"]

    assert run(agent, store) == 3


def test_a_state_that_changes_beside_a_call_of_another_thread_is_no_harm(
    store: CheckpointStore,
) -> None:
    begun, over = threading.Event(), threading.Event()

    @tool(after_crash="retry")
    def beside() -> None:
        begun.set()
        over.wait(30)

    def agent(run: Any) -> Any:
        thread = threading.Thread(target=run.call, args=(beside,))
        thread.start()
        assert begun.wait(30)
        try:
            for chunk in run.stream(words_plain):
                counted(run, chunk)
        finally:
            over.set()
            thread.join()
        return run.state["chunks"]

    assert run(agent, store) == 3


def generated() -> Iterator[int]:
    yield 1


async def generated_async() -> AsyncIterator[int]:
    yield 1


@tool(after_crash="retry")
def iterated() -> Iterator[int]:
    return iter([1, 2])


@tool(after_crash="retry")
def opened() -> io.StringIO:  # a file is an iterator of its lines
    return io.StringIO("a line")


@pytest.mark.parametrize("function", [generated, generated_async, iterated, opened])
@pytest.mark.parametrize("plain", [False, True])
def test_a_call_that_gives_an_iterator_is_told_to_stream(
    store: CheckpointStore, function: Any, plain: bool
) -> None:
    async def agent(run: Any) -> Any:
        return await run.call(function)

    def agent_plain(run: Any) -> Any:
        return run.call(function)

    with pytest.raises((TypeError, RefusedValueError, RecoveryError)) as error:
        run(agent_plain if plain else agent, store)
    assert f"run.stream({function.__name__}, ...)" in str(error.value)
    assert "functools.partial" not in str(error.value)  # no way out for what a tool returns
