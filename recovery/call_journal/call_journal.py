"""The journal of calls that a foreign loop holds: a context manager for one process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, NoReturn, ParamSpec, Self, TypeVar, overload

from recovery.agent.begin_run import begin
from recovery.agent.checkpoint_store import CheckpointStore
from recovery.agent.run import Run, SyncRun, execution_of
from recovery.call_journal.finished_call import FinishedCall
from recovery.call_journal.journal_execution import JournalExecution
from recovery.calls.in_doubt import resolve_covered
from recovery.declare.scope import current_call
from recovery.declare.settings import Settings
from recovery.declare.spec import AfterCrash, spec_to_call
from recovery.engine.event_listener import listen
from recovery.engine.run_session import RunSession
from recovery.errors import RecoveryError, Stop
from recovery.history.checkpoint_store_base import CheckpointStoreBase
from recovery.history.load import History, load
from recovery.journal.call import Call
from recovery.journal.events import RunFinished
from recovery.journal.messages import Messages
from recovery.journal.related_runs import CALL_JOURNAL, CONVERSATION, ParentRun
from recovery.replay.call_view import recorded_call_view
from recovery.stores.protocol import RunStore

P = ParamSpec("P")
R = TypeVar("R")


class CallJournal:
    """Records the calls of a loop with checkpoints of its own, so that none is made twice.

    For a loop that an agent function cannot be: a framework that saves its state and resumes in the
    middle. Before a call is executed, its intent is durable; before the loop has the outcome, that
    is durable too. After a crash the loop resumes from its checkpoint and makes its calls again, in
    any order. A call that has an outcome is served, and not executed.

    One process has it open at a time (LogLockedError), until it leaves the ``with`` block or dies.
    Methods may be called from any thread and event loop.

    Args:
        store: A CheckpointStore, a RunStore or a path; None for the store of ``parent``.
        run_id: Names the journal in the store.
        known: The ids of all calls whose outcome the loop's checkpoint holds. They are forgotten,
            and the other outcomes answer equal calls whatever their id, once each. A model that is
            asked again gives its calls other ids. None (the default): the loop does not say, and an
            outcome answers its own id.
        after_crash: Decides about calls in doubt, for all tools or by the name of the tool. None:
            the tools decide.
        park_after_s: A journal in which all calls wait for approvals for so many seconds stops
            (WaitingError). None (the default) waits.
        parent: The run that this journal is a part of; ``recovery gc`` keeps the journal while that
            run may be resumed. None (the default): of no run.

    What stops the journal (a call in doubt, a full disk) goes through the loop as a ``Stop``. That
    is no Exception, so that no tool handler makes a result of it. No further call is executed. The
    ``with`` block raises the error itself: InDoubtError, an OSError of the disk, and so on.

    Raises RecoveryError when the run is not a journal; DamagedRunError when records are lost.
    """

    def __init__(
        self,
        store: CheckpointStore | RunStore | str | os.PathLike[str] | None,
        run_id: str,
        *,
        known: Iterable[str] | None = None,
        after_crash: AfterCrash | Mapping[str, AfterCrash] | None = None,
        park_after_s: float | None = None,
        parent: Run | SyncRun | None = None,
    ) -> None:
        settings = Settings(
            None, after_crash=after_crash, park_after_s=park_after_s, check_locals=False
        )
        self.run_id = run_id
        session, of = RunSession(run_id), _store_of(store, parent)
        if parent is not None:
            call, above = current_call(), execution_of(parent)
            lsn = call.lsn if call is not None else 0
            session.parent = ParentRun(parent.run_id, above.uid, lsn)
            session.subject = above.subjects.of_call(lsn) or above.subjects.run
        self._log = session.claim(of, takeover=False)
        try:
            history = load(self._log, run_id, of.approvers)
            _check(run_id, history)
            listen(history, of.backend, None)
            history.subjects.open(run_id, of.backend)
            begin(of, None, self._log, history, session, CALL_JOURNAL)
            self._run = JournalExecution(self._log, history, of, settings)
            history.entries = []
            session.attach(self._run)
            resolve_covered(self._run)
            if known is not None:
                self.resume(known)
        except Stop as stop:
            self._log.close()
            raise stop.error from stop.error.__cause__
        except BaseException:
            self._log.close()
            raise

    @overload
    async def call(
        self,
        function: Callable[..., Awaitable[R]],
        /,
        *args: Any,
        call_id: str = "",
        **kwargs: Any,
    ) -> R: ...
    @overload
    async def call(
        self, function: Callable[..., R], /, *args: Any, call_id: str = "", **kwargs: Any
    ) -> R: ...
    async def call(
        self, function: Callable[..., Any], /, *args: Any, call_id: str = "", **kwargs: Any
    ) -> Any:
        """Call a function or ``@tool``, async or plain (in a thread), or serve what is recorded.

        What it returns, or raises, is recorded. ``call_id`` is the model's id of the call. A call
        of the same tool, id and arguments is the same call. While it is in flight, it is waited
        for. Once it has returned, its result is served; after a failure it is made again. Without
        an id, equal calls are calls of their own; after a crash each takes one outcome.

        ``function``: its policies are those of ``@tool``; one that is no tool is a side effect.
        ``*args``, ``**kwargs``: its arguments. They and the result must be values that can be
        recorded (RefusedValueError).
        """
        self._check_open()
        return await self._run.perform_async(spec_to_call(function), (args, kwargs), call_id)

    @overload
    def call_sync(
        self,
        function: Callable[..., Awaitable[R]],
        /,
        *args: Any,
        call_id: str = "",
        **kwargs: Any,
    ) -> R: ...
    @overload
    def call_sync(
        self, function: Callable[..., R], /, *args: Any, call_id: str = "", **kwargs: Any
    ) -> R: ...
    def call_sync(
        self, function: Callable[..., Any], /, *args: Any, call_id: str = "", **kwargs: Any
    ) -> Any:
        """``call`` from plain code, in the present thread (an async function gets a loop)."""
        self._check_open()
        return self._run.perform_sync(spec_to_call(function), (args, kwargs), call_id)

    def start(
        self, function: Callable[..., Any], /, *args: Any, call_id: str = "", **kwargs: Any
    ) -> Any:
        """``call_sync`` for a loop that awaits what its tools return, if they return an awaitable.

        ``function`` is called now, in the present thread, with ``*args`` and ``**kwargs``. If it
        returns an awaitable, so does this; the event loop that awaits it awaits the function's.
        ``call_id``: see ``call``.
        """
        self._check_open()
        return self._run.start(spec_to_call(function), (args, kwargs), call_id)

    def resume(self, known: Iterable[str | FinishedCall]) -> None:
        """Say which outcomes the loop's checkpoint holds, once: for a loop that reads it later.

        ``known``: the same as when the journal is opened; or the calls themselves.
        """
        self.forget(known)
        self._run.known.adopts = True

    def forget(self, ids: Iterable[str | FinishedCall] | None = None) -> int:
        """Forget outcomes that the loop's checkpoint holds; how many there were.

        To be called after each save. ``ids``: of calls with these ids, or of these calls; None: of
        all calls that have an outcome. Pass ids where calls may be in flight while the checkpoint
        is saved.

        Calls without an outcome stay. Asked for again, a forgotten call is a new one. What is
        recorded before is not read any more when the journal is opened again; the ``retention=``
        of the store says whether it is removed.
        """
        self._check_open()
        if isinstance(ids, str):
            raise TypeError(f"ids is a collection of call ids, as in [{ids!r}]; not a text")
        return self._run.forget(ids)

    def finished(self, ids: Iterable[str] | None = None) -> list[FinishedCall]:
        """Calls that are over and not forgotten, in the order in which they were made.

        For a loop that puts outcomes into its checkpoint itself. ``ids``: of calls with these ids.
        """
        self._check_open()
        return self._run.finished(ids)

    def doubt(
        self, function: Callable[..., Any], /, *args: Any, call_id: str = "", **kwargs: Any
    ) -> None:
        """Record that a call may have been made: by a process without a journal, for example.

        ``function``, ``*args``, ``**kwargs`` and ``call_id``: see ``call``. The call is in doubt
        from now on.
        """
        self._check_open()
        self._run.doubt(spec_to_call(function), (args, kwargs), call_id)

    def park(self, calls: Iterable[Call]) -> NoReturn:
        """Stop the journal until these ``calls`` in doubt are resolved (InDoubtError)."""
        self._check_open()
        with self._run.mutex, suppress(Stop):
            self._run.park(list(calls))
        self.check()
        raise AssertionError("a journal that is parked is stopped")

    @property
    def messages(self) -> Messages:
        """A list that the journal records and restores, for a loop that keeps its messages here.

        Each change is recorded. If a repair lost records, the list is empty (see ``lost``).
        """
        return self._run.messages

    def message_lsn(self, index: int) -> int:
        """The record (LSN) that holds the message at this ``index``."""
        ref = self._run.messages.refs[index]
        return ref.lsn if ref is not None else 0

    @property
    def values(self) -> Mapping[str, Any]:
        """Values that the journal restores, by name: see ``keep``."""
        return self._run.values

    def keep(self, name: str, value: Any) -> None:
        """Record a ``value``, in place of the one of this ``name``."""
        self._check_open()
        self._run.keep(name, value)

    @property
    def lost(self) -> str:
        """The records (LSNs) that a repair of the log lost; "" for none."""
        losses = self._run.replay.losses
        gaps = losses.gaps if losses is not None else ()
        return ", ".join(f"{gap.first}-{gap.last}" for gap in gaps)

    @property
    def last_lsn(self) -> int:
        """The newest record."""
        return self._log.last_lsn

    def in_doubt(self) -> list[Call]:
        """Calls that an earlier process began, and that have no outcome.

        The loop need not come to them again. To have one decided by the policy of its tool, call it
        with the ``args``, ``kwargs`` and ``call_id`` that the Call has. ``recovery resolve`` or
        ``RunHandle.resolve`` decide once the journal is closed.
        """
        return self._calls(only_in_doubt=True)

    def unfinished(self) -> list[Call]:
        """The same, and those that wait for approval, or are known to have to be made again."""
        return self._calls(only_in_doubt=False)

    def _calls(self, *, only_in_doubt: bool) -> list[Call]:
        self._check_open()
        with self._run.mutex:
            return [
                recorded_call_view(self._run, one)
                for one in self._run.known.unfinished()
                if one.in_doubt or not only_in_doubt
            ]

    def check(self) -> None:
        """Raise what has stopped the journal, if anything has: for loops that swallow a Stop."""
        if self._run.stopped is not None:
            raise self._run.stopped from self._run.stopped.__cause__

    def close(self) -> None:
        """Let go of the journal. Calls in flight are in doubt when it is opened again."""
        self._run.close()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        try:
            if kind is None and self._run.stopped is None and not self._run.is_closed:
                with suppress(Stop):  # see check
                    self._run.end()
        finally:
            self.close()
        if not isinstance(exc, KeyboardInterrupt | SystemExit | asyncio.CancelledError):
            self.check()

    def _check_open(self) -> None:
        if self._run.is_closed and self._run.stopped is None:
            raise RecoveryError(
                f"journal {self.run_id!r} is closed: nothing was executed. Open a CallJournal with "
                "this run_id"
            )


def _store_of(
    store: CheckpointStore | RunStore | str | os.PathLike[str] | None, parent: Run | SyncRun | None
) -> CheckpointStoreBase:
    if store is None:
        if parent is None:
            raise TypeError("a CallJournal needs a store: a CheckpointStore, a RunStore or a path")
        return execution_of(parent).store
    return store if isinstance(store, CheckpointStore) else CheckpointStore(store)


def _check(run_id: str, history: History) -> None:
    started, ended = history.started, history.ended
    if started is not None and started.task not in (CALL_JOURNAL, CONVERSATION):
        raise RecoveryError(
            f"run {run_id!r} is no journal of calls, but the run of an agent. Nothing was written. "
            "Use another run_id"
        )
    if ended is not None and not isinstance(ended, RunFinished):
        raise RecoveryError(
            f"journal {run_id!r} was ended ({type(ended).__name__}): nothing can be added to it. "
            "Use another run_id"
        )
