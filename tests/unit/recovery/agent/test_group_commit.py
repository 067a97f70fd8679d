"""Commits that several runs wait for: once for all of them, in their order, in a few threads."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from eventlog import EventLog
from eventlog.files.posix import OSFile
from eventlog.write.segment_writer import SegmentWriter
from recovery import CheckpointStore, RecoverableAgent, Run, SyncRun, tool
from recovery.agent import shared_commits
from recovery.agent.drivers import SLOW_FLUSHES
from recovery.agent.executions import AsyncExecution
from recovery.agent.run import execution_of
from recovery.agent.shared_commits import (
    SHARE_MAX,
    THREADS,
    GroupCommit,
    SharedRoundTrips,
    off_loop,
)
from recovery.declare.scope import NOWHERE, current_scope
from recovery.engine import task_state
from recovery.engine.per_event_loop import of_loop
from recovery.engine.task_state import context_of


class Disk:
    """Commits that are counted, and wait until they may go on."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.made: list[str] = []
        self.may_go_on = threading.Semaphore(0)
        self._commits: dict[str, Callable[[], None]] = {}

    def commit(self, name: str) -> Callable[[], None]:
        def commit() -> None:
            self.begun.append(name)
            self.may_go_on.acquire()
            self.made.append(name)
            if name.startswith("broken"):
                raise OSError(name)

        return self._commits.setdefault(name, commit)


class CountingLoop(asyncio.SelectorEventLoop):
    told = rounds = 0

    def run_in_executor(self, *work: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        self.rounds += 1
        return super().run_in_executor(*work)

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.Handle:
        self.told += 1
        return super().call_soon_threadsafe(callback, *args, context=context)


async def commit_together(commit: Callable[[], None]) -> None:
    await of_loop(GroupCommit).commit(commit)


def test_all_who_wait_for_one_commit_share_it():
    disk = Disk()

    async def main() -> None:
        waiting = [asyncio.ensure_future(commit_together(disk.commit("a"))) for _ in range(9)]
        disk.may_go_on.release()
        await asyncio.gather(*waiting)

    asyncio.run(main())
    assert disk.made == ["a"]


def test_who_comes_when_a_commit_has_begun_waits_for_the_next_one():
    disk = Disk()

    async def main() -> None:
        first = asyncio.ensure_future(commit_together(disk.commit("a")))
        while not disk.begun:  # noqa: ASYNC110 - in another thread
            await asyncio.sleep(0)
        second = asyncio.ensure_future(commit_together(disk.commit("a")))
        disk.may_go_on.release()
        # Two threads are at it, and either may get there first.
        await asyncio.wait([first, second], return_when=asyncio.FIRST_COMPLETED)
        assert disk.made == ["a"] and first.done() != second.done()
        disk.may_go_on.release()
        await asyncio.gather(first, second)

    asyncio.run(main())
    assert disk.made == ["a", "a"]


def test_nobody_is_passed_over_and_the_loop_is_told_once_for_a_share():
    """A run that is quick to come again waits behind all that were there before."""
    disk = Disk()
    names = [f"run {number}" for number in range(100)]
    ended: list[str] = []

    async def one(name: str) -> None:
        for _ in range(3):
            await commit_together(disk.commit(name))
            ended.append(name)

    async def main() -> None:
        waiting = [asyncio.ensure_future(one(name)) for name in names]
        disk.may_go_on.release(300)
        await asyncio.gather(*waiting)

    loop = CountingLoop()
    try:
        loop.run_until_complete(main())
    finally:
        loop.close()
    assert Counter(ended) == dict.fromkeys(names, 3)
    # Others may be ahead by what the threads have in hand, never by a round.
    seen: Counter[str] = Counter()
    for name in ended:
        seen[name] += 1
        behind = min(seen[other] for other in names)
        assert seen[name] - behind <= 2
    assert loop.told < len(ended)


def test_what_goes_wrong_reaches_those_who_wait_for_it():
    disk = Disk()

    async def main() -> list[Any]:
        disk.may_go_on.release(2)
        names = ("broken", "sound", "broken")
        waiting = [commit_together(disk.commit(name)) for name in names]
        return await asyncio.gather(*waiting, return_exceptions=True)

    first, second, third = asyncio.run(main())
    assert (str(first), second, str(third)) == ("broken", None, "broken")
    assert sorted(disk.made) == ["broken", "sound"]


def test_who_is_cancelled_leaves_the_commit_to_the_others():
    disk = Disk()

    async def main() -> None:
        gone, other = (asyncio.ensure_future(commit_together(disk.commit("a"))) for _ in range(2))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        disk.may_go_on.release()
        await other

    asyncio.run(main())
    assert disk.made == ["a"]


def test_the_threads_of_a_loop_are_bounded_and_leave_some_to_other_loops():
    disk, names = Disk(), [str(number) for number in range(3 * THREADS * SHARE_MAX)]

    async def busy() -> None:
        await asyncio.gather(*(commit_together(disk.commit(name)) for name in names))

    async def other() -> None:
        await commit_together(disk.commit("other"))

    with ThreadPoolExecutor(2) as loops:
        all_made = loops.submit(asyncio.run, busy())
        while len(disk.begun) < THREADS:
            time.sleep(0.001)
        other_made = loops.submit(asyncio.run, other())
        while "other" not in disk.begun:  # it has a thread of its own
            time.sleep(0.001)
        assert len(disk.begun) == THREADS + 1
        disk.may_go_on.release(len(names) + 1)
        other_made.result(30)
        all_made.result(30)
    assert sorted(disk.made) == sorted([*names, "other"])


def test_no_round_begins_while_all_threads_of_the_loop_are_at_work():
    disk, loop = Disk(), CountingLoop()

    async def main() -> None:
        names = [str(number) for number in range(THREADS + 1)]
        waiting = [asyncio.ensure_future(commit_together(disk.commit(name))) for name in names]
        try:
            while len(disk.begun) < THREADS:  # noqa: ASYNC110 - in other threads
                await asyncio.sleep(0)
            of_loop(GroupCommit)._look(loop)
            assert loop.rounds == 1
        finally:
            disk.may_go_on.release(len(names))
        await asyncio.gather(*waiting)

    try:
        loop.run_until_complete(main())
    finally:
        loop.close()


def test_a_flush_that_takes_its_time_keeps_nobody_else_waiting():
    stuck, disk = Disk(), Disk()
    disk.may_go_on.release(100)

    async def main() -> None:
        last = asyncio.ensure_future(commit_together(stuck.commit("stuck")))
        for turn in range(3):
            await asyncio.gather(*(commit_together(disk.commit(f"{turn} {n}")) for n in range(9)))
        assert stuck.begun and not last.done()
        stuck.may_go_on.release()
        await last

    asyncio.run(main())
    assert len(disk.made) == 27


def test_commits_wait_for_others_until_the_loop_is_idle_and_not_for_ever(monkeypatch):
    disk = Disk()
    disk.may_go_on.release(3)
    monkeypatch.setattr(shared_commits, "PATIENCE_S", 600)

    async def main() -> None:
        first = asyncio.ensure_future(commit_together(disk.commit("a")))
        for _ in range(3):
            await asyncio.sleep(0)
        second = asyncio.ensure_future(commit_together(disk.commit("a")))
        await asyncio.gather(first, second)
        assert disk.made == ["a"]
        monkeypatch.setattr(shared_commits, "PATIENCE_S", 0.01)
        busy = asyncio.ensure_future(commit_together(disk.commit("b")))
        while not busy.done():  # noqa: ASYNC110 - the loop has something to do in each turn
            await asyncio.sleep(0)

    asyncio.run(main())
    assert disk.made == ["a", "b"]


# -- in runs


@tool
async def effect(number: int) -> int:
    return number


def test_concurrent_side_effects_of_a_run_share_a_flush(monkeypatch, tmp_path):
    commits: list[int] = []
    commit = EventLog.commit

    def counted(log: EventLog) -> None:
        commits.append(log.last_lsn)
        commit(log)

    monkeypatch.setattr(EventLog, "commit", counted)

    async def agent(run: Run) -> list[int]:
        found: list[int] = await asyncio.gather(*(run.call(effect, n) for n in range(50)))
        return found

    store = CheckpointStore(tmp_path)
    assert RecoverableAgent(agent, store).run_with_recovery_sync("t", "r")["result"] == [*range(50)]
    assert commits[:-1] == [1 + 50]  # the run's beginning and all intents; then the run's end


def test_what_other_runs_have_to_do_keeps_nobody_waiting():
    seen: list[bool] = []

    async def main() -> None:
        met: list[Run] = []
        both = asyncio.Event()

        async def agent(run: Run) -> None:
            met.append(run)
            if len(met) == 2:
                both.set()
            await both.wait()
            if run is not met[0]:
                await asyncio.sleep(0)
                return
            nobody = contextvars.Context()
            loop, rest = asyncio.get_running_loop(), execution_of(run)._turns().at_rest
            while not rest():  # noqa: ASYNC110 - it is the other one's end
                await asyncio.sleep(0)
            for context in (current_scope_of(met[1]), contextvars.copy_context(), nobody):
                handle = loop.call_soon(lambda: None, context=context)
                seen.append(rest())
                handle.cancel()
                await asyncio.sleep(0)

        of = RecoverableAgent(agent, CheckpointStore())
        await asyncio.gather(*(of.run_with_recovery("t", name) for name in "ab"))

    asyncio.run(main())
    assert seen == [True, False, False]


def current_scope_of(run: Run) -> contextvars.Context:
    context = contextvars.Context()
    context.run(current_scope.set, execution_of(run).scope)
    return context


def test_a_run_does_not_look_at_the_tasks_of_all_others_at_each_step(monkeypatch, tmp_path):
    looks: list[Any] = []

    def looked(task: asyncio.Task[Any]) -> Any:
        looks.append(task)
        return context_of(task)

    monkeypatch.setattr(task_state, "context_of", looked)
    runs, steps = 40, 9
    begun: list[Run] = []
    ended: list[int] = []
    all_begun, all_ended = asyncio.Event(), asyncio.Event()

    async def agent(run: Run) -> None:
        begun.append(run)
        if len(begun) == runs:
            looks.clear()
            all_begun.set()
        await all_begun.wait()
        async for step in run.steps():
            await run.call(effect, step)
            if step == steps:
                break
        ended.append(len(looks))
        if len(ended) == runs:
            all_ended.set()
        await all_ended.wait()

    async def main() -> None:
        of = RecoverableAgent(agent, CheckpointStore(tmp_path), checkpoint_every_n=3)
        await asyncio.gather(*(of.run_with_recovery("t", f"r{n}") for n in range(runs)))

    asyncio.run(main())
    # For a checkpoint: at the task that started all of them.
    assert ended[-1] <= runs * steps


@pytest.mark.parametrize("left_over", [False, True])
def test_a_checkpoint_looks_for_tasks_of_former_steps_where_there_may_be_some(
    monkeypatch, left_over
):
    """A task that was started in a step keeps the step's scope alive, and is then looked for."""
    looks: list[bool] = []
    other_tasks = AsyncExecution._other_tasks

    def looked(run: AsyncExecution) -> Any:
        looks.append(True)
        return other_tasks(run)

    checkpoints: list[int] = []

    async def agent(run: Run) -> None:
        monkeypatch.setattr(AsyncExecution, "_other_tasks", looked)
        ended = asyncio.Event()
        async for step in run.steps():
            checkpoints.append(execution_of(run)._checkpointed)
            if step == 2 and left_over:
                task = asyncio.create_task(ended.wait())
            if step == 6:
                break
        ended.set()
        if left_over:
            await task

    of = RecoverableAgent(agent, CheckpointStore(), checkpoint_every_n=1)
    asyncio.run(of.run_with_recovery("t", "r"))
    assert bool(looks) is left_over
    assert checkpoints == ([0, 1, 1, 1, 1, 1] if left_over else [0, 1, 2, 3, 4, 5])


@tool
def plain_effect(number: int) -> bytes:
    return b"x" * 2048


@tool(after_crash="retry")
def look(number: int) -> bytes:
    return b"x" * 2048


@pytest.mark.parametrize(("function", "waited_for"), [(plain_effect, 1), (look, 0)])
@pytest.mark.parametrize("plain", [False, True])
def test_a_step_waits_for_one_flush_if_it_has_a_side_effect(
    function, waited_for, plain, monkeypatch, tmp_path
):
    flushes: list[int] = []
    sync = OSFile.sync
    monkeypatch.setattr(
        "eventlog.write.log.committer.request", lambda log, lsn: None
    )  # behind the agent

    def counted(file: OSFile) -> None:
        flushes.append(1)
        sync(file)

    monkeypatch.setattr(OSFile, "sync", counted)
    writes: list[int] = []
    write = SegmentWriter.write

    def written(writer: SegmentWriter, frame: bytes, lsn: int) -> None:
        writes.append(lsn)
        write(writer, frame, lsn)

    monkeypatch.setattr(SegmentWriter, "write", written)
    per_step: list[int] = []

    async def agent(run: Run) -> None:
        async for step in run.steps():
            before = len(flushes)
            run.messages.append(await run.call(function, step))
            per_step.append(len(flushes) - before)
            if step == 10:
                return

    def plain_agent(run: SyncRun) -> None:
        for step in run.steps():
            before = len(flushes)
            run.messages.append(run.call(function, step))
            per_step.append(len(flushes) - before)
            if step == 10:
                return

    of = RecoverableAgent(
        plain_agent if plain else agent, CheckpointStore(tmp_path), checkpoint_every_n=None
    )
    of.run_with_recovery_sync("t", "r")
    assert per_step == [waited_for] * 10
    # The run's beginning; of each step its start with the intent, the outcome and the message; the
    # run's end.
    assert len(writes) == 1 + 10 * 3 + 1


Done = Callable[[Any, Exception | None], None]


class OnServer:
    """A log whose server answers when the test says so."""

    def __init__(self, given: list[Done]) -> None:
        self.group, self._given = self, given

    def commit(self, logs: list[Any], done: Done) -> None:
        self._given.append(done)


def test_a_loop_is_told_once_of_all_answers_of_a_server_that_have_come():
    given: list[Done] = []
    logs: list[Any] = [OnServer(given) for _ in range(3)]

    async def main(loop: CountingLoop) -> None:
        shared = SharedRoundTrips()
        waiting = [asyncio.ensure_future(shared.commit(log)) for log in logs]
        for _ in range(3):
            await asyncio.sleep(0)
        for done, log, error in zip(given, logs, (None, OSError("lost"), None), strict=True):
            done(log, error)
        assert loop.told == 1
        for _ in range(2):
            await asyncio.sleep(0)
        assert [one.done() and repr(one.exception()) for one in waiting] == [
            "None",
            "OSError('lost')",
            "None",
        ]

    loop = CountingLoop()
    loop.run_until_complete(asyncio.wait_for(main(loop), 60))
    loop.close()
    given[0](logs[0], None)  # a late answer finds the loop closed


def test_an_answer_that_comes_while_the_loop_delivers_others_is_delivered():
    given: list[Done] = []
    logs: list[Any] = [OnServer(given) for _ in range(2)]
    arriving, delivered = threading.Event(), threading.Event()

    class Answers(deque[Any]):
        def append(self, answer: Any) -> None:
            if self:
                arriving.set()
                delivered.wait(30)
            super().append(answer)

    async def main() -> None:
        shared = SharedRoundTrips()
        shared._ended = Answers()
        waiting = [asyncio.ensure_future(shared.commit(log)) for log in logs]
        for _ in range(3):
            await asyncio.sleep(0)
        given[0](logs[0], None)
        thread = threading.Thread(target=given[1], args=(logs[1], None))
        thread.start()
        arriving.wait(30)
        await waiting[0]
        delivered.set()
        await asyncio.wait_for(waiting[1], 30)
        thread.join()

    asyncio.run(main())


def test_what_threads_tell_the_loop_is_for_no_run_and_what_they_do_is_in_no_scope(monkeypatch):
    monkeypatch.setattr(shared_commits, "PATIENCE_S", 60)  # else the loop may look by itself
    scopes: list[Any] = []
    waited_for = threading.Event()  # else the loop's own thread may tell itself

    class Loop(CountingLoop):
        def call_soon_threadsafe(  # type: ignore[override]
            self, callback: Any, *args: Any, context: Any = None
        ) -> asyncio.Handle:
            scopes.append((context or contextvars.copy_context()).get(current_scope))
            return super().call_soon_threadsafe(callback, *args, context=context)

    async def main() -> Any:
        await commit_together(lambda: None)
        asyncio.get_running_loop().call_soon(waited_for.set)
        return await off_loop(lambda: waited_for.wait(10) and current_scope.get())

    loop = Loop()
    try:
        assert loop.run_until_complete(main()) is None
    finally:
        loop.close()
    assert len(scopes) == 2 and set(scopes) == {NOWHERE}


def test_a_loop_with_other_work_waits_neither_for_files_of_a_run_nor_for_a_slow_disk(
    monkeypatch, tmp_path
):
    """It begins, is cancelled, resumes from a longer record, and ends, beside another task."""
    home, on_loop = threading.get_ident(), list[str]()

    def noted(kind: type, name: str, slow_s: float = 0.0) -> None:
        original = getattr(kind, name)

        def act(*args: Any, **options: Any) -> Any:
            if threading.get_ident() == home:
                on_loop.append(name)
            time.sleep(slow_s)
            return original(*args, **options)

        monkeypatch.setattr(kind, name, act)

    monkeypatch.setattr("eventlog.write.log.committer.request", lambda log, lsn: None)
    noted(OSFile, "sync", slow_s=0.002)
    noted(EventLog, "close")
    noted(EventLog, "records")
    stops = [60, 0]
    waits = asyncio.Event()

    async def agent(run: Run) -> str:
        async for step in run.steps():
            await run.call(effect, step)
            if step == stops[0]:
                waits.set()
                await asyncio.sleep(600)
            if step > 60:
                break
        return "done"

    async def main() -> None:
        of = RecoverableAgent(agent, CheckpointStore(tmp_path), checkpoint_every_n=None)
        first = asyncio.create_task(of.run_with_recovery("t", "r"))
        await waits.wait()
        flushes = on_loop.count("sync")
        assert flushes == SLOW_FLUSHES
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert "close" not in on_loop
        stops.pop(0)
        on_loop.clear()
        second = asyncio.create_task(of.run_with_recovery("t", "r"))
        assert (await second)["result"] == "done"

    asyncio.run(main())
    assert set(on_loop) == {"sync"}, "no release, and no load of a long record"


def test_a_run_that_was_cancelled_is_released_before_its_caller_knows(monkeypatch, tmp_path):
    released: list[tuple[int, bool]] = []
    close = EventLog.close

    def noted(log: EventLog) -> None:
        close(log)
        released.append((threading.get_ident(), log._open))

    monkeypatch.setattr(EventLog, "close", noted)
    begun = asyncio.Event()

    async def agent(run: Run) -> None:
        await run.call(effect, 1)
        begun.set()
        await asyncio.sleep(600)

    async def main() -> None:
        of = RecoverableAgent(agent, CheckpointStore(tmp_path))
        task = asyncio.create_task(of.run_with_recovery("t", "r"))
        await begun.wait()
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()  # once more, while a thread releases the run
        with pytest.raises(asyncio.CancelledError):
            await task
        ((thread, is_open),) = released
        assert thread != threading.get_ident() and not is_open

    asyncio.run(main())
