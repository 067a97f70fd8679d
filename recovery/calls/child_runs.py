"""Runs child runs: started once by a recorded call of their parent, executed only beside it.

A child is a run of its own in the store of its parent. Three records link them: the parent's intent
names the child's run, the child's first record names that intent, and `ChildStarted` in the
parent's log says that the child has a log. Each is durable before the next one is written, and all
of them before the child executes anything. So a crash between any two leaves either no child, or
one that is resumed where it stopped; and a child whose log is gone is detected.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from eventlog import WritableLog
from recovery.calls.child_slots import ChildSlots
from recovery.control.cancel import cancel
from recovery.declare.scope import Scope
from recovery.declare.spec import ToolSpec, function_name, is_async
from recovery.engine.driver_effects import Commit, Effect, Invoke, Sleep
from recovery.engine.run_session import RunSession
from recovery.errors import (
    ChildFailedError,
    ChildParkedError,
    ParkedError,
    RecoveryError,
    RunCancelledError,
    RunFailedError,
    RunUndoneError,
    Stop,
    StoppedError,
)
from recovery.history.checkpoint_store_base import CheckpointStoreBase
from recovery.history.load import Entry, History, load
from recovery.journal.call import Arguments, Call
from recovery.journal.call_key import call_scope
from recovery.journal.encoding import encode
from recovery.journal.events import CallResolved, ChildStarted, RunFailed, RunParked
from recovery.journal.related_runs import RETRIED, ParentRun, child_run_id
from recovery.replay.child_retries import ChildRetries
from recovery.replay.children import children_of
from recovery.text import SEALED_TEXT
from recovery.values.type_names import type_name
from recovery.values.type_variables import Result

if TYPE_CHECKING:
    from recovery.engine.execution import Execution
    from recovery.engine.recovery_report import RunResult

# How often a call whose child is parked checks whether all other calls have ended: at first, and
# at last.
POLL_S, POLL_MAX_S = 0.01, 0.5
_ENDED = (RunFailedError, RunCancelledError, RunUndoneError)
TEXT_MAX = 4000  # characters of a child's error message and traceback in its parent's log


class Runner(Protocol[Result]):
    """An agent that can run a child: a RecoverableAgent."""

    agent_fn: Callable[[Any], Any]

    @property
    def store(self) -> CheckpointStoreBase: ...

    def run_session(self, task: Any, session: RunSession) -> Awaitable[RunResult[Result]]: ...

    def run_session_sync(self, task: Any, session: RunSession) -> RunResult[Result]: ...


class ChildSession(RunSession):
    """One execution of a child run in this process.

    ``started`` and ``asked`` are LSNs in the parent's log: of the record that the child has a log,
    and of an operator's decision to retry the call; 0 without one.
    """

    def __init__(
        self, of: Execution, places: ChildSlots, call: Call, run_id: str, known: tuple[int, int]
    ) -> None:
        super().__init__(run_id)
        self.of, self.call, self.parent = of, call, ParentRun(of.run_id, of.uid, call.lsn)
        self.started, self.asked = known
        self._places, self.place = places, places.ask()
        self.task: asyncio.Task[Any] | None = None

    def attach(self, run: Execution) -> None:
        """See RunSession.attach."""
        assert isinstance(run.children, Children)
        run.children.places = self._places.below()
        run.inbox.above = self.look
        super().attach(run)

    def idle(self) -> bool:
        """Whether the run is executing and only waits for an event outside it."""
        return self._run is not None and self._run.in_flight > 0 and self._run.idle()

    def stop(self, error: Exception) -> None:
        """See RunSession.stop. A child that waits for a slot stops waiting."""
        super().stop(error)
        self._places.withdraw(self.place)

    def look(self) -> None:
        """Read the parent's inbox while the parent awaits this child. If the parent is to stop,
        this child stops too."""
        with self.of.mutex, suppress(Stop):
            if self.of.stopped is None:
                self.of.inbox.look()
        if self.of.stopped is not None:
            self.stop(StoppedError(self.run_id, f"run {self.of.run_id!r} stops"))

    def claim(self, store: CheckpointStoreBase, takeover: bool) -> WritableLog:
        """See RunSession.claim. If the child had a log that is gone, no new one is begun. The owner
        from which the parent was taken may still have the child, too."""
        if self.started > self.asked:
            reader = store.backend.read(self.run_id)
            if reader is None:
                raise self._lost()
            reader.close()
        return super().claim(store, takeover or bool(self.of.log.former_owner()))

    def check_history(self, log: WritableLog, history: History, task: Any) -> tuple[History, Any]:
        """See RunSession.check_history. Checks that the run is this call's child and may resume."""
        if history.started is None:
            if self.started > self.asked:
                raise self._lost()
            return history, task
        parent = ParentRun.of(history.started)
        losses = self.of.replay.losses
        if parent is not None and losses is not None and losses.hold(parent.lsn):
            # The same call (its key makes the run id), whose intent was lost and recorded again.
            parent = replace(parent, lsn=self.call.lsn)
        if parent != self.parent:
            raise RecoveryError(
                f"run {self.run_id!r} is there and is no child of call {self.call.lsn} of run "
                f"{self.of.run_id!r}, but {f'of {parent}' if parent else 'of no run'}. Nothing was "
                "executed. Move it away, or run the parent under another run_id."
            )
        return self._retried(log, history), task

    def _retried(self, log: WritableLog, history: History) -> History:
        """Retry the failed call in this child, after an operator retried the parent's call."""
        ended = history.ended
        if not (self.asked and isinstance(ended, RunFailed) and ended.call):
            return history
        who, why = f"run {self.of.run_id}", f"{RETRIED}{self.asked}"
        retries = history.tallies[ChildRetries.name]
        assert isinstance(retries, ChildRetries)
        if retries.newest == (who, why):  # once: should it fail again, that is another failure
            return history
        # Durable with the next commit, before anything is executed; otherwise recorded again.
        again = CallResolved(ended.call, "retry", None, who, why, by_policy=True)
        log.append(*encode(again))
        return load(log, self.run_id, self.of.recipient.approvers, whole=history.whole)

    def on_first_record(self, log: WritableLog) -> None:
        """Record that the child has a log. Durable, in both logs, when this returns."""
        if not self.started:
            log.commit()
            with self.of.mutex:
                self.started = self.of.record(ChildStarted(self.call.lsn, self.run_id))
            self.of.commit()

    def _lost(self) -> RecoveryError:
        parent, key = self.of.run_id, self.call.idempotency_key
        return RecoveryError(
            f"child run {self.run_id!r} of run {parent!r} was started (LSN {self.started} there) "
            "and its log is gone. Nothing was executed: what it has done is not known. Put the log "
            f"back; or resolve the call: store.run({parent!r}).resolve({key!r}, "
            "Resolution.outcome(value) | .fail(reason), or .retry() to start it over)."
        )


class Children:
    """The children of one execution of a run. ``runner`` makes the runner of an agent's options."""

    runner: Callable[[Any, Mapping[str, Any]], Runner[Any]]

    def __init__(self, run: Execution, entries: list[Entry]) -> None:
        self._run = run
        self.sessions: dict[int, ChildSession] = {}  # by the LSN of the call
        self._begun: set[int] = set()  # LSNs of calls
        self.places = ChildSlots(run.settings.max_children)
        self._parked: dict[int, tuple[str, Exception]] = {}
        self._over = False
        self._started: dict[tuple[int, str], int] = {}
        self._asked: dict[int, int] = {}
        for lsn, _, event in entries:
            match event:
                case ChildStarted(call=call, run_id=child):
                    self._started[call, child] = lsn
                case CallResolved(call=call, how="retry"):
                    self._asked[call] = lsn

    def call(
        self,
        agent_fn: Callable[[Any], Any] | Runner[Any],
        task: Any,
        name: str,
        options: Mapping[str, Any],
    ) -> tuple[ToolSpec, Arguments]:
        """The tool that stands for a run of this agent, and the arguments of its call."""
        runner = self.runner(agent_fn, options)
        agent = function_name(runner.agent_fn)
        if not self._run.is_async and is_async(runner.agent_fn) and asyncio._get_running_loop():
            raise RuntimeError(f"{agent} is async and needs a thread without an event loop")
        return ToolSpec(
            "child",
            partial(self._await, runner),
            "retry",
            raises=(ChildFailedError,),
            waits=True,
            child_id=partial(child_run_id, self._run.run_id, agent),
            acts=runner.agent_fn,
        ), ((agent, task, name), {})

    def _await(
        self, runner: Runner[Any], run: Execution, call: Call
    ) -> Generator[Effect, Any, Any]:
        """Carry out the call: run the child to its end, and return its result."""
        _, task, _ = call.args
        child = self._id_of(call)
        known = self._started.get((call.lsn, child), 0), self._asked.get(call.lsn, 0)
        yield Commit()
        self._begun.add(call.lsn)
        session = self.sessions[call.lsn] = ChildSession(run, self.places, call, child, known)
        session.subject = run.subjects.of_call(call.lsn)
        scope = Scope(run, call_scope(call.lsn), call)
        try:
            act = _lived if run.is_async else _lived_sync
            ended = yield Invoke(act, (runner, task, session), {}, scope)
            return ended["result"]
        except Exception as exc:
            if isinstance(exc, _ENDED) and exc.run_id == child:
                raise _failed(child, exc) from exc
            if run.subjects.of_call(call.lsn) and not isinstance(exc, RecoveryError):
                hidden = RecoveryError(f"{type(exc).__name__}: {SEALED_TEXT}")
                hidden.__cause__, exc = exc, hidden
            self._parked[call.lsn] = child, exc
        finally:
            del self.sessions[call.lsn]
            self._started[call.lsn, child] = session.started
            self.places.leave(session.place)
        yield from self._others(run)
        run.record(RunParked(list(self._parked)))
        wake = [
            error.wake_at
            for _, error in self._parked.values()
            if isinstance(error, ParkedError) and error.wake_at is not None
        ]
        run.stop(ChildParkedError(run.run_id, list(self._parked.values()), min(wake, default=None)))

    def _others(self, run: Execution) -> Generator[Sleep, None, None]:
        """Let all other calls of the run end, and the code that waits for them continue."""
        run.waiting += 1
        pause, due_s = POLL_S, None
        try:
            while True:
                yield Sleep(pause, due_s)
                if self._over:
                    raise asyncio.CancelledError
                run.check()
                if run.idle():
                    return
                pause, due_s = min(2 * pause, POLL_MAX_S), math.inf
        finally:
            run.waiting -= 1

    def note_retry(self, call: int, lsn: int) -> None:
        """Note that record ``lsn`` retries a failed call: so is the failed call in its child."""
        self._asked[call] = lsn

    def any_in(self, scope: Scope) -> bool:
        """Whether a call of this scope awaits a child."""
        return any(one.call.step == scope.path for one in list(self.sessions.values()))

    def idle(self) -> int:
        """The number of children that only wait for an event outside them."""
        return sum(session.idle() for session in list(self.sessions.values()))

    def cancelled(self, call: Call) -> None:
        """Cancel the child of a call that the agent cancelled, as is recorded."""
        self._parked.pop(call.lsn, None)
        if call.lsn in self._begun:
            # Invariant: the agent sees a cancelled child only if it cancels it again on replay.
            self._run.commit()
            self.cancel_child(call)

    def cancel_child(self, call: Call) -> None:
        """End the child that this call has started, unless it has ended."""
        parent, child = self._run.run_id, self._id_of(call)
        with suppress(RecoveryError):  # it has just ended, or never began
            cancel(self._run.store, child, who=f"run {parent}", why="it awaits it no longer")

    def _id_of(self, call: Call) -> str:
        return child_run_id(self._run.run_id, call.args[0], call.idempotency_key)

    # -- the end of the run

    def stop(self, error: Exception) -> None:
        """Stop the children with the run, each at its next safe point."""
        for session in list(self.sessions.values()):
            session.stop(error)

    def end(self) -> None:
        """Stop the children after the agent function has ended. They can be resumed."""
        self._over = True
        for session in list(self.sessions.values()):
            session.stop(
                StoppedError(session.run_id, f"run {self._run.run_id!r} does not await it")
            )

    def cancel_all(self) -> None:
        """Cancel the tasks of children that did not stop in time."""
        for session in list(self.sessions.values()):
            if session.task is not None:
                session.task.cancel()


def _failed(child: str, exc: RunFailedError | RunCancelledError | RunUndoneError) -> Exception:
    """The outcome of the call for a child that has ended without a result."""
    if isinstance(exc, RunFailedError):
        return ChildFailedError(
            child, exc.type_name, exc.message[:TEXT_MAX], exc.traceback[-TEXT_MAX:], exc.call
        )
    return ChildFailedError(child, type_name(type(exc)), str(exc)[:TEXT_MAX])


async def _lived(runner: Runner[Any], task: Any, session: ChildSession) -> RunResult[Any]:
    await asyncio.shield(asyncio.wrap_future(session.place))
    session.check()
    # In a task of its own, so that the parent's task is still known as the parent's.
    session.task = asyncio.ensure_future(runner.run_session(task, session))
    ended: RunResult[Any] = await session.task
    return ended


def _lived_sync(runner: Runner[Any], task: Any, session: ChildSession) -> RunResult[Any]:
    session.place.result()
    session.check()
    return runner.run_session_sync(task, session)


# -- between the logs


def after_child_resolution(
    store: CheckpointStoreBase, log: WritableLog, history: History
) -> History:
    """The history of a run; if the child whose failure ended the run was resolved since, so is the
    run.

    The record of that becomes durable with the next commit; without it, this is found again.
    """
    child = _failed_child(store, history)
    if child is None or _is_failed(store, child):
        return history
    assert isinstance(history.ended, RunFailed)
    why = f"child run {child.run_id} goes on"
    again = CallResolved(history.ended.call, "retry", None, "child", why, by_policy=True)
    log.append(*encode(again))
    return load(log, history.run_id, store.approvers, whole=history.whole)


def _failed_child(store: CheckpointStoreBase, history: History) -> History | None:
    """The child run whose failure ended the run; None if there is none, or it is gone."""
    if not isinstance(history.ended, RunFailed):
        return None
    found = children_of((lsn, event) for lsn, _, event in history.entries)
    run_id = next((one.run_id for one in found if one.call == history.ended.call), "")
    reader = store.backend.read(run_id) if run_id else None
    if reader is None:
        return None
    with reader:
        child = load(reader, run_id, store.approvers)
    parent = ParentRun.of(child.started)
    return child if parent is not None and parent.run_id == history.run_id else None


def _is_failed(store: CheckpointStoreBase, history: History) -> bool:
    if not isinstance(history.ended, RunFailed):
        return False
    child = _failed_child(store, history)
    return child is None or _is_failed(store, child)
