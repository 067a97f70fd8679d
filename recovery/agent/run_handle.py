"""A handle for one run: what can be asked and done about it from any process."""

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
from recovery.inspect.compare import Comparison, compare
from recovery.inspect.follow import RunEvents, Until, events
from recovery.inspect.status import RunStatus, status
from recovery.journal.call import Call, Resolution
from recovery.journal.events import RunFinished
from recovery.journal.forked_from import ForkedFrom
from recovery.journal.links import ChildRun, ParentRun
from recovery.ops.fork import Changes, fork
from recovery.ops.remove import RemovedRun, remove
from recovery.stores.protocol import check_run_id

if TYPE_CHECKING:
    from recovery.approvers import Sign


class RunHandle:
    """A handle for run ``run_id``, from ``store.run(...)`` or ``agent.run(...)``.

    It holds nothing open and remembers nothing: each method looks at the run as it is now. It works
    from any process, whether the run is there yet or not, live or not. Can be used by any thread.
    What reads takes no lock and writes nothing. What blocks says so: in async code, use
    ``asyncio.to_thread``.

    Where there is no such run, every method but ``events`` and ``checkpoints`` raises
    RecoveryError. ``who`` and ``why`` are kept in the run's record.
    """

    __slots__ = ("_store", "run_id")

    def __init__(self, store: Store, run_id: str) -> None:
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

    # -- looking at it

    def status(self) -> RunStatus:
        """How it stands with the run: its state, the calls in doubt, what a recovery would do.

        Reads from the newest checkpoint on, so the cost does not grow with the run. The run may be
        damaged, and no type need be registered.
        """
        return status(self._store, self.run_id)

    def events(self, *, after: int = 0, until: Until = "ended") -> RunEvents:
        """What happens in the run, from its beginning or from behind LSN ``after``: see RunEvent.

        For ``async for`` (reading is done in a thread) and for ``for``, while the run is live and
        ever after, over all restarts of the process that runs it. ``after`` is the ``lsn`` of the
        last event seen: a client that lost its connection misses none and gets none twice.

        It ends when the run has ended and there is no more; with ``until="parked"`` also when it
        stands still, with "now" at the end of what is recorded. A run that is not there yet is
        waited for (RecoveryError with "now"). Damage is an event, and reading goes on behind it. An
        event is seen within a quarter of a second of its record, which a power loss may still take
        away.
        """
        return events(self._store, self.run_id, after=after, until=until)

    async def result(self) -> Any:
        """What the agent returned; waits for the end of the run, in whatever process it runs.

        Executes nothing: a run that nobody resumes is waited for without end. Use
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
        """How far the run's log was read, and how the run ended, if it did."""
        with reader_of(self._store, self.run_id) as reader:
            seen = reader.tail().next_lsn - 1
            return seen, ending_of(load(reader, self.run_id, self._store.approvers))

    def checkpoints(self) -> list[StoredCheckpoint]:
        """Its checkpoints, the newest first, the damaged ones too; empty without a run.

        Reads the log once and restores nothing, so it says whether what a checkpoint needs is there
        and undamaged; ``store.validate`` also computes the checksums of what is restored.
        """
        reader = self._store.backend.read(self.run_id)
        if reader is None:
            return []
        with reader:
            return stored_checkpoints(reader)

    def compare(self, other: str | RunHandle) -> Comparison:
        """Say what this run and another one of the store did differently, the first thing first.

        Compared are the task, each step's calls (those inside other calls too) with their arguments
        and outcomes, the changes of the messages, and the end. Calls are matched by what they are,
        so the order in which concurrent ones were made is no difference; nor is the time, or what
        ``run.now()`` and its like gave. Arguments that were recorded by digest differ by digest.

        The runs may be live, dead or damaged, and no type need be registered. Memory grows with the
        number of calls and messages, not with what is in them. Of a fork, what it began with is
        compared as state and messages, with those of the other run at the same step. ValueError for
        a handle of another store.
        """
        if isinstance(other, RunHandle):
            if differs := store_difference(self._store, other._store):
                raise ValueError(
                    f"the store of {other!r} {differs}: runs of one store are compared"
                )
            other = other.run_id
        return compare(self._store, self.run_id, other)

    # -- which runs belong to it

    def children(self) -> list[ChildRun]:
        """The child runs that it has started, in the order of its calls.

        Read from the run's own log; where retention has removed its beginning, also from the logs
        of all runs in the store, for those started then that are still there. Raises DamagedError
        when its log is damaged.
        """
        return children(self._store, self.run_id)

    def parent(self) -> ParentRun | None:
        """The run that started it by ``run.child``; None if none did. Raises DamagedError."""
        return parent(self._store, self.run_id)

    def lineage(self) -> list[ForkedFrom]:
        """The runs that it was forked from, the nearest first; empty if it was not forked.

        The chain ends with a run that is gone, or whose name another run has now: the last link
        still says what it was.
        """
        return lineage(self._store, self.run_id)

    # -- what it waits for

    def signal(
        self,
        name: str,
        value: Any = None,
        *,
        who: str = "",
        key: str = "",
        sign: Sign | None = None,
    ) -> None:
        """Send it signal ``name``, which its next ``wait_for(name)`` returns the value of.

        Durable when this returns, whether a process has the run or not, and whether it waits
        already or not: signals of a name are kept in the order sent, and each is taken once. A
        sender that tries again after a time-out gives both the same ``key``: then it is sent once.
        ``sign``: as for ``approve``. Blocks for a few flushes of the disk.

        Raises RecoveryError when the run has ended; RefusedValueError for a value that cannot be
        carried; ValueError when another signal was sent under this ``key``; LogLockedError when
        other senders keep the inbox for 10 seconds.
        """
        signal(self._store, self.run_id, name, value, who=who, key=key, sign=sign)

    def pending(self) -> list[Call]:
        """The calls that wait for approval, in the order in which they asked.

        What to show to whoever decides: tool, arguments, since when (``started_ns``), and what to
        give to ``approve`` or ``deny``. Calls of which the ``approval_timeout_s`` is over are not
        among them. Raises DamagedRunError.
        """
        return pending(self._store, self.run_id)

    def approve(
        self, call: Call | int | str, *, who: str = "", why: str = "", sign: Sign | None = None
    ) -> None:
        """Say yes to a call that waits for approval: as ``pending`` gives it, by its idempotency
        key, or by its LSN (which another run of that name may have by then).

        It is bound to the call's idempotency key: it never begins a call with other arguments, nor
        an equal call that is made later. Of several decisions the last one counts that is durable
        when the call is about to begin. Durable when this returns, whether a process has the run or
        not. Blocks for a few flushes. ``sign``: what signs the decision, as a store with
        ``approvers=`` asks for: ``recovery.approvers.signing_key(path)``.

        Raises RecoveryError when the call does not wait for approval (any more), its
        ``approval_timeout_s`` is over, or the decision has to be signed.
        """
        approve(self._store, self.run_id, call, who=who, why=why, sign=sign)

    def deny(
        self, call: Call | int | str, *, who: str = "", why: str = "", sign: Sign | None = None
    ) -> None:
        """Say no to a call that waits for approval: its agent gets an ApprovalDeniedError.

        As ``approve``; also after a yes, until the call has begun. RecoveryError when that has been
        too late.
        """
        deny(self._store, self.run_id, call, who=who, why=why, sign=sign)

    # -- what stopped it

    def resolve(
        self,
        call: Call | int | str,
        resolution: Resolution,
        *,
        who: str = "",
        why: str = "",
        sign: Sign | None = None,
    ) -> None:
        """Record what became of a call in doubt: ``call`` is a Call, as InDoubtError gives it, its
        idempotency key, or its LSN (which another run of that name may have by then).

        Also settles the failed call that ended the run (RunFailedError.call), or for which a graph
        stands still (GraphParkedError.call). The run goes on when it is run again. A call that was
        resolved can be resolved again until it has been executed. One made inside another can be
        resolved whatever became of that, before it or after; a retry of it is made when the call
        around it is.

        ``sign``: as for ``approve``, for a store whose approvers sign what is resolved as well.
        Durable when this returns. Raises RecoveryError when the call is not in doubt, or it has to
        be signed; LogLockedError while a process runs the run.
        """
        resolve(self._store, self.run_id, call, resolution, who=who, why=why, sign=sign)

    def retry(self, *, who: str = "", why: str = "", sign: Sign | None = None) -> int:
        """Let the call be made again by whose failure the run ended; its LSN (RunFailedError.call).

        For a tool that raised and is mended now: run the run again, and it goes on with this call,
        under the same idempotency key. ``RecoverableAgent.retry`` does both. ``sign``: as for
        ``resolve``. Durable when this returns. Raises RecoveryError for a run that has not ended by
        the failure of a call, LogLockedError while a process runs it.
        """
        return retry(self._store, self.run_id, who=who, why=why, sign=sign)

    def accept(self, *, who: str = "", why: str = "") -> None:
        """Let a run whose code diverged from its record (DivergenceError) go on with the new code.

        At the next divergence the run does not stop: what is recorded and was not done again is
        waited for no more, and from there on the new code's history counts. What the dropped calls
        did in the outside world stays done, and one that the new code makes in the same way is
        served from the record; another (with other arguments, say) is a new call: read the
        DivergenceError first. A dropped side effect that is in doubt has to be resolved before.
        Holds for one divergence.

        Where the run stopped because its inbox is gone, or is another one, it goes on without what
        was in that, and nothing else is accepted.

        Durable when this returns. Raises RecoveryError for a run that has ended; LogLockedError
        while a process runs it.
        """
        accept(self._store, self.run_id, who=who, why=why)

    # -- ending it, and beginning another from it

    def cancel(self, *, who: str = "", why: str = "", sign: Sign | None = None) -> None:
        """End the run: it cannot be resumed, and running it again raises RunCancelledError.

        Its child runs end with it. A run that no process has is ended when this returns. In a live
        one it is durable that it is to end: it does at the next thing that its agent does (a call,
        a step, while it waits, its end), a fifth of a second later at most; a tool at work is not
        interrupted. Whether a call in doubt took effect stays unknown; the error names it.
        ``sign``: as for ``approve``; a run that no process has is ended without. RecoveryError when
        the run has ended.
        """
        cancel(self._store, self.run_id, who=who, why=why, sign=sign)

    def undo(
        self, *, tools: Iterable[Callable[..., Any]], who: str = "", why: str = ""
    ) -> list[dict[str, Any]]:
        """Give the run up and undo its calls, whether it finished, failed, parked or crashed.

        ``tools`` are those that the run has called, each with its ``undo=``. What ``run.undo()`` in
        the agent has undone is not undone again. The run cannot be resumed afterwards. Returns what
        was undone, newest call first: dicts of call (LSN), tool, call_id and result (of the
        compensation).

        Call it again to go on after a crash, an InDoubtError (resolve the call first) or an
        UndoError (a compensation failed; it is tried again). A second call for an undone run
        returns the same and executes nothing. Raises RecoveryError, before anything is executed,
        for a tool that is not among ``tools``; LogLockedError while a process has the run. Durable
        when it returns. Blocks.
        """
        return undo(self._store, self.run_id, tools=tools, who=who, why=why)

    def fork(
        self, new_run_id: str, *, at_step: int | None = None, **changes: Unpack[Changes]
    ) -> RunHandle:
        """Make run ``new_run_id``, which is as this run was at the end of step ``at_step``.

        0 is the moment before the first step, None all that is recorded so far, the step under way
        included. Run it like any run: what was recorded is served from its own log, and nothing of
        it is executed again. It shares nothing with this run, which is only read, and may be live,
        parked, failed or finished. A call in doubt is in doubt in the fork too, under the same
        idempotency key; calls that the fork makes anew have keys of its own.

        ``changes``: ``task=``, ``state=`` and ``messages=`` replace what the run had at the end of
        that step; ``who=`` and ``why=`` are kept in the fork's record. Where there is no
        checkpoint, ``state=`` is needed for the others (``task=`` alone: also step 0). With another
        task, calls before the first step are served where they are the same, else new.

        Durable when this returns. A crash before leaves a run that cannot be run; calling it again
        with the same arguments finishes it. Raises RecoveryError when there is no such step, or
        ``new_run_id`` exists; DamagedRunError; RefusedValueError for what cannot be carried.
        """
        fork(self._store, self.run_id, new_run_id, at_step=at_step, **changes)
        return RunHandle(self._store, new_run_id)

    def remove(
        self, *, force: bool = False, children: bool = False, dry_run: bool = False
    ) -> list[RemovedRun]:
        """Delete the run for good; with ``children`` the runs that it has started, and they others.

        Nothing remembers a removed run: one that begins under its id executes everything anew. Of a
        run that has not ended, or is damaged, this is refused without ``force``; of a child always,
        while its parent may still need it.

        Gone for good when this returns. After a crash each run is there, whole, or gone, a parent
        before its children. ``dry_run`` removes nothing and returns what would be removed; the run
        itself comes first. Raises RecoveryError when it is refused, LogLockedError while a process
        has the run, LogError when other things are in its directory.
        """
        return remove(self._store, self.run_id, force=force, children=children, dry_run=dry_run)
