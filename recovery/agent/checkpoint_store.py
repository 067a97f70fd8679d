"""The store that users make: checkpoints to save and to load, and handles of the runs in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from recovery.history.checkpoint_store_base import CheckpointStoreBase
from recovery.option_checks import check_one_of

if TYPE_CHECKING:
    from recovery.agent.run_handle import RunHandle
    from recovery.inspect.status import RunStatus, State
    from recovery.ops.remove import RemovedRun


class CheckpointStore(CheckpointStoreBase):
    """Where runs live: saves checkpoints and loads those that verify, and gives handles of runs.

    ``storage_backend``: None keeps runs in memory, a path on disk (``~`` is expanded), and any
    RunStore where that keeps them. A context manager: a store that has saved something holds the
    run's log until it is closed, or an agent takes the run up. Saving and loading are for one
    thread; handles for any.

    ``retention``: which checkpoints of a run that goes on are kept, those of agents included.
    "all"; "prune_old": the newest ``keep`` (3), and with them always two that share no record, so
    that no damage in one place is the end of a run; "latest_only". What is recorded before them is
    removed, by whole segments, when that frees more than it costs; what the log had of it can then
    neither be undone nor forked.

    ``approvers``: whose signature the decisions (approve, deny) about runs of this store need: a
    dict of names and public keys, a function, or an Approvers (see recovery.approvers). Others do
    not count.

    ``durability``, for a path: when what is committed is durable, "power" (the default), "process"
    or "none" (see EventLog.open). ``encryption``: all that runs record is encrypted; their ids,
    which name directories, are not. A RunStore has its own: ValueError for both.
    """

    def run(self, run_id: str) -> RunHandle:
        """A handle for a run, which need not be there yet. Opens nothing.

        Raises ValueError for an impossible run id.
        """
        from recovery.agent.run_handle import RunHandle  # noqa: PLC0415 - only where it is used

        return RunHandle(self, run_id)

    def runs(
        self, *, state: State | Sequence[State] | None = None, due: bool = False
    ) -> Iterator[RunStatus]:
        """How it stands with each run, in the order of their ids; see RunHandle.status.

        ``state``: only runs in this state, or one of these. ``due``: only those that get on when
        they are run again now (see RunStatus.due). Reads each run from its newest checkpoint on,
        when the iterator gets to it; takes no lock. A run that cannot be read is "unreadable".
        """
        from recovery.inspect.status import STATES  # noqa: PLC0415 - only where it is used

        wanted = (state,) if isinstance(state, str) else state
        for one in () if wanted is None else wanted:
            check_one_of("state", one, STATES)
        return self._runs(wanted, due)

    def _runs(self, wanted: Sequence[State] | None, due: bool) -> Iterator[RunStatus]:
        from recovery.inspect.status import runs  # noqa: PLC0415 - only where it is used

        for one in runs(self):
            if (wanted is None or one.state in wanted) and (one.due or not due):
                yield one

    def gc(
        self,
        *,
        older_than_s: float | None = None,
        keep: int | None = None,
        states: Sequence[State] = ("finished", "cancelled", "undone"),
        dry_run: bool = False,
    ) -> list[RemovedRun]:
        """Remove runs that ended ``older_than_s`` seconds ago or earlier, but the newest ``keep``.

        With both, a run goes only if both let it go; with neither, no run is removed. ``states``:
        of which runs ("finished", "cancelled", "undone", "failed"). Failed ones have to be asked
        for: they go on when somebody resolves the call that failed. Never removed are runs that a
        process has, that have not ended or are damaged, children of a run that may go on, and what
        a fork comes from that was not finished. Nothing remembers a removed run: one that begins
        under its id executes everything anew.

        Also deletes what interrupted removals have left. Reads each run from its newest checkpoint
        on. Agents may be at work meanwhile, and others that remove. After a crash each run is
        there, whole, or gone. Returns what was removed, or with ``dry_run`` what would be: the
        oldest first, but a parent before its children. Raises ValueError for impossible settings;
        OSError for a run that could not be removed, when all the others have been.
        """
        from recovery.ops.gc import gc  # noqa: PLC0415 - only where it is used

        return gc(self, older_than_s=older_than_s, keep=keep, states=states, dry_run=dry_run)
