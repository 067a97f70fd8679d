"""Child runs: started once by a recorded call of their parent, and never at work without it.

A child is a run of its own in the store of its parent. What ties them together: the parent's intent
names the child's run, the child's first record names that intent, and `ChildStarted` in the
parent's log says that the child has a log. Each is durable before the next one is written, and all
of them before the child executes anything. So a crash between any two leaves either no child, or
one that is taken up where it stopped; and a child whose log is gone is noticed.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from eventlog import EventLog
from recovery._checkpoint import CheckpointStore
from recovery._effects import Commit, Effect, Invoke, Nap
from recovery._errors import (
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
from recovery._events import (
    CallResolved,
    ChildStarted,
    RunFailed,
    RunParked,
    encode,
)
from recovery._family import RETRIED, ParentRun, Retries, child_run_id, children_of
from recovery._history import Entry, History, load
from recovery._keys import call_scope
from recovery._outside import cancel
from recovery._relatives import is_child
from recovery._stopping import Life
from recovery._tool import Arguments, Call, Scope, ToolSpec, function_name, is_async

if TYPE_CHECKING:
    from recovery._core import RunCore
    from recovery._report import RunResult

# How often a call whose child stands still looks whether all others have got to their end: at
# first, and at last.
POLL_S, POLL_MAX_S = 0.01, 0.5
_ENDED = (RunFailedError, RunCancelledError, RunUndoneError)
TEXT_MAX = 4000  # characters of a child's error message and traceback in its parent's log


class Runner(Protocol):
    """What runs a child: a RecoverableAgent."""

    agent_fn: Callable[[Any], Any]
    store: CheckpointStore

    def live(self, task: Any, life: Life) -> Awaitable[RunResult[Any]]: ...

    def live_sync(self, task: Any, life: Life) -> RunResult[Any]: ...


class Places:
    """How many children of a tree of runs are at work at once, at one depth of the tree.

    Those of one depth wait for those of the next and never for each other, so nobody waits for a
    place whose holder waits for him. Thread-safe, and safe in signal handlers.
    """

    def __init__(self, limit: int) -> None:
        self._limit = self._free = limit
        self._waiting: deque[Future[bool]] = deque()
        self._mutex = threading.RLock()
        self._below: Places | None = None

    def below(self) -> Places:
        """The places for the children of these."""
        with self._mutex:
            self._below = self._below or Places(self._limit)
            return self._below

    def ask(self) -> Future[bool]:
        """A place, when the future is done; in the order of asking."""
        place: Future[bool] = Future()
        with self._mutex:
            if self._free:
                self._free -= 1
                place.set_result(True)
            else:
                self._waiting.append(place)
        return place

    def withdraw(self, place: Future[bool]) -> None:
        """Wait for it no longer, if it is still waited for."""
        with self._mutex:
            if not place.done():
                self._waiting.remove(place)
                place.set_result(False)

    def leave(self, place: Future[bool]) -> None:
        """Make room for the next one, if this one has got its place."""
        with self._mutex:
            self.withdraw(place)
            if not place.result():
                return
            if self._waiting:
                self._waiting.popleft().set_result(True)
            else:
                self._free += 1


class ChildLife(Life):
    """One going of a child run in this process.

    ``started`` and ``asked``: the LSNs, in the parent's log, of the record that the child has a
    log, and of somebody's decision that the call is to be made again; 0 without one.
    """

    def __init__(self, of: RunCore, call: Call, run_id: str, known: tuple[int, int]) -> None:
        super().__init__(run_id)
        self.of, self.call, self.parent = of, call, ParentRun(of.run_id, of.uid, call.lsn)
        self.started, self.asked = known
        self.place = of.children.places.ask()
        self.task: asyncio.Task[Any] | None = None

    def begin(self, run: RunCore) -> None:
        """See Life.begin."""
        run.children.places = self.of.children.places.below()
        run.inbox.above = self.look
        super().begin(run)

    def idle(self) -> bool:
        """Whether the run is at work and only waits for something outside."""
        return self._run is not None and self._run.in_flight > 0 and self._run.idle()

    def stop(self, error: Exception) -> None:
        """See Life.stop. One that waits for a place does not wait any longer."""
        super().stop(error)
        self.of.children.places.withdraw(self.place)

    def look(self) -> None:
        """What has come for the parent, while it awaits this one. When it stops, so does this."""
        with self.of.mutex, suppress(Stop):
            if self.of.stopped is None:
                self.of.inbox.look()
        if self.of.stopped is not None:
            self.stop(StoppedError(self.run_id, f"run {self.of.run_id!r} stops"))

    def claim(self, store: CheckpointStore, takeover: bool) -> EventLog:
        """See Life.claim. A log that was there and is gone is not begun anew."""
        if self.started > self.asked:
            reader = store.backend.read(self.run_id)
            if reader is None:
                raise self._lost()
            reader.close()
        return super().claim(store, takeover)

    def meet(self, log: EventLog, history: History) -> History:
        """See Life.meet. That the run is this call's child, and may go on."""
        if history.started is None:
            if self.started > self.asked:
                raise self._lost()
            return history
        parent = ParentRun.of(history.started)
        losses = self.of.replay.losses
        if parent is not None and losses is not None and losses.hold(parent.lsn):
            # The same call (its key makes the run id), whose intent was lost and is made again.
            parent = replace(parent, lsn=self.call.lsn)
        if parent != self.parent:
            raise RecoveryError(
                f"run {self.run_id!r} is there and is no child of call {self.call.lsn} of run "
                f"{self.of.run_id!r}, but {f'of {parent}' if parent else 'of nobody'}. Nothing was "
                "executed. Move it away, or run the parent under another run_id."
            )
        return self._retried(log, history)

    def _retried(self, log: EventLog, history: History) -> History:
        """Whoever has the failed call of the parent made again means the failed call in here."""
        ended = history.ended
        if not (self.asked and isinstance(ended, RunFailed) and ended.call):
            return history
        who, why = f"run {self.of.run_id}", f"{RETRIED}{self.asked}"
        retries = history.tallies[Retries.name]
        assert isinstance(retries, Retries)
        if retries.newest == (who, why):  # once: should it fail again, that is another failure
            return history
        log.append(*encode(CallResolved(ended.call, "retry", None, who, why)))
        log.commit()
        return load(log, self.run_id)

    def born(self, log: EventLog) -> None:
        """The child has a log. Durable, in both logs, when this returns."""
        if not self.started:
            log.commit()
            with self.of.mutex:
                self.started = self.of.emit(ChildStarted(self.call.lsn, self.run_id))
            self.of.commit()

    def _lost(self) -> RecoveryError:
        parent, key = self.of.run_id, self.call.idempotency_key
        return RecoveryError(
            f"child run {self.run_id!r} of run {parent!r} was started (LSN {self.started} there) "
            "and its log is gone. Nothing was executed: what it has done is not known. Put the log "
            f"back; or say what became of it: recovery.resolve(store, {parent!r}, {key!r}, "
            "Resolution.outcome(value) | .fail(reason), or .retry() to start it over)."
        )


class Children:
    """The children of one execution of a run. ``runner`` is what runs an agent, given options."""

    runner: Callable[[Any, Mapping[str, Any]], Runner]

    def __init__(self, run: RunCore, entries: list[Entry]) -> None:
        self._run = run
        self.lives: dict[int, ChildLife] = {}  # by the LSN of the call
        self._begun: set[int] = set()  # LSNs of calls
        self.places = Places(run.settings.max_children)
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
        agent_fn: Callable[[Any], Any] | Runner,
        task: Any,
        name: str,
        options: Mapping[str, Any],
    ) -> tuple[ToolSpec, Arguments]:
        """How a call that starts a run of this agent is recorded, and its arguments."""
        runner = self.runner(agent_fn, options)
        agent = function_name(runner.agent_fn)
        if not self._run.is_async and is_async(runner.agent_fn) and asyncio._get_running_loop():
            raise RuntimeError(f"{agent} is async and needs a thread without an event loop")
        return ToolSpec(
            "child", partial(self._await, runner), "retry", raises=(ChildFailedError,), waits=True,
            child_id=partial(child_run_id, self._run.run_id, agent), acts=runner.agent_fn,
        ), ((agent, task, name), {})  # fmt: skip

    def _await(self, runner: Runner, run: RunCore, call: Call) -> Generator[Effect, Any, Any]:
        """The call: the child's result, whatever it takes."""
        _, task, _ = call.args
        child = self._id_of(call)
        known = self._started.get((call.lsn, child), 0), self._asked.get(call.lsn, 0)
        yield Commit()
        self._begun.add(call.lsn)
        life = self.lives[call.lsn] = ChildLife(run, call, child, known)
        scope = Scope(run, call_scope(call.lsn), call)
        try:
            act = _lived if run.is_async else _lived_sync
            ended = yield Invoke(act, (runner, task, life), {}, scope)
            return ended["result"]
        except Exception as exc:
            if isinstance(exc, _ENDED) and exc.run_id == child:
                raise _failed(child, exc) from exc
            self._parked[call.lsn] = child, exc
        finally:
            del self.lives[call.lsn]
            self._started[call.lsn, child] = life.started
            self.places.leave(life.place)
        yield from self._others(run)
        run.emit(RunParked(list(self._parked)))
        wake = [error.wake_at for _, error in self._parked.values()
                if isinstance(error, ParkedError) and error.wake_at is not None]  # fmt: skip
        run.stop(ChildParkedError(run.run_id, list(self._parked.values()), min(wake, default=None)))

    def _others(self, run: RunCore) -> Generator[Nap, None, None]:
        """Let all other calls of the run get to their end, and what waits for them go on."""
        run.waiting += 1
        pause = POLL_S
        try:
            while True:
                yield Nap(pause, math.inf)
                if self._over:
                    raise asyncio.CancelledError
                run.check()
                if run.idle():
                    return
                pause = min(2 * pause, POLL_MAX_S)
        finally:
            run.waiting -= 1

    def asked(self, call: int, lsn: int) -> None:
        """A failed call is to be made again, says record ``lsn``: so is what failed in its run."""
        self._asked[call] = lsn

    def idle(self) -> int:
        """How many only wait for something outside."""
        return sum(life.idle() for life in self.lives.values())

    def cancelled(self, call: Call) -> None:
        """It is recorded that the agent has cancelled a call and went on: a child, if it awaited
        one, ends for good."""
        self._parked.pop(call.lsn, None)
        if call.lsn in self._begun:
            # Invariant: the agent sees a cancelled child only if it cancels it again on replay.
            self._run.commit()
            self.end_for_good(call)

    def end_for_good(self, call: Call) -> None:
        """End the child that this call has started, unless it has ended."""
        parent, child = self._run.run_id, self._id_of(call)
        with suppress(RecoveryError):  # it has ended just now, or never begun
            cancel(self._run.store, child, who=f"run {parent}", why="it awaits it no longer")

    def _id_of(self, call: Call) -> str:
        return child_run_id(self._run.run_id, call.args[0], call.idempotency_key)

    # -- the end of the run

    def stop(self, error: Exception) -> None:
        """The run is to stop: so are they, each at its next safe point."""
        for life in list(self.lives.values()):
            life.stop(error)

    def end(self) -> None:
        """The agent function has ended: no child goes on without it. They can be resumed."""
        self._over = True
        for life in list(self.lives.values()):
            life.stop(StoppedError(life.run_id, f"run {self._run.run_id!r} does not await it"))

    def cut(self) -> None:
        """Those that did not stop in time are cancelled, as far as they can be."""
        for life in list(self.lives.values()):
            if life.task is not None:
                life.task.cancel()


def _failed(child: str, exc: RunFailedError | RunCancelledError | RunUndoneError) -> Exception:
    """The outcome of the call for a child that has ended without a result."""
    if isinstance(exc, RunFailedError):
        return ChildFailedError(
            child, exc.type_name, exc.message[:TEXT_MAX], exc.traceback[-TEXT_MAX:], exc.call
        )
    kind = type(exc)
    return ChildFailedError(child, f"{kind.__module__}.{kind.__qualname__}", str(exc)[:TEXT_MAX])


async def _lived(runner: Runner, task: Any, life: ChildLife) -> RunResult[Any]:
    await asyncio.shield(asyncio.wrap_future(life.place))
    life.check()
    # In a task of its own, so that the parent's task is still known as the parent's.
    life.task = asyncio.ensure_future(runner.live(task, life))
    ended: RunResult[Any] = await life.task
    return ended


def _lived_sync(runner: Runner, task: Any, life: ChildLife) -> RunResult[Any]:
    life.place.result()
    life.check()
    return runner.live_sync(task, life)


# -- between the logs


def settled_since(store: CheckpointStore, log: EventLog, history: History) -> History:
    """The history of a run, which goes on if the child whose failure ended it does."""
    child = _failed_child(store, history)
    if not child or _is_failed(store, child):
        return history
    assert isinstance(history.ended, RunFailed)
    why = f"child run {child} goes on"
    log.append(*encode(CallResolved(history.ended.call, "retry", None, "child", why)))
    log.commit()
    return load(log, history.run_id)


def _failed_child(store: CheckpointStore, history: History) -> str:
    """The child run whose failure ended the run; empty if it was none."""
    if not isinstance(history.ended, RunFailed):
        return ""
    found = children_of((lsn, event) for lsn, _, event in history.entries)
    child = next((one.run_id for one in found if one.call == history.ended.call), "")
    return child if child and is_child(store, child, history.run_id) else ""


def _is_failed(store: CheckpointStore, run_id: str) -> bool:
    reader = store.backend.read(run_id)
    if reader is None:
        return True  # and gone: the failure stands
    with reader:
        history = load(reader, run_id)
    if not isinstance(history.ended, RunFailed):
        return False
    child = _failed_child(store, history)
    return not child or _is_failed(store, child)
