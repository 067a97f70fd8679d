"""Streams: chunks live, the outcome in the log."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, closing, suppress
from typing import Any

import pytest

from recovery import (
    CheckpointStore,
    InDoubtError,
    RecoverableAgent,
    RecoveryError,
    Resolution,
    Retry,
    Run,
    Stream,
    SyncRun,
    current_call,
    tool,
)
from recovery.agent.run import execution_of
from recovery.control.resolve import resolve
from recovery.errors import RunFailedError, UnrecordedResultError
from recovery.journal.encoding import decode
from recovery.journal.events import CallIntended
from tests.support.lives import Died

did: list[Any] = []
seen: list[Any] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    did.clear()
    seen.clear()


def start(agent: Any, store: CheckpointStore | None = None, recoveries: int = 1) -> Any:
    of = RecoverableAgent(agent, store or CheckpointStore(), max_recoveries=recoveries)
    return of.run_with_recovery_sync("task", "run")["result"]


def words(text: str = "to be or") -> Iterator[str]:
    for word in text.split():
        did.append(word)
        yield word + " "


async def words_async(text: str = "to be or") -> AsyncIterator[str]:
    for word in text.split():
        did.append(word)
        await asyncio.sleep(0)
        yield word + " "


def listed(text: str = "to be or") -> Any:
    return words(text)


async def opened(text: str = "to be or") -> Any:
    return words_async(text)


class Plain:
    """Chunks that nobody can close."""

    def __init__(self, text: str) -> None:
        self._words = words(text)

    def __iter__(self) -> Iterator[str]:
        return self._words.__iter__()


def unclosable(text: str = "to be or") -> Any:
    return Plain(text)


SOURCES = [words, words_async, listed, opened, unclosable]
Reader = Callable[..., Any]


@pytest.fixture(params=["async", "plain"])
def reader(request: pytest.FixtureRequest) -> Reader:
    """Makes an agent that reads streams: of (function, arguments), stopping after ``most``."""

    async def read_async(run: Any, one: Any, most: int, block: bool | str) -> Any:
        stream = run.stream(one[0], *one[1:])
        if block:
            async with aclosing(stream) if block == "closing" else stream:
                await read_loop(stream, most)
        else:
            await read_loop(stream, most)
        return stream.result

    async def read_loop(stream: Any, most: int) -> None:
        count = 0
        async for chunk in stream:
            seen.append(chunk)
            count += 1
            if count == most:
                break

    def read_sync(run: Any, one: Any, most: int, block: bool | str) -> Any:
        stream = run.stream(one[0], *one[1:])
        if block:
            with closing(stream) if block == "closing" else stream:
                read_loop_sync(stream, most)
        else:
            read_loop_sync(stream, most)
        return stream.result

    def read_loop_sync(stream: Any, most: int) -> None:
        for count, chunk in enumerate(stream):
            seen.append(chunk)
            if count + 1 == most:
                break

    def made(*streams: Any, most: int = 0, block: bool | str = False, fail: int = 0) -> Any:
        async def agent(run: Run) -> Any:
            found = [await read_async(run, one, most, block) for one in streams]
            if run.recovery_count < fail:
                raise OSError
            return found

        def plain(run: SyncRun) -> Any:
            found = [read_sync(run, one, most, block) for one in streams]
            if run.recovery_count < fail:
                raise OSError
            return found

        return agent if request.param == "async" else plain

    return made


# -- chunks and the outcome


@pytest.mark.parametrize("source", SOURCES)
def test_chunks_come_live_and_the_outcome_on_replay(reader, source):
    assert start(reader((source,), fail=1)) == ["to be or "]
    assert seen == ["to ", "be ", "or ", "to be or "]
    assert did == ["to", "be", "or"]


@pytest.mark.parametrize(
    ("chunks", "value", "again"),
    [
        (["a", "", "b"], "ab", ["ab"]),
        ([b"a", b"b"], b"ab", [b"ab"]),
        (["a", b"b"], ["a", b"b"], ["a", b"b"]),
        ([{"n": 1}, None, [2]], [{"n": 1}, None, [2]], [{"n": 1}, None, [2]]),
        ([1, True], [1, True], [1, True]),
        (["", ""], "", []),
        ([], [], []),
    ],
)
def test_what_chunks_make_up(reader, chunks, value, again):
    def source() -> Iterator[Any]:
        yield from chunks

    assert start(reader((source,), fail=1)) == [value]
    assert seen == [*chunks, *again]
    assert [type(chunk) for chunk in seen] == [type(chunk) for chunk in [*chunks, *again]]


def test_a_tool_says_what_its_chunks_make_up_and_the_other_way_round():
    def combine(chunks: list[Any]) -> Any:
        return {"content": "".join(chunk["delta"] for chunk in chunks)}

    def split(value: Any) -> Any:
        return ({"delta": letter} for letter in value.pop("content"))

    @tool(combine=combine, split=split)
    def source() -> Iterator[Any]:
        yield {"delta": "ab"}
        yield {"delta": "c"}

    def agent(run: SyncRun) -> Any:
        stream = run.stream(source)
        for chunk in stream:
            seen.append(chunk.pop("delta"))  # what a consumer does to its chunks is its own
        if run.recovery_count == 0:
            raise OSError
        return stream.result

    assert start(agent) == {"content": "abc"}
    assert seen == ["ab", "c", "a", "b", "c"]


@pytest.mark.parametrize("options", [{"combine": len}, {"split": list}])
def test_combine_and_split_go_together(options):
    with pytest.raises(ValueError, match="go together"):
        tool(**options)(words)


def test_a_combination_that_fails_is_a_failed_call(reader):
    @tool(combine=lambda chunks: chunks[7], split=list)
    def source() -> Iterator[str]:
        yield "a"

    with pytest.raises(RunFailedError, match="IndexError"):
        start(reader((source,)))


def test_a_resolved_outcome_of_any_kind_is_streamed(reader):
    def source() -> Iterator[str]:
        yield "a"
        raise Died

    store = CheckpointStore()
    with pytest.raises(Died):
        start(reader((source,)), store)
    assert seen == ["a"]
    with pytest.raises(InDoubtError) as caught:
        start(reader((source,)), store)
    resolve(store, "run", caught.value.calls[0].lsn, Resolution.outcome({"n": 1}))
    assert start(reader((source,)), store) == [{"n": 1}]
    assert seen == ["a", {"n": 1}]


def test_what_a_hook_finds_of_a_stream_is_streamed(reader):
    @tool(reconcile=lambda call: Resolution.outcome("found"))
    def source() -> Iterator[str]:
        yield "a"
        raise Died

    store = CheckpointStore()
    with pytest.raises(Died):
        start(reader((source,)), store)
    assert start(reader((source,)), store) == ["found"]
    assert seen == ["a", "found"]


def test_the_intent_is_durable_before_the_generator_begins(tmp_path):
    def source() -> Iterator[str]:
        with CheckpointStore(tmp_path).backend.read("run") as log:  # type: ignore[union-attr]
            made = [decode(record) for record in log.records(1)]
        assert isinstance(made[-1], CallIntended)
        yield made[-1].tool

    def agent(run: SyncRun) -> Any:
        with run.stream(source) as stream:
            return list(stream)

    assert start(agent, CheckpointStore(tmp_path)) == ["source"]


# -- failures


def test_on_replay_the_exception_comes_before_any_chunk():
    def source() -> Iterator[str]:
        yield "a"
        raise ConnectionError("no line")

    def agent(run: SyncRun) -> Any:
        stream = run.stream(source)
        with pytest.raises(ConnectionError, match="no line"):
            seen.extend(stream)
        assert list(stream) == []  # it has ended
        with pytest.raises(RecoveryError, match="has no result: it was not read"):
            stream.result  # noqa: B018
        if run.recovery_count == 0:
            raise OSError
        return list(seen)

    assert start(agent) == ["a"]  # of the first time


@pytest.mark.parametrize("source", ["a text", 5, {"a": 1}, None, b"bytes"])
def test_what_is_no_stream_is_refused(reader, source):
    def give() -> Any:
        return source

    with pytest.raises(RunFailedError, match=r"TypeError: give returned .* there is run\.call"):
        start(reader((give,)))


def test_a_chunk_that_cannot_be_carried_is_named(reader):
    closed: list[bool] = []

    def source() -> Iterator[Any]:
        try:
            yield "a"
            yield ("tuple", object())
        finally:
            closed.append(True)

    with pytest.raises(UnrecordedResultError, match=r"chunk 1 of source"):
        start(reader((source,)))
    assert closed == [True]


# -- retries and timeouts


@pytest.mark.parametrize(("attempts", "failures"), [(2, 1), (5, 2)])
def test_a_stream_is_tried_again_until_a_chunk_has_gone_out(reader, attempts, failures):
    tries: list[int] = []

    @tool(retry=Retry(attempts, delay_s=0))
    def source() -> Iterator[str]:
        tries.append(1)
        if len(tries) <= failures:
            raise ConnectionError("no line")
        yield "a"
        raise ConnectionError("cut")

    with pytest.raises(RunFailedError, match="cut"):
        start(reader((source,)))
    assert (len(tries), seen) == (failures + 1, ["a"])


def test_which_errors_count_is_for_the_retry_to_say(reader):
    @tool(retry=Retry(attempts=5, delay_s=0, on=OSError))
    def source() -> Iterator[str]:
        did.append("tried")
        if len(did) == 1:
            raise OSError
        raise ValueError("not this one")
        yield ""

    with pytest.raises(RunFailedError, match="not this one"):
        start(reader((source,)))
    assert did == ["tried"] * 2


@pytest.mark.usefixtures("clock")
def test_a_timeout_is_of_the_wait_for_one_chunk():
    @tool(timeout_s=0.5, on_timeout="fail")
    async def source() -> AsyncIterator[str]:
        yield "a"
        yield "b"
        try:
            await asyncio.Event().wait()
        finally:
            did.append("closed")

    async def agent(run: Run) -> Any:
        with pytest.raises(TimeoutError, match="took longer"):
            async for chunk in run.stream(source):
                seen.append(chunk)
                await asyncio.sleep(0.6)  # the consumer's own time does not count
        return list(seen)

    assert start(agent) == ["a", "b"]
    assert did == ["closed"]


# -- leaving early


@pytest.mark.parametrize("block", [True, "closing"])
@pytest.mark.parametrize("source", SOURCES)
def test_leaving_a_block_early_records_what_was_received(reader, source, block):
    assert start(reader((source,), most=2, block=block, fail=1)) == ["to be "]
    assert seen == ["to ", "be ", "to be "]
    assert did[:2] == ["to", "be"]
    assert len(did) == 2


def test_an_error_of_the_consumer_in_a_block_is_none_of_the_call():
    async def agent(run: Run) -> Any:
        with pytest.raises(ValueError, match="of the consumer"):
            async with run.stream(words_async) as stream:
                raise ValueError(f"of the consumer, after {await anext(stream)}")
        return stream.result

    def plain_agent(run: SyncRun) -> Any:
        with pytest.raises(ValueError, match="of the consumer"), run.stream(words) as stream:
            raise ValueError(f"of the consumer, after {next(stream)}")
        return stream.result

    assert [start(one) for one in (agent, plain_agent)] == ["to "] * 2


@pytest.mark.parametrize("source", SOURCES)
def test_a_generator_is_closed_when_its_block_is_left(reader, source):
    closed: list[Any] = []

    async def closing_async() -> AsyncIterator[str]:
        try:
            async for word in words_async():
                yield word
        finally:
            await asyncio.sleep(0)
            closed.append(current_call())

    def closing() -> Iterator[str]:
        try:
            yield from words()
        finally:
            closed.append(current_call())

    chosen = closing_async if source in (words_async, opened) else closing
    assert start(reader((chosen,), most=1, block=True)) == ["to "]
    assert [call.tool for call in closed] == [chosen.__name__]


def test_a_block_in_which_nothing_was_read_makes_no_call(reader):
    async def agent(run: Run) -> Any:
        async with run.stream(words_async) as stream:
            pass
        with pytest.raises(RecoveryError, match="no result"):
            stream.result  # noqa: B018
        assert [chunk async for chunk in stream] == []
        return execution_of(run).executed

    assert start(agent) == 0
    assert did == []


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("then", ["call", "now", "message", "step", "return", "stream"])
def test_a_stream_that_was_left_open_stops_the_run_at_what_comes_next(then):
    async def agent(run: Run) -> Any:
        async for _ in run.stream(words_async):
            break  # left here
        match then:
            case "call":
                await run.call(did.append, "called")
            case "now":
                run.now()
            case "message":
                run.messages.append("x")
            case "step":
                await anext(run.steps())
            case "stream":
                async for _ in run.stream(words_async, "another"):
                    pass

    line = inspect.getsourcelines(agent)[1] + 1
    with pytest.raises(
        RecoveryError, match=rf"stream of words_async .*stream\.py:{line}\) was open"
    ):
        start(agent)
    assert did == ["to"]


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("options", [{}, {"combine": "".join, "split": list}])
def test_a_plain_stream_that_was_left_open_stops_the_run(options):
    def agent(run: SyncRun) -> Any:
        for _ in run.stream(tool(**options)(words)):
            run.call(did.append, "called")

    with pytest.raises(RecoveryError, match=r"was open"):
        start(agent)
    assert did == ["to"]


@pytest.mark.usefixtures("clock")
def test_a_stream_that_a_task_has_left_open_stops_the_run_at_its_end():
    async def agent(run: Run) -> Any:
        async def leave() -> None:
            await anext(run.stream(words_async))

        await asyncio.create_task(leave())
        await run.call(did.append, "called")

    with pytest.raises(RecoveryError, match=r"was open"):
        start(agent)
    assert did == ["to", "called"]


@pytest.mark.usefixtures("clock")
def test_code_that_swallows_the_stop_in_a_block_does_not_see_how_the_block_ends():
    async def agent(run: Run) -> Any:
        async with run.stream(words_async) as stream:
            await anext(stream)
            with suppress(BaseException):
                run.now()
        seen.append("after the block")

    with pytest.raises(RecoveryError, match=r"was open"):
        start(agent)
    assert seen == ["after the block"]


@pytest.mark.usefixtures("clock")
def test_an_error_that_leaves_a_stream_open_is_raised_as_it_is():
    store = CheckpointStore()

    async def agent(run: Run) -> Any:
        async for _ in run.stream(words_async):
            raise ValueError("of the consumer")

    with pytest.raises(ValueError, match="of the consumer"):
        start(agent, store, 0)
    with pytest.raises(InDoubtError, match="words_async"):
        start(agent, store, 0)


@pytest.mark.parametrize("block", [False, True])
def test_a_cancelled_consumer_cancels_the_call(block):
    store = CheckpointStore()

    async def source() -> AsyncIterator[str]:
        try:
            yield "a"
            await asyncio.Event().wait()
        finally:
            did.append("closed")

    async def agent(run: Run) -> Any:
        async def consume() -> None:
            async with run.stream(source) as stream:
                async for chunk in stream:
                    seen.append(chunk)
                    if block:
                        await asyncio.Event().wait()

        task = asyncio.ensure_future(consume())
        while not seen:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
        did.append("cancelled")
        run.now()

    with pytest.raises(InDoubtError, match="source"):
        start(agent, store)
    assert did == ["closed", "cancelled"]


def test_a_generator_that_does_not_let_itself_be_closed_has_failed(reader):
    def stubborn() -> Iterator[str]:
        while True:
            try:
                yield "a"
            except GeneratorExit:
                yield "no"

    with pytest.raises(RunFailedError, match="ignored GeneratorExit"):
        start(reader((stubborn,), most=1, block=True))


# -- together


def test_other_tasks_may_act_while_a_stream_is_open():
    async def agent(run: Run) -> Any:
        gate = asyncio.Event()

        async def other() -> Any:
            await gate.wait()
            return await run.call(str, "other")

        task = asyncio.ensure_future(other())
        async with run.stream(words_async) as stream:
            async for _ in stream:
                gate.set()
                await asyncio.sleep(0.01)
        return [stream.result, await task]

    assert start(agent) == ["to be or ", "other"]


def test_a_stream_inside_a_tool_belongs_to_its_call():
    @tool(after_crash="retry")
    async def outer(text: str) -> str:
        run = current
        async with run.stream(words_async, text) as stream:
            async for chunk in stream:
                seen.append(chunk)
        if len(did) == 2:
            did.append("died")
            raise Died
        return str(stream.result).upper()

    current: Any = None
    store = CheckpointStore()

    async def agent(run: Run) -> Any:
        nonlocal current
        current = run
        return await run.call(outer, "a b")

    with pytest.raises(Died):
        start(agent, store)
    assert start(agent, store) == "A B "
    assert did == ["a", "b", "died"]  # the inner stream was served from the log


def test_a_stream_of_a_stream():
    async def loud(text: str) -> AsyncIterator[str]:
        async with current.stream(words_async, text) as inner:
            async for chunk in inner:
                yield chunk.upper()

    current: Any = None

    async def agent(run: Run) -> Any:
        nonlocal current
        current = run
        async with run.stream(loud, "a b c") as stream:
            async for chunk in stream:
                seen.append(chunk)
                if len(seen) == 2:
                    break
        return [stream.result, await run.call(str, "after")]

    assert start(agent) == ["A B ", "after"]
    assert did == ["a", "b"]


def test_the_generator_gets_no_further_than_its_consumer():
    async def agent(run: Run) -> Any:
        async for chunk in run.stream(words_async, "a b c d"):
            seen.append(chunk)
            await asyncio.sleep(0.01)
            assert len(did) == len(seen)

    start(agent)
    assert len(seen) == 4


def test_a_plain_generator_does_not_block_the_event_loop():
    threads: set[Any] = set()

    def source() -> Iterator[int]:
        for number in range(3):
            threads.add(threading.current_thread())
            yield number

    async def agent(run: Run) -> Any:
        return [chunk async for chunk in run.stream(source)]

    assert start(agent) == [0, 1, 2]
    assert threading.current_thread() not in threads


def test_a_decorated_generator_is_streamed_when_it_is_called():
    @tool(after_crash="retry")
    async def ask(text: str) -> AsyncIterator[str]:
        async for chunk in words_async(text):
            yield chunk

    @tool
    def plain(text: str) -> Iterator[str]:
        yield from words(text)

    async def agent(run: Run) -> Any:
        assert isinstance(ask("a"), Stream)
        found = [chunk async for chunk in ask("a b")]
        if run.recovery_count == 0:
            raise OSError
        return found

    def plain_agent(run: SyncRun) -> Any:
        return "".join(plain("a b"))

    assert start(agent) == ["a b "]
    assert start(plain_agent) == "a b "
    assert list(plain("c")) == ["c "]  # outside of a run it is the plain function


@pytest.mark.parametrize("source", [words, words_async])
def test_a_call_of_a_generator_function_names_stream(source):
    async def agent(run: Run) -> Any:
        return await run.call(source)

    def plain_agent(run: SyncRun) -> Any:
        return run.call(source)

    for one in (agent, plain_agent):
        with pytest.raises(TypeError, match=r"is a generator function: `run\.stream\(words"):
            start(one, recoveries=0)
    assert did == []


def test_two_readers_of_one_stream_are_refused():
    async def agent(run: Run) -> Any:
        stream = run.stream(words_async)
        return await asyncio.gather(anext(stream), anext(stream))

    with pytest.raises(RecoveryError, match="two at once read the stream"):
        start(agent, recoveries=0)


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("kind", ["async", "async, raises", "plain", "plain, raises"])
def test_a_chunk_that_comes_after_the_agent_has_ended_keeps_nobody_waiting(kind: str):
    runs: list[Any] = []

    async def agent(run: Run) -> Any:
        runs.append(run)
        reader = asyncio.ensure_future(anext(run.stream(words_async)))
        await asyncio.sleep(0)
        assert not reader.done()
        if "raises" in kind:
            raise OSError

    def plain_agent(run: SyncRun) -> Any:
        runs.append(run)
        begun = threading.Event()

        def slowly() -> Iterator[int]:
            begun.set()
            over.wait()
            yield 1

        over = threading.Event()
        stream = run.stream(slowly)
        thread = threading.Thread(target=lambda: next(stream))
        thread.start()
        begun.wait()
        threading.Timer(0.05, over.set).start()
        if "raises" in kind:
            raise OSError

    expected = OSError if "raises" in kind else RecoveryError
    with pytest.raises(expected):
        start(plain_agent if "plain" in kind else agent, recoveries=0)
    # Else it was waited for in vain, until patience was at its end.
    assert execution_of(runs[0]).in_flight == 0


def test_a_stream_that_a_task_still_reads_when_the_agent_has_ended_is_read_to_its_end():
    async def agent(run: Run) -> Any:
        async def read() -> None:
            async for chunk in run.stream(words_async):
                seen.append(chunk)
                await asyncio.sleep(0.01)

        left.append(asyncio.ensure_future(read()))
        for _ in range(100):
            await asyncio.sleep(0)

    left: list[Any] = []
    start(agent)
    assert seen == ["to ", "be ", "or "]


@pytest.mark.parametrize("fails", [False, True])
def test_an_async_generator_of_a_plain_agent_runs_in_one_loop(fails: bool):
    loops: set[Any] = set()

    async def source() -> AsyncIterator[int]:
        for number in range(3):
            loops.add(asyncio.get_running_loop())
            await asyncio.sleep(0)
            yield number
        if fails:
            raise OSError("no line")

    def agent(run: SyncRun) -> Any:
        try:
            return list(run.stream(source))
        except OSError as exc:
            return str(exc)

    assert start(agent) == ("no line" if fails else [0, 1, 2])
    (loop,) = loops
    assert loop.is_closed()


def test_the_stream_says_whether_it_is_replayed():
    async def agent(run: Run) -> Any:
        async with run.stream(words_async) as stream:
            async for _ in stream:
                seen.append(stream.replayed)
        if run.recovery_count == 0:
            raise OSError

    start(agent)
    assert seen == [False] * 3 + [True]
