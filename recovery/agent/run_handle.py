"""Provides RunHandle: reads and controls one run from any process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Unpack

from recovery.agent.ending import ending_of
from recovery.agent.undo_run import undo
from recovery.control.cancel import cancel
from recovery.control.relatives import children, lineage, parent
from recovery.control.resolve import accept, resolve, retry
from recovery.control.send import approve, deny, pending, signal
from recovery.history.find_run import Store, reader_of, store_difference, store_of
from recovery.history.inventory import StoredCheckpoint, stored_checkpoints
from recovery.history.load import load
from recovery.inspect.calls_without_outcome import OpenCall
from recovery.inspect.compare import Comparison, compare
from recovery.inspect.follow import RunEvents, Until, events
from recovery.inspect.status import RunStatus, status
from recovery.journal.call import Call, Resolution
from recovery.journal.events import RunFinished
from recovery.journal.forked_from import ForkedFrom
from recovery.journal.related_runs import ChildRun, ParentRun
from recovery.ops.fork import Changes, fork
from recovery.ops.remove import RemovedRun, remove
from recovery.stores.protocol import check_run_id

if TYPE_CHECKING:
    from recovery.approvers import Sign
    from recovery.history.signed_resolutions import Attribution


class RunHandle:
    """A handle for run ``run_id``, from ``store.run(...)`` or ``agent.run(...)``.

    It holds nothing open and remembers nothing: each method reads the run as it is now. It works
    from any process, whether the run exists yet or not, live or not. Any thread may use it. Methods
    that read take no lock and write nothing. Methods that block say so: in async code, use
    ``asyncio.to_thread``.

    Where there is no such run, every method but ``events`` and ``checkpoints`` raises
    RecoveryError. ``who`` and ``why`` ("") are kept in the run's record. ``sign`` (None): a
    function that signs the decision, where the store has ``approvers=``.
    """

    __slots__ = ("_store", "run_id")

    def __init__(self, store: Store, run_id: str) -> None:
        """Not for users: call ``store.run``."""
        self._store = store_of(store)
        self.run_id = check_run_id(run_id)

    def __repr__(self) -> str:
        return f"RunHandle({self.run_id!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RunHandle):
            return NotImplemented
        same = self.run_id == other.run_id
        return same and not store_difference(self._store, other._store)

    def __hash__(self) -> int:
        return hash(self.run_id)

    # -- reading it

    def status(self) -> RunStatus:
        """The status of the run: its state, the calls in doubt, what a recovery would do.

        Reads from the newest checkpoint on, so the cost does not grow with the run. The run may be
        damaged, and no type need be registered.
        """
        return status(self._store, self.run_id)

    def events(self, *, after: int = 0, until: Until = "ended") -> RunEvents:
        """The events of the run, from its beginning or after LSN ``after``: see RunEvent.

        For ``async for`` (reading is done in a thread) and for ``for``. It works while the run is
        live and afterwards, over all restarts of its process. ``after`` is the ``lsn`` of the last
        event seen: a client that lost its connection misses none and gets none twice.

        The iterator ends after the end of the run; with ``until="parked"`` also when the run is
        parked, with "now" at the end of the log. It waits for a run that does not exist yet
        (RecoveryError with "now"). Damage is an event, and reading continues after it. An event
        comes within a quarter of a second of its record, which a power loss may still take away.
        """
        return events(self._store, self.run_id, after=after, until=until)

    async def result(self) -> Any:
        """The agent's result; waits for the end of the run, in any process.

        Executes nothing: if no process resumes the run, this waits without end. Use
        ``asyncio.timeout`` for a limit. Reading is done in threads. Raises, as running it again
        would: RunFailedError, RunCancelledError, RunUndoneError; DamagedRunError,
        UnreadableValueError.
        """
        while True:
            seen, ended = await asyncio.to_thread(self._end)
            if ended is not None:
                return ended.result
            async for _ in events(self._store, self.run_id, after=seen):
                pass

    def result_sync(self) -> Any:
        """``result`` without an event loop. Blocks until the run has ended."""
        while True:
            seen, ended = self._end()
            if ended is not None:
                return ended.result
            for _ in events(self._store, self.run_id, after=seen):
                pass

    def _end(self) -> tuple[int, RunFinished | None]:
        """The last LSN that was read, and the end of the run, if it has ended."""
        with reader_of(self._store, self.run_id) as reader:
            seen = reader.tail().next_lsn - 1
            return seen, ending_of(load(reader, self.run_id, self._store.approvers))

    def checkpoints(self) -> list[StoredCheckpoint]:
        """Its checkpoints, the newest first, the damaged ones too; empty without a run.

        Reads the log once and restores nothing: it checks that the records of a checkpoint are
        there and undamaged. ``store.validate`` also computes the checksums of restored values.
        """
        reader = self._store.backend.read(self.run_id)
        if reader is None:
            return []
        with reader:
            return stored_checkpoints(reader)

    def compare(self, other: str | RunHandle) -> Comparison:
        """Compare this run with run ``other`` of the store: their differences, the first one first.

        Compares the task, each step's calls (those inside other calls too) with their arguments and
        outcomes, the changes of the messages, and the end. Calls are matched by identity, so the
        order of concurrent calls is no difference; nor are times, or values of ``run.now()`` and
        its like. Arguments that were recorded by digest differ by digest.

        The runs may be live, dead or damaged, and no type need be registered. Memory grows with the
        number of calls and messages, not with their size. The state and messages with which a fork
        began are compared with those of the other run at the same step. ValueError for a handle of
        another store.
        """
        if isinstance(other, RunHandle):
            if differs := store_difference(self._store, other._store):
                raise ValueError(
                    f"the store of {other!r} {differs}: runs of one store are compared"
                )
            other = other.run_id
        return compare(self._store, self.run_id, other)

    # -- related runs

    def children(self) -> list[ChildRun]:
        """The child runs that it has started, in the order of its calls.

        Read from the run's own log. If retention has removed its beginning, the logs of all runs in
        the store are read too, for children that are still there. Raises DamagedError when its log
        is damaged.
        """
        return children(self._store, self.run_id)

    def parent(self) -> ParentRun | None:
        """The run that started it by ``run.child``; None if none did. Raises DamagedError."""
        return parent(self._store, self.run_id)

    def lineage(self) -> list[ForkedFrom]:
        """The runs that it was forked from, the nearest first; empty if it was not forked.

        The chain ends with a run that is gone, or whose name another run has now: the last link
        still names it.
        """
        return lineage(self._store, self.run_id)

    # -- sending to it

    def signal(
        self,
        name: str,
        value: Any = None,
        *,
        who: str = "",
        key: str = "",
        sign: Sign | None = None,
    ) -> None:
        """Send it signal ``name``; its next ``wait_for(name)`` returns ``value``.

        Durable when this returns, whether a process owns the run or not, and whether it waits
        already or not. Signals of a name are kept in the order sent, and each is taken once. If a
        sender tries again with the same ``key``, the signal is sent once, also when the run has
        ended since.
        ``sign``: as for ``approve``. Blocks for a few flushes of the disk.

        Raises RecoveryError when the run has ended; RefusedValueError for a value that cannot be
        carried; ValueError when another signal was sent under this ``key``; LogLockedError when
        other senders hold the inbox for 10 seconds.
        """
        signal(self._store, self.run_id, name, value, who=who, key=key, sign=sign)

    def pending(self) -> list[Call]:
        """The calls that await approval, in the order of their requests.

        Each has the tool, the arguments and the time of the request (``started_ns``) to show to a
        person. Give it to ``approve`` or ``deny``. Calls whose ``approval_timeout_s`` is over are
        left out. Raises DamagedRunError.
        """
        return pending(self._store, self.run_id)

    def approve(
        self,
        call: Call | OpenCall | int | str,
        *,
        who: str = "",
        why: str = "",
        sign: Sign | None = None,
    ) -> None:
        """Approve a call that awaits approval.

        ``call``: as ``pending`` gives it, its idempotency key, or its LSN (which may be another
        call's if a new run has that name by then).

        The approval is bound to the call's idempotency key: it begins no call with other arguments,
        nor an equal call that is made later. Of several decisions, the last one counts that is
        durable when the call is about to begin. Durable when this returns, whether a process owns
        the run or not. Blocks for a few flushes. ``sign``: a function that signs the decision, for
        a store with ``approvers=``: ``recovery.approvers.signing_key(path)``.

        Raises RecoveryError when the call does not await approval (any more), its
        ``approval_timeout_s`` is over, or the decision must be signed.
        """
        approve(self._store, self.run_id, call, who=who, why=why, sign=sign)

    def deny(
        self,
        call: Call | OpenCall | int | str,
        *,
        who: str = "",
        why: str = "",
        sign: Sign | None = None,
    ) -> None:
        """Deny a call that awaits approval: its agent gets an ApprovalDeniedError. See ``approve``.

        Counts also after an approval, until the call has begun. RecoveryError when it is
        too late.
        """
        deny(self._store, self.run_id, call, who=who, why=why, sign=sign)

    # -- resolving what stopped it

    def resolve(
        self,
        call: Call | OpenCall | int | str,
        resolution: Resolution,
        *,
        who: str = "",
        why: str = "",
        sign: Sign | None = None,
        force: bool = False,
    ) -> None:
        """Resolve a call in doubt.

        ``call`` is a Call or an OpenCall, as InDoubtError and ``status()`` give it, or its
        idempotency key. Or it is the LSN, which may be another call's if a new run has that name by
        then. ``resolution``: what happened, ``Resolution.outcome(value)``, ``.retry()`` or
        ``.fail(why)``.

        Also resolves the failed call that ended the run (RunFailedError.call), or for which a graph
        is parked (GraphParkedError.call). The run continues when it is resumed. A call that was
        resolved can be resolved again until it has been executed. A call inside another one can be
        resolved before or after that one; its retry is executed when the outer call is.

        After a repair, the log may have an outcome whose call is lost
        (OpenCall.unclaimed_outcomes). If it may be this call's, a retry is refused without
        ``force``: it might repeat the call. So it is while a process that had the run before may
        still execute the call (OpenCall.elsewhere).

        ``sign``: as for ``approve``, for a store whose approvers sign resolutions as well. Durable
        when this returns. Raises RecoveryError when the call is not in doubt, or the resolution
        must be signed; LogLockedError while a process runs the run.
        """
        saying: Attribution = {"who": who, "why": why, "sign": sign, "force": force}
        resolve(self._store, self.run_id, call, resolution, **saying)

    def retry(self, *, who: str = "", why: str = "", sign: Sign | None = None) -> int:
        """Retry the call whose failure ended the run; returns its LSN (RunFailedError.call).

        For a tool that raised and is repaired now: resume the run, and it continues with this call,
        under the same idempotency key. ``RecoverableAgent.retry`` does both. ``sign``: as for
        ``resolve``. Durable when this returns. Raises RecoveryError for a run that has not ended by
        the failure of a call, LogLockedError while a process runs it.
        """
        return retry(self._store, self.run_id, who=who, why=why, sign=sign)

    def accept(self, *, who: str = "", why: str = "") -> None:
        """Let a run whose code diverged from its record (DivergenceError) continue with the new
        code.

        At the next divergence the run does not stop: records that were not replayed are dropped,
        and from there on the new code's history counts. Effects of the dropped calls stay in the
        outside world. If the new code makes such a call in the same way, it is served from the
        record. Another call (with other arguments, say) is new: read the DivergenceError first. A
        dropped side effect that is in doubt must be resolved before. Holds for one divergence.

        If the run stopped because its inbox is gone, or is another one, it continues without the
        lost messages, and nothing else is accepted.

        Durable when this returns. Raises RecoveryError for a run that has ended; LogLockedError
        while a process runs it.
        """
        accept(self._store, self.run_id, who=who, why=why)

    # -- ending it, and forking it

    def cancel(self, *, who: str = "", why: str = "", sign: Sign | None = None) -> None:
        """End the run: it cannot be resumed, and running it again raises RunCancelledError.

        Its child runs end with it. A run that no process owns has ended when this returns. For a
        live one the request is durable. The run ends at its agent's next action (a call, a step, a
        wait, its end), a fifth of a second later at most. A tool in execution is not interrupted.
        Whether a call in doubt took effect stays unknown; the error names it. ``sign``: as for
        ``approve``; a run that no process owns needs none. RecoveryError when the run has ended.
        After a crash call it again: if the run was cancelled, it ends the child runs that are left.
        """
        cancel(self._store, self.run_id, who=who, why=why, sign=sign)

    def undo(
        self, *, tools: Iterable[Callable[..., Any]], who: str = "", why: str = ""
    ) -> list[dict[str, Any]]:
        """Abort the run and undo its calls, whether it finished, failed, parked or crashed.

        ``tools`` are those that the run has called, each with its ``undo=``. Calls that
        ``run.undo()`` in the agent has undone are not undone again. The run cannot be resumed
        afterwards. Returns the undone calls, newest first: dicts of call (LSN), tool, call_id and
        result (of the compensation).

        Call it again to continue after a crash, an InDoubtError (resolve the call first) or an
        UndoError (a compensation failed; it is retried). A second call for an undone run returns
        the same and executes nothing. Raises RecoveryError, before anything is executed, for a tool
        that is not among ``tools``; LogLockedError while a process owns the run. Durable when it
        returns. Blocks.
        """
        return undo(self._store, self.run_id, tools=tools, who=who, why=why)

    def fork(
        self, new_run_id: str, *, at_step: int | None = None, **changes: Unpack[Changes]
    ) -> RunHandle:
        """Make run ``new_run_id``, a copy of this run as of the end of step ``at_step``.

        0 is the moment before the first step; None copies everything recorded so far, the present
        step included. Run it like any run: recorded calls are served from its own log, and none is
        executed again. It shares nothing with this run, which is only read, and may be live,
        parked, failed or finished. A call in doubt is in doubt in the fork too, under the same
        idempotency key. New calls of the fork have keys of its own.

        ``changes``: ``task=``, ``state=`` and ``messages=`` replace those of the end of that step;
        ``who=`` and ``why=`` are kept in the fork's record. Where there is no checkpoint,
        ``state=`` is needed for the others (``task=`` alone: also step 0). With another task, calls
        before the first step are served if they are the same, and new otherwise.

        Durable when this returns. A crash before leaves a run that cannot be run; calling it again
        with the same arguments finishes it. Raises RecoveryError when there is no such step, or
        ``new_run_id`` exists; DamagedRunError; RefusedValueError for values that cannot be carried.
        """
        fork(self._store, self.run_id, new_run_id, at_step=at_step, **changes)
        return RunHandle(self._store, new_run_id)

    def remove(
        self, *, force: bool = False, children: bool = False, dry_run: bool = False
    ) -> list[RemovedRun]:
        """Delete the run for good; with ``children`` also the runs that it has started, at any
        depth.

        No record of a removed run is left: a run that begins under its id executes everything
        again. Without ``force`` this is refused for a run that has not ended, or is damaged. It is
        always refused for a child that its parent may still need.

        The run is gone when this returns. After a crash each run is whole or gone, children before
        their parent: call it again. It returns [] if only files of an interrupted removal were
        left. ``dry_run`` removes nothing and returns what would be removed; the run itself comes
        first. Raises RecoveryError when it is refused, LogLockedError while a process owns the run,
        LogError when other files are in its directory.
        """
        return remove(self._store, self.run_id, force=force, children=children, dry_run=dry_run)
