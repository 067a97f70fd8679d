"""Provides RecoverableAgent: runs an agent function, and recovers its runs after errors."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Unpack, overload

from eventlog.light_dataclass import light_dataclass
from recovery.agent.agent_errors import Recoveries, end_if_permanent, note_stop, note_unbegun
from recovery.agent.begin_run import begin
from recovery.agent.checkpoint_store import CheckpointStore
from recovery.agent.drivers import Drivers, live_runs
from recovery.agent.ending import ending_of
from recovery.agent.executions import AsyncExecution, SyncExecution
from recovery.agent.run import Run, SyncRun
from recovery.agent.shared_commits import off_loop
from recovery.agent.stop_signals import RunSessions
from recovery.agent_code.agent_name import module_at_work, object_name
from recovery.calls.child_runs import after_child_resolution
from recovery.calls.in_doubt import resolve_covered
from recovery.calls.in_thread import in_thread
from recovery.control.cancel import cancel_children
from recovery.declare.agent_function import check_agent, check_result
from recovery.declare.scope import Entered, runs_at_work
from recovery.declare.settings import Options, Settings
from recovery.declare.spec import function_name, is_async
from recovery.engine.drive import drive, drive_async
from recovery.engine.event_listener import listen
from recovery.engine.metering import warn_if_unmeasured
from recovery.engine.recovery_report import RecoveryReport, RunResult, report_of
from recovery.engine.resuming import RECORDED, ResumeSession
from recovery.engine.run_session import RunSession
from recovery.engine.unrecordable_results import finish
from recovery.errors import StoppedError
from recovery.history.find_run import store_difference
from recovery.history.load import Ended, History, load
from recovery.history.subject_values import check_readable, check_restored
from recovery.journal.events import RunCancelled, RunFailed, RunFinished, RunUndone
from recovery.journal.failure import message_of
from recovery.stores.file import default_directory
from recovery.stores.protocol import RunStore
from recovery.text import SEALED_TEXT, quoted
from recovery.values.declared_types import declare
from recovery.values.pack import pack
from recovery.values.sealed import all_keys
from recovery.values.type_variables import Result

if TYPE_CHECKING:
    from eventlog import WritableLog
    from recovery.agent.run_handle import RunHandle
    from recovery.approvers import Sign

_logger = logging.getLogger("recovery")

LOADED_ON_LOOP_MAX = 100  # records that the event loop reads itself, which takes 1.5 ms
DRAIN_S = 30.0  # how long to wait for calls of other tasks when the agent function ends
CANCEL_S = 1.0  # and for child runs that were cancelled then, because they did not stop


@light_dataclass
class _Execute:
    run: Any


@light_dataclass
class _Sleep:
    seconds: float


@light_dataclass
class _Block:
    act: Callable[[], Any]  # it may wait for the disk


_Effect = _Execute | _Sleep | _Block


class RecoverableAgent(Generic[Result]):
    """An agent function whose runs survive crashes.

    ``recovery_count`` counts the recoveries that this object made, of all its runs.

    Args:
        agent_fn: A function of the run, async (it gets a Run) or plain (a SyncRun).
        checkpoint_store: The store of its runs: a CheckpointStore, a RunStore or a path. None (the
            default) is the default directory on disk, ``$EVENTLOG_HOME`` or ``~/.eventlog``.
        checkpoint_every_n: Steps between checkpoints (3). None takes none: a resumed run is
            replayed from the first line of the agent function, with its local variables. The time
            for that grows with the run.
        checkpoint_every_bytes: Take a checkpoint also at the end of a step, once so many bytes were
            recorded since the last one. None: only steps count. A recovery then reads at most that
            and one step more. For runs with large results.
        max_recoveries: How often in a row this process recovers a run from an error of the agent
            without completing a step (3). Then the last error is raised, and the run can be resumed
            later. An error of the code itself (a TypeError and its like) is raised at once.
        after_crash: The policy for calls in doubt, for all tools or by the name of the tool. None:
            that of each tool.
        stop_on: Signals to the process upon which runs stop at the next safe point, as by
            ``stop()`` (none). A second signal has its former effect. For SIGTERM of a deployment.
        park_after_s: A run that has only waited for so many seconds, and will wait longer, parks
            (WaitingError) and frees its process. None (the default) waits in the process. Give more
            than the agent's own code takes between two calls.
        budget: Limits of a run, see Budget (None). Each process that resumes the run may give
            another one.
        max_children: How many child runs execute at once (64): of all children of a run, of all
            their children, and so on; the others wait. The option of the outermost run counts.
        on_event: A function that gets each RunEvent after it is recorded, in the process that runs
            the agent (None). Replayed events are not given; the first is "run_started", or
            "run_resumed" with the ``progress`` so far. The run waits for the function, so it must
            be quick, and must not use the run. Its exceptions are logged.
        check_locals: Whether to warn, in log "recovery", of what a resumed run would lose or do in
            another order (True). These are local variables, objects that the state has twice, a
            changed ``run.task``, races. The agent's source is examined once, its variables until
            the first checkpoint.
        subject: To whom a run belongs, with all that it records. The id of a person (text), or a
            function of the task that gives the id. None (the default): to no one. Everything is
            encrypted with a key of that subject, until ``store.forget(subject)`` destroys the key.
            It counts for runs that begin.
        on_forgotten: What an agent gets whose run needs a value of a forgotten subject. "stop" is
            the default: a ForgottenError, before anything is executed. "serve": a Forgotten in
            place of the value.
        on_drift: The reaction to code that differs from the record where no side effect can follow.
            "report" is the default: the run continues, and the report, the log and an event name
            the difference. "stop" is a DivergenceError.
    """

    @overload
    def __init__(
        self,
        agent_fn: Callable[[Any], Awaitable[Result]],
        checkpoint_store: CheckpointStore | RunStore | str | os.PathLike[str] | None = None,
        checkpoint_every_n: int | None = 3,
        **options: Unpack[Options],
    ) -> None: ...
    @overload
    def __init__(
        self,
        agent_fn: Callable[[Any], Result],
        checkpoint_store: CheckpointStore | RunStore | str | os.PathLike[str] | None = None,
        checkpoint_every_n: int | None = 3,
        **options: Unpack[Options],
    ) -> None: ...
    def __init__(
        self,
        agent_fn: Callable[[Any], Any],
        checkpoint_store: CheckpointStore | RunStore | str | os.PathLike[str] | None = None,
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
        self._made_in = module_at_work()
        self._lives = RunSessions()

    @property
    def checkpoint_every_n(self) -> int | None:
        """Steps between checkpoints. If set, it counts for runs that begin or resume afterwards."""
        return self.settings.checkpoint_every_n

    @checkpoint_every_n.setter
    def checkpoint_every_n(self, steps: int | None) -> None:
        self.settings = replace(self.settings, checkpoint_every_n=steps)
        self._check_retention()

    def stop(self, why: str = "asked to") -> None:
        """Stop the runs of this agent in this process at their next safe point. They can be
        resumed.

        A side effect in flight ends first and is recorded; calls that are safe to repeat, and
        waits, are interrupted. The callers of the runs get a StoppedError, which says ``why``. Can
        be called from any thread, and from a signal handler.
        """
        self._lives.stop(why)

    async def run_with_recovery(
        self, task: Any, run_id: str, *, takeover: bool = False
    ) -> RunResult[Result]:
        """Run the agent on ``task``, or resume run ``run_id`` where it stopped.

        ``task``: a value that can be recorded; to resume, the same one. ``run_id``: a name of your
        choice, which becomes a directory. ``takeover`` takes the run from a process that is known
        to be stuck (False).

        Returns a dict: ``result`` (the agent's return value), ``run_id``, ``report`` (a
        RecoveryReport), ``usage`` (a Usage, of the whole run). ``recovered_from_step`` is the
        checkpoint that it last resumed from, 0 if none; ``recovery_count`` is that of the run, over
        all processes. A finished run returns its recorded result and executes nothing. A plain
        agent function runs in a thread.

        Raises TaskMismatchError, InDoubtError (parked), DivergenceError, RunFailedError,
        DamagedRunError; LogLockedError when another process owns the run; otherwise the agent's own
        last error.
        """
        with self._lives.one(RunSession(run_id), self.settings.stop_on) as session:
            return await self._run_session(task, session, takeover)

    def run_with_recovery_sync(
        self, task: Any, run_id: str, *, takeover: bool = False
    ) -> RunResult[Result]:
        """``run_with_recovery`` without an event loop, for plain agent functions (an async one gets
        a loop)."""
        if is_async(self.agent_fn):
            _check_no_loop("run_with_recovery")
            return asyncio.run(self.run_with_recovery(task, run_id, takeover=takeover))
        with self._lives.one(RunSession(run_id), self.settings.stop_on) as session:
            return drive(self._recover(task, session, takeover, SyncExecution), self._perform)

    async def resume(self, run_id: str, *, takeover: bool = False) -> RunResult[Result]:
        """Resume run ``run_id`` from its id alone, with its recorded task.

        ``takeover`` and all else: as for ``run_with_recovery``. It never begins a run:
        RecoveryError when there is no such run, or no agent has begun it.
        """
        with self._lives.one(ResumeSession(run_id), self.settings.stop_on) as session:
            return await self._run_session(RECORDED, session, takeover)

    def resume_sync(self, run_id: str, *, takeover: bool = False) -> RunResult[Result]:
        """``resume`` without an event loop."""
        if is_async(self.agent_fn):
            _check_no_loop("resume")
            return asyncio.run(self.resume(run_id, takeover=takeover))
        with self._lives.one(ResumeSession(run_id), self.settings.stop_on) as session:
            return drive(self._recover(RECORDED, session, takeover, SyncExecution), self._perform)

    async def retry(
        self,
        run_id: str,
        *,
        who: str = "",
        why: str = "",
        takeover: bool = False,
        sign: Sign | None = None,
    ) -> RunResult[Result]:
        """Resume run ``run_id``; if it ended by the failure of a call, retry that call.

        For a tool that raised and is repaired now. The failed call is executed under the same
        idempotency key, and every call that returned is served from the log. ``who`` and ``why``
        are kept in the record of this decision. ``sign``: see RunHandle.retry. ``takeover`` and all
        else: as for ``resume``.
        """
        await asyncio.to_thread(self._retry_failed, run_id, who, why, sign)
        return await self.resume(run_id, takeover=takeover)

    def retry_sync(
        self,
        run_id: str,
        *,
        who: str = "",
        why: str = "",
        takeover: bool = False,
        sign: Sign | None = None,
    ) -> RunResult[Result]:
        """``retry`` without an event loop."""
        self._retry_failed(run_id, who, why, sign)
        return self.resume_sync(run_id, takeover=takeover)

    def _retry_failed(self, run_id: str, who: str, why: str, sign: Sign | None) -> None:
        handle = self.run(run_id)
        if handle.status().failed_call:
            handle.retry(who=who, why=why, sign=sign)

    def run(self, run_id: str) -> RunHandle:
        """A handle for run ``run_id`` in this agent's store. Runs nothing: see
        ``CheckpointStore.run``."""
        return self.store.run(run_id)

    async def run_session(self, task: Any, session: RunSession) -> RunResult[Result]:
        """Not for users: runs a child for ``run.child``."""
        with self._lives.one(session, ()):
            return await self._run_session(task, session, False)

    def run_session_sync(self, task: Any, session: RunSession) -> RunResult[Result]:
        """Not for users: ``live`` without an event loop."""
        if is_async(self.agent_fn):
            return asyncio.run(self.run_session(task, session))
        with self._lives.one(session, ()):
            return drive(self._recover(task, session, False, SyncExecution), self._perform)

    def _child(self, agent_fn: Any, options: Mapping[str, Any]) -> RecoverableAgent:
        """The agent that runs children of a run of this one."""
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

    async def _run_session(self, task: Any, session: RunSession, takeover: bool) -> RunResult[Any]:
        """One session of a run. A plain agent function runs in a thread: when this is cancelled,
        the run stops at the agent's next action, and can be resumed."""
        if is_async(self.agent_fn):
            steps = self._recover(task, session, takeover, AsyncExecution)
            return await drive_async(steps, self._perform_async)
        steps = self._recover(task, session, takeover, SyncExecution)
        thread = asyncio.ensure_future(in_thread(partial(drive, steps, self._perform)))
        try:
            return await asyncio.shield(thread)
        except asyncio.CancelledError:
            thread.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
            session.stop(StoppedError(session.run_id, "its caller was cancelled"))
            await asyncio.wait([thread], timeout=DRAIN_S)
            raise

    def _check_retention(self) -> None:
        if self.settings.checkpoint_every_n is None and self.store.retention.checkpoints:
            raise ValueError(
                "checkpoint_every_n=None takes no checkpoints, and the store's retention= removes "
                "records before one: nothing would ever be removed. Use a store with "
                'retention="all", or take checkpoints.'
            )

    def _check_locals(self) -> None:
        if self.settings.check_locals:
            from recovery.agent_code.agent_source import warn_of_lost_locals  # noqa: PLC0415 - imports ast
            from recovery.agent_code.order_warnings import warn_of_races  # noqa: PLC0415 - the same

            warn_of_races(self.agent_fn)
            if self.settings.checkpoint_every_n is not None:
                warn_of_lost_locals(self.agent_fn)

    async def _perform_async(self, effect: _Effect) -> Any:
        if isinstance(effect, _Sleep):
            return await asyncio.sleep(effect.seconds)
        if isinstance(effect, _Block):
            # A loop with one task has no other work to do meanwhile.
            apart = live_runs or self.store.backend.is_remote or len(asyncio.all_tasks()) > 1
            return await off_loop(effect.act) if apart else effect.act()
        inside = Entered(effect.run.scope)
        live_runs.add(effect.run)
        runs_at_work.add(effect.run)
        try:
            result = await self.agent_fn(Run(effect.run))
            await effect.run.returned()
            return result
        finally:
            live_runs.discard(effect.run)
            runs_at_work.discard(effect.run)
            inside.leave()
            effect.run.agent_returned()
            await _drain(effect.run)

    def _perform(self, effect: _Effect) -> Any:
        if isinstance(effect, _Sleep):
            return time.sleep(effect.seconds)
        if isinstance(effect, _Block):
            return effect.act()
        inside = Entered(effect.run.scope)
        runs_at_work.add(effect.run)
        try:
            result = check_result(self.agent_fn, self.agent_fn(SyncRun(effect.run)))
            effect.run.returned()
            return result
        finally:
            inside.leave()
            runs_at_work.discard(effect.run)
            effect.run.children.end()
            deadline = time.monotonic() + DRAIN_S
            while not effect.run.drained() and time.monotonic() < deadline:
                time.sleep(0.005)

    def _ending(self, session: RunSession, history: History, task: Any) -> RunFinished | None:
        """The recorded end of the run. Of one that has not ended: find out to whom it belongs, and
        check that what it has recorded can be read."""
        ended = ending_of(history, task, self.store.backend)
        serves = self.settings.on_forgotten == "serve"
        if ended is not None:
            check_readable(ended.result, session.run_id, "its result", serves)
            return ended
        history.subjects.open(session.run_id, self.store.backend)
        history.subjects.check_known()
        if history.started is None:
            own = self.settings.subject_of(task)
            if own:  # besides the subject that its task was submitted for, or of its parent's call
                session.subject = all_keys(session.subject, history.subjects.ids_of(own))
            if session.parent is None:
                session.agent_object = object_name(self, self.agent_fn, self._made_in)
        check_restored(session.run_id, history.started, history.restored, serves)
        return None

    def _recover(
        self, task: Any, session: RunSession, takeover: bool, kind: type[Drivers]
    ) -> Generator[_Effect, Any, RunResult[Any]]:
        """One session of a run in this process; yields effects to its driver."""
        self._check_locals()
        if task is not RECORDED:
            pack(task, "task")
        with ExitStack() as held:
            # Claiming a run, ending it and releasing it take flushes. Other runs do not wait for
            # these.
            log = yield _Block(lambda: held.enter_context(session.claim(self.store, takeover)))
            try:
                result = yield from self._recover_claimed(task, session, log, kind)
            except (Exception, asyncio.CancelledError):
                yield _Block(held.close)
                raise
            yield _Block(held.close)
            return result

    def _load(self, log: WritableLog, run_id: str) -> History:
        whole = self.settings.checkpoint_every_n is None
        history = load(log, run_id, self.store.approvers, whole=whole)
        return after_child_resolution(self.store, log, history)

    def _recover_claimed(
        self, task: Any, session: RunSession, log: WritableLog, kind: type[Drivers]
    ) -> Generator[_Effect, Any, RunResult[Any]]:
        run_id, recoveries = session.run_id, Recoveries(self.settings.max_recoveries)
        while True:
            began = time.perf_counter()
            read = partial(self._load, log, run_id)
            history = (yield _Block(read)) if log.last_lsn > LOADED_ON_LOOP_MAX else read()
            history, task = session.check_history(log, history, task)
            if _is_over(history.ended):  # a crash may have come before its children ended
                yield _Block(partial(cancel_children, self.store, log, run_id, ""))
            ended = self._ending(session, history, task)
            if ended is not None:
                return _result(run_id, ended, report_of(log, history, False, began))
            listen(history, self.store.backend, self.settings.on_event)
            recovered = yield _Block(
                partial(begin, self.store, self.agent_fn, log, history, session, task)
            )
            self.recovery_count += recovered
            run = kind(log, history, self.store, self.settings)
            run.children.runner = self._child
            session.attach(run)
            report = report_of(log, history, True, began)
            _logger.info("%s", report)
            try:
                resolve_covered(run)
                result = yield _Execute(run)
                # Raises what the agent may have swallowed. The event loop does nothing before that:
                # a task that the agent left unbegun could make a call.
                ended = finish(run, result)
                yield _Block(run.commit)
                warn_if_unmeasured(run)
                return _result(run_id, ended, _reported(report, run))
            except BaseException as exc:
                if isinstance(exc, KeyboardInterrupt):  # the user did not wait for the stop
                    raise
                note_unbegun(log, history, run)
                if run.drift.in_cancellation and run.is_being_cancelled():
                    raise asyncio.CancelledError from None  # interrupted, it did not continue
                if run.stopped is not None:  # even if the agent, or a task group, replaced it
                    yield _Block(partial(note_stop, log, history, run))
                    raise run.stopped from run.stopped.__cause__
                if not isinstance(exc, Exception):
                    raise  # the process is to end
                end_if_permanent(log, history, run, exc)
                if not recoveries.may_go_on(log, history, run, exc):
                    raise
                _logger.warning(
                    "run %s: recovering from %s: %s",
                    run_id,
                    type(exc).__name__,
                    SEALED_TEXT if run.quoted_by(exc) else quoted(message_of(exc, run.scrubber)),
                )
            finally:
                run.close()
            yield _Sleep(recoveries.pause_s)


def _reported(report: RecoveryReport, run: Drivers) -> RecoveryReport:
    """The report of a recovery, with the calls and drift of the agent after it."""
    return replace(
        report,
        served=run.served,
        executed=run.executed,
        in_doubt=tuple(run.settled),
        drift=tuple(run.drift.said),
        usage=run.tallies.progress.usage(),
    )


async def _drain(run: AsyncExecution) -> None:
    """Let calls in flight end, so that their outcomes are recorded."""
    run.children.end()
    for patience_s in (DRAIN_S, CANCEL_S):
        deadline = time.monotonic() + patience_s
        while not run.drained() and time.monotonic() < deadline:  # noqa: ASYNC110 - rare, and short
            await asyncio.sleep(0.005)
        if run.drained():
            return
        run.children.cancel_all()


def _is_over(ended: Ended | None) -> bool:
    """Whether the run has ended without a result, and can never be resumed."""
    return isinstance(ended, RunCancelled | RunUndone) or (
        isinstance(ended, RunFailed) and not ended.call
    )


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
