"""Where no more threads can be started, nothing is called later than its caller believes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest

from recovery import CheckpointStore, Run, tool, tracing
from recovery.agent import shared_commits
from recovery.agent.shared_commits import GroupCommit, off_loop
from recovery.calls.in_thread import OneCall, in_thread
from recovery.journal.events import CallFailed, CallReturned
from tests.support.lives import executed, recorded, run

pytestmark = pytest.mark.usefixtures("fresh")


@contextmanager
def no_more_threads() -> Iterator[None]:
    """As at a limit of the system, or of a container; for what this thread begins."""
    start, here = threading.Thread.start, threading.current_thread()

    def refuse(thread: threading.Thread) -> None:
        if threading.current_thread() is here:
            raise RuntimeError("can't start new thread")
        start(thread)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        yield


@contextmanager
def busy(threads: ThreadPoolExecutor) -> Iterator[None]:
    """An executor whose only thread is at work, and is free at the end."""
    go_on = threading.Event()
    threads.submit(go_on.wait, 30)
    yield
    go_on.set()
    for _ in range(2):  # what the executor has kept comes before
        threads.submit(int).result(30)


def test_a_tool_that_no_thread_can_call_has_failed_and_is_not_called_later() -> None:
    @tool
    def pay() -> str:
        executed["pay"] += 1
        return "paid"

    async def agent(run: Run) -> Any:
        threads = ThreadPoolExecutor(2)
        asyncio.get_running_loop().set_default_executor(threads)
        with (
            busy(threads),
            no_more_threads(),
            pytest.raises(RuntimeError, match="can't start new thread"),
        ):
            await run.call(pay, call_id="1")
        assert executed["pay"] == 0
        return await run.call(pay, call_id="2")

    store = CheckpointStore()
    assert run(agent, store)["result"] == "paid"
    assert executed["pay"] == 1
    ended = [one for one in recorded(store) if isinstance(one, CallReturned | CallFailed)]
    assert [type(one) for one in ended] == [CallFailed, CallReturned]


def test_what_another_thread_has_begun_all_the_same_is_waited_for() -> None:
    """The executor raises, and a thread that was busy has taken the call."""

    class Late(ThreadPoolExecutor):
        def submit(self, function: Callable[..., Any], /, *args: Any, **given: Any) -> Any:
            super().submit(function, *args, **given).result(30)
            raise RuntimeError("can't start new thread")

    async def main() -> None:
        asyncio.get_running_loop().set_default_executor(Late(1))
        assert await in_thread(lambda: 5) == 5
        with pytest.raises(KeyError):
            await in_thread(partial(dict[str, int]().__getitem__, "a"))

    asyncio.run(main())


def test_what_another_thread_is_at_is_waited_for() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def waits() -> bool:
        begun.set()
        return go_on.wait(30)

    def refuse(call: Callable[[], None]) -> None:
        threading.Thread(target=call).start()
        assert begun.wait(30)
        threading.Timer(0.05, go_on.set).start()

    class Refusing(ThreadPoolExecutor):
        def submit(self, function: Callable[..., Any], /, *args: Any, **given: Any) -> Any:
            refuse(partial(function, *args, **given))
            raise RuntimeError("can't start new thread")

    async def main() -> bool:
        asyncio.get_running_loop().set_default_executor(Refusing(1))
        return await in_thread(waits)

    assert asyncio.run(main())
    begun.clear()
    go_on.clear()
    call = OneCall(waits)
    refuse(call)
    call.wait()
    assert call.result()


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("is_taken", [False, True])
def test_what_an_executor_refuses_is_waited_for_only_if_a_thread_has_it(
    is_taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(call: Callable[[], None]) -> None:
        if is_taken:
            call()
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(asyncio, "to_thread", refuse)
    if is_taken:
        assert asyncio.run(in_thread(lambda: 5)) == 5
    else:
        with pytest.raises(RuntimeError, match="can't start new thread"):
            asyncio.run(in_thread(lambda: 5))


def test_a_run_goes_on_without_its_spans(caplog: pytest.LogCaptureFixture) -> None:
    async def agent(run: Run) -> int:
        return 5

    source = tracing.start(Mock())
    try:
        with no_more_threads():
            assert run(agent, CheckpointStore())["result"] == 5
    finally:
        source.stop()
    assert "no thread can be started" in caplog.text


def test_runs_commit_and_open_their_logs_without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = ThreadPoolExecutor(2)
    for name in ("flush_threads", "_committers"):
        monkeypatch.setattr(shared_commits, name, threads)

    async def main() -> None:
        with busy(threads):
            with no_more_threads():
                # The second one of a round would have a thread of its own.
                group = GroupCommit()
                commits = [group.commit(partial(made.append, name)) for name in "ab"]
                await asyncio.wait_for(asyncio.gather(*commits), 30)
                await off_loop(partial(made.append, "c"))
            assert made == ["a", "b", "c"]
        assert made == ["a", "b", "c"]

    made: list[str] = []
    asyncio.run(main())
