"""RecoverableAgent: runs an agent function on a run, again and again if need be."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Unpack, overload

from eventlog._dataclass import dataclass
from recovery._agent_errors import Recoveries, end_if_permanent, note_stop
from recovery._agent_function import check_agent, check_result
from recovery._beginning import begin
from recovery._budget import warn_if_unmeasured
from recovery._checkpoint import CheckpointStore
from recovery._children import settled_since
from recovery._declared import declare
from recovery._doubt import settle_covered
from recovery._drive import drive, drive_async
from recovery._drivers import live_runs
from recovery._errors import (
    RecoveryError,
    RunCancelledError,
    RunFailedError,
    RunUndoneError,
    StoppedError,
    TaskMismatchError,
)
from recovery._events import (
    RunCancelled,
    RunFailed,
    RunFinished,
    RunUndone,
)
from recovery._existing import Store, store_difference
from recovery._failure import message_of
from recovery._herald import Herald
from recovery._history import Ended, History, load
from recovery._outside import cancel_children
from recovery._refused import finish
from recovery._report import RecoveryReport, RunResult, report_of
from recovery._resuming import RECORDED, Resumption
from recovery._run import Run, SyncRun
from recovery._settings import Options, Settings
from recovery._stopping import Life, Lives
from recovery._text import quoted
from recovery._together import off_loop
from recovery._tool import current_scope, function_name, is_async, runs_at_work
from recovery._type_variables import Result
from recovery._values import pack
from recovery.stores.file import default_directory

if TYPE_CHECKING:
    from recovery._following import RunEvents, Until

_logger = logging.getLogger("recovery")

LANDING_S = 30.0  # how long calls of other tasks are waited for when the agent function ends
CUTTING_S = 1.0  # and child runs that were cancelled then, for they did not stop


@dataclass(frozen=True, slots=True)
class _Execute:
    run: Any


@dataclass(frozen=True, slots=True)
class _Sleep:
    seconds: float


@dataclass(frozen=True, slots=True)
class _Block:
    act: Callable[[], Any]  # which may wait for the disk


_Effect = _Execute | _Sleep | _Block


class RecoverableAgent(Generic[Result]):
    """An agent function whose runs survive crashes.

    ``agent_fn(run)`` is a function, async (it gets a Run) or plain (a SyncRun).
    ``checkpoint_store``: where runs live: a CheckpointStore, a RunStore or a path; None is the
    default directory on disk (``$EVENTLOG_HOME`` or ``~/.eventlog``). ``checkpoint_every_n``: steps
    between checkpoints; None takes none, so that a resumed run is replayed from the first line of
    the agent function, local variables and all: the time that this takes grows with the run.
    ``options``: see Options.
    ``recovery_count`` counts the recoveries that this object made, of all its runs.
    """

    @overload
    def __init__(
        self,
        agent_fn: Callable[[Any], Awaitable[Result]],
        checkpoint_store: Store | None = None,
        checkpoint_every_n: int | None = 3,
        **options: Unpack[Options],
    ) -> None: ...
    @overload
    def __init__(
        self,
        agent_fn: Callable[[Any], Result],
        checkpoint_store: Store | None = None,
        checkpoint_every_n: int | None = 3,
        **options: Unpack[Options],
    ) -> None: ...
    def __init__(
        self,
        agent_fn: Callable[[Any], Any],
        checkpoint_store: Store | None = None,
        checkpoint_every_n: int | None = 3,
        **options: Unpack[Options],
    ) -> None:
        check_agent(agent_fn)
        self.agent_fn = agent_fn
        declare(agent_fn)
        if checkpoint_store is None:
            checkpoint_store = default_directory()
        if not isinstance(checkpoint_store, CheckpointStore):
            checkpoint_store = CheckpointStore(checkpoint_store)
        self.store = checkpoint_store
        self.settings = Settings(checkpoint_every_n, **options)
        self._check_retention()
        self.recovery_count = 0
        self._lives = Lives()

    @property
    def checkpoint_every_n(self) -> int | None:
        """Steps between checkpoints. Can be set: for runs that are begun or resumed afterwards."""
        return self.settings.checkpoint_every_n

    @checkpoint_every_n.setter
    def checkpoint_every_n(self, steps: int | None) -> None:
        self.settings = replace(self.settings, checkpoint_every_n=steps)
        self._check_retention()

    def stop(self, why: str = "asked to") -> None:
        """Stop the runs of this agent in this process at their next safe point: to be resumed.

        A side effect that is under way gets to its end and is recorded; calls that are safe to
        repeat, and waiting, are cut short. Those who wait for the runs get a StoppedError. Can be
        called from any thread, and from a signal handler.
        """
        self._lives.stop(why)

    async def run_with_recovery(
        self, task: Any, run_id: str, *, takeover: bool = False
    ) -> RunResult[Result]:
        """Run the agent on ``task``, or resume run ``run_id`` where it stopped.

        Returns a dict: ``result`` (what the agent returned), ``run_id``, ``recovered_from_step``
        (the checkpoint it last resumed from, 0 if none), ``recovery_count`` (of the run, over all
        processes), ``report`` (a RecoveryReport), ``usage`` (a Usage: what the run has used). A
        finished run returns its recorded result and executes nothing. A plain agent function runs
        in a thread.

        Raises TaskMismatchError, InDoubtError (parked), DivergenceError, RunFailedError,
        DamagedRunError; LogLockedError when another process has the run (``takeover`` takes it
        from a process that is known to be stuck); else the agent's own last error.
        """
        with self._lives.one(Life(run_id), self.settings.stop_on) as life:
            return await self._live(task, life, takeover)

    def run_with_recovery_sync(
        self, task: Any, run_id: str, *, takeover: bool = False
    ) -> RunResult[Result]:
        """The same without an event loop, for plain agent functions (an async one gets a loop)."""
        if is_async(self.agent_fn):
            _check_no_loop("run_with_recovery")
            return asyncio.run(self.run_with_recovery(task, run_id, takeover=takeover))
        with self._lives.one(Life(run_id), self.settings.stop_on) as life:
            return drive(self._recover(task, life, takeover, SyncRun), self._perform)

    async def resume(self, run_id: str, *, takeover: bool = False) -> RunResult[Result]:
        """Go on with run ``run_id`` from its id alone: its task is the one that it has recorded.

        Else as ``run_with_recovery``. RecoveryError when there is no such run, or no agent has
        begun it: it never begins one.
        """
        with self._lives.one(Resumption(run_id), self.settings.stop_on) as life:
            return await self._live(RECORDED, life, takeover)

    def resume_sync(self, run_id: str, *, takeover: bool = False) -> RunResult[Result]:
        """``resume`` without an event loop."""
        if is_async(self.agent_fn):
            _check_no_loop("resume")
            return asyncio.run(self.resume(run_id, takeover=takeover))
        with self._lives.one(Resumption(run_id), self.settings.stop_on) as life:
            return drive(self._recover(RECORDED, life, takeover, SyncRun), self._perform)

    async def retry(
        self, run_id: str, *, who: str = "", why: str = "", takeover: bool = False
    ) -> RunResult[Result]:
        """Resume run ``run_id``; if it ended by the failure of a call, that call is made again.

        What to do once a tool that raised is mended: the failed call is made under the same
        idempotency key, and every call that returned is served from the log. ``who`` and ``why``
        are kept in the record of this decision. Else as ``resume``.
        """
        await asyncio.to_thread(self._retry_failed, run_id, who, why)
        return await self.resume(run_id, takeover=takeover)

    def retry_sync(
        self, run_id: str, *, who: str = "", why: str = "", takeover: bool = False
    ) -> RunResult[Result]:
        """``retry`` without an event loop."""
        self._retry_failed(run_id, who, why)
        return self.resume_sync(run_id, takeover=takeover)

    def _retry_failed(self, run_id: str, who: str, why: str) -> None:
        from recovery._resolve import retry  # noqa: PLC0415 - only where a call is made again
        from recovery._status import status  # noqa: PLC0415 - as above

        if status(self.store, run_id).failed_call:
            retry(self.store, run_id, who=who, why=why)

    def events(self, run_id: str, *, after: int = 0, until: Until = "ended") -> RunEvents:
        """What happens in a run, for ``async for`` and ``for``: see ``recovery.events``."""
        from recovery._following import events  # noqa: PLC0415 - only where somebody looks

        return events(self.store, run_id, after=after, until=until)

    async def live(self, task: Any, life: Life) -> RunResult[Any]:
        """Not for users: what ``run.child`` does."""
        with self._lives.one(life, ()):
            return await self._live(task, life, False)

    def live_sync(self, task: Any, life: Life) -> RunResult[Any]:
        """Not for users: ``live`` without an event loop."""
        if is_async(self.agent_fn):
            return asyncio.run(self.live(task, life))
        with self._lives.one(life, ()):
            return drive(self._recover(task, life, False, SyncRun), self._perform)

    def _child(self, agent_fn: Any, options: Mapping[str, Any]) -> RecoverableAgent:
        """What runs an agent as a child of a run of this one."""
        if not isinstance(agent_fn, RecoverableAgent):
            return RecoverableAgent(agent_fn, self.store, **options)
        if options:
            raise TypeError(f"a RecoverableAgent has its options already; not {sorted(options)}")
        if differs := store_difference(self.store, agent_fn.store):
            raise ValueError(
                f"a child run lives in the store of its parent, and this agent's {differs}. "
                "Nothing was executed. Make both agents with the same CheckpointStore; or give "
                f"run.child the function {function_name(agent_fn.agent_fn)} itself, and the "
                "options by name"
            )
        return agent_fn

    async def _live(self, task: Any, life: Life, takeover: bool) -> RunResult[Any]:
        """The life of a run. That of a plain agent function is in a thread: when it is cancelled,
        the run stops at the next thing that the agent does, and can be resumed."""
        if is_async(self.agent_fn):
            steps = self._recover(task, life, takeover, Run)
            return await drive_async(steps, self._perform_async)
        steps = self._recover(task, life, takeover, SyncRun)
        thread = asyncio.ensure_future(asyncio.to_thread(drive, steps, self._perform))
        try:
            return await asyncio.shield(thread)
        except asyncio.CancelledError:
            thread.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
            life.stop(StoppedError(life.run_id, "whoever awaited it was cancelled"))
            await asyncio.wait([thread], timeout=LANDING_S)
            raise

    def _check_retention(self) -> None:
        if self.settings.checkpoint_every_n is None and self.store.retention.checkpoints:
            raise ValueError(
                "checkpoint_every_n=None takes no checkpoints, and the store's retention= removes "
                "what is in front of one: nothing would ever be removed. Use a store with "
                'retention="all", or take checkpoints.'
            )

    def _check_locals(self) -> None:
        if self.settings.check_locals:
            from recovery._agent_source import warn_of_lost_locals  # noqa: PLC0415 - imports ast
            from recovery._races import warn_of_races  # noqa: PLC0415 - the same

            warn_of_races(self.agent_fn)
            if self.settings.checkpoint_every_n is not None:
                warn_of_lost_locals(self.agent_fn)

    async def _perform_async(self, effect: _Effect) -> Any:
        if isinstance(effect, _Sleep):
            return await asyncio.sleep(effect.seconds)
        if isinstance(effect, _Block):
            return await off_loop(effect.act) if live_runs else effect.act()
        token = current_scope.set(effect.run.scope)
        live_runs.add(effect.run)
        runs_at_work.add(effect.run)
        try:
            return await self.agent_fn(effect.run)
        finally:
            live_runs.discard(effect.run)
            runs_at_work.discard(effect.run)
            current_scope.reset(token)
            effect.run.left()
            await _landed(effect.run)

    def _perform(self, effect: _Effect) -> Any:
        if isinstance(effect, _Sleep):
            return time.sleep(effect.seconds)
        if isinstance(effect, _Block):
            return effect.act()
        token = current_scope.set(effect.run.scope)
        runs_at_work.add(effect.run)
        try:
            return check_result(self.agent_fn, self.agent_fn(effect.run))
        finally:
            current_scope.reset(token)
            runs_at_work.discard(effect.run)
            effect.run.children.end()
            deadline = time.monotonic() + LANDING_S
            while not effect.run.landed() and time.monotonic() < deadline:
                time.sleep(0.005)

    def _recover(
        self, task: Any, life: Life, takeover: bool, kind: type[Run] | type[SyncRun]
    ) -> Generator[_Effect, Any, RunResult[Any]]:
        """The life of a run in this process; yields what its driver is to do."""
        run_id = life.run_id
        self._check_locals()
        if task is not RECORDED:
            pack(task, "task")
        with ExitStack() as held:
            # Taking a run up and ending it take flushes, for which other runs do not wait.
            log = yield _Block(lambda: held.enter_context(life.claim(self.store, takeover)))
            recoveries = Recoveries(self.settings.max_recoveries)
            while True:
                began = time.perf_counter()
                history = settled_since(self.store, log, load(log, run_id))
                history = life.meet(log, history)
                if _is_over(history.ended):  # a crash may have come before its children ended
                    yield _Block(partial(cancel_children, self.store, log, run_id, ""))
                ended = _ended(history, run_id, task)
                if ended is not None:
                    return _result(run_id, ended, report_of(log, history, None, began))
                if self.settings.on_event is not None:
                    history.herald = Herald(self.settings.on_event, history)
                recovered = yield _Block(partial(begin, self, log, history, life, task))
                self.recovery_count += recovered
                run = kind(log, history, self.store, self.settings)
                run.children.runner = self._child
                life.begin(run)
                report = report_of(log, history, run, began)
                _logger.info("%s", report)
                try:
                    settle_covered(run)
                    result = yield _Execute(run)
                    # Raises what the agent may have swallowed.
                    ended = yield _Block(partial(finish, run, result))
                    warn_if_unmeasured(run)
                    report = replace(report, served=run.served, executed=run.executed,
                                     in_doubt=tuple(run.settled), drift=tuple(run.drift.said),
                                     usage=run.tallies.progress.usage())  # fmt: skip
                    return _result(run_id, ended, report)
                except BaseException as exc:
                    if isinstance(exc, KeyboardInterrupt):  # somebody could not wait for the stop
                        raise
                    if run.stopped is not None:  # whatever the agent, or a task group, made of it
                        yield _Block(partial(note_stop, log, history, run))
                        raise run.stopped from run.stopped.__cause__
                    if not isinstance(exc, Exception):
                        raise  # the process is to end
                    end_if_permanent(log, history, run, exc)
                    if not recoveries.may_go_on(log, history, run, exc):
                        raise
                    _logger.warning("run %s: recovering from %s: %s", run_id, type(exc).__name__,
                                    quoted(message_of(exc, run.secrets)))  # fmt: skip
                finally:
                    run.close()
                yield _Sleep(recoveries.pause_s)


async def _landed(run: Run) -> None:
    """Let calls that are still under way end, so that their outcomes are recorded."""
    run.children.end()
    for patience_s in (LANDING_S, CUTTING_S):
        deadline = time.monotonic() + patience_s
        while not run.landed() and time.monotonic() < deadline:  # noqa: ASYNC110 - rare, and short
            await asyncio.sleep(0.005)
        if run.landed():
            return
        run.children.cut()


def _is_over(ended: Ended | None) -> bool:
    """Whether the run has ended without a result, and can never go on."""
    return isinstance(ended, RunCancelled | RunUndone) or (
        isinstance(ended, RunFailed) and not ended.call
    )


def _ended(history: History, run_id: str, task: Any) -> RunFinished | None:
    """How the run ended, if it did; raises for another task, and for a failed or undone run."""
    started, ended = history.started, history.ended
    if started is not None and started.run_id != run_id:
        raise RecoveryError(
            f"the log of {run_id!r} is that of run {started.run_id!r}: a copy, or a file system "
            "that does not tell the two names apart. Nothing was executed."
        )
    if started is not None and task is not RECORDED and not _is_same(started.task, task):
        raise TaskMismatchError(run_id, started.task, task)
    if isinstance(ended, RunCancelled):
        raise RunCancelledError(run_id, ended.who, ended.why, ended.calls)
    if isinstance(ended, RunFailed):
        raise RunFailedError(run_id, (ended.type, ended.message, ended.traceback), ended.call)
    if isinstance(ended, RunUndone):
        raise RunUndoneError(run_id, ended.who, ended.why)
    return ended


def _is_same(recorded: Any, given: Any) -> bool:
    # Packed, since a NaN equals nothing; by value, since the order of a dict's keys says nothing.
    try:
        return pack(recorded, "") == pack(given, "") or bool(recorded == given)
    except Exception:  # arrays have no opinion on whether they are equal
        return False


def _check_no_loop(name: str) -> None:
    if asyncio._get_running_loop() is not None:
        raise RuntimeError(f"in async code, await {name}(...) instead")


def _result(run_id: str, ended: RunFinished, report: RecoveryReport) -> RunResult[Any]:
    return {
        "result": ended.result,
        "run_id": run_id,
        "recovered_from_step": ended.recovered_from_step,
        "recovery_count": ended.recovery_count,
        "report": report,
        "usage": report.usage,
    }
