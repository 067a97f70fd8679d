"""Provides the store that users make: it saves and loads checkpoints, and gives handles of runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from recovery.history.checkpoint_store_base import CheckpointStoreBase
from recovery.option_checks import check_one_of

if TYPE_CHECKING:
    from recovery.agent.run_handle import RunHandle
    from recovery.inspect.states import State
    from recovery.inspect.status import RunStatus
    from recovery.ops.forget import ForgottenSubject
    from recovery.ops.remove import RemovedRun


class CheckpointStore(CheckpointStoreBase):
    """A store of runs: saves checkpoints, loads those that verify, and gives handles of runs.

    A context manager: a store that has saved a checkpoint holds the run's log until it is closed,
    or an agent resumes the run. Saving and loading are for one thread; handles for any. ``run_id``
    names a run, ``step`` is the number of a step, ``checkpoint_id`` the id of a checkpoint.

    Args:
        storage_backend: None (the default) keeps runs in memory, a path on disk (``~`` is
            expanded), and any RunStore where that keeps them.
        retention: Which checkpoints of a live run are kept, those of agents included. "all" (the
            default), "prune_old" or "latest_only". "prune_old" keeps the newest ``keep``, and
            always two that share no record, so that no damage in one place ends a run. Records
            before them are removed, by whole segments, when that frees more than it costs. Removed
            calls can neither be undone nor forked.
        keep: How many "prune_old" keeps (3).
        approvers: Whose signature the decisions (approve, deny) about runs of this store need
            (None: no signature). A dict of names and public keys, a function, or an Approvers, see
            recovery.approvers. Other decisions do not count.
        durability: For a path, when a commit is durable: "power" (the default), "process" or
            "none", see EventLog.open.
        encryption: For a path: encrypts all records of runs (None). Their ids, which name
            directories, are not encrypted. A RunStore has its own: ValueError for both.
    """

    def run(self, run_id: str) -> RunHandle:
        """A handle for a run, which need not exist yet. Opens nothing.

        Raises ValueError for an impossible run id.
        """
        from recovery.agent.run_handle import RunHandle  # noqa: PLC0415 - only where it is used

        return RunHandle(self, run_id)

    def submit(
        self,
        agent: str,
        task: Any,
        run_id: str | None = None,
        *,
        delay_s: float = 0.0,
        priority: int = 0,
        limit_key: str = "",
    ) -> RunHandle:
        """Hand in a run, for a worker to begin it (see ``recovery.worker.Worker``); its handle.

        Durable when this returns. Submitting a run again, with the same task and agent, changes
        nothing; nor does submitting a run that an agent has begun.

        Args:
            agent: The name under which workers have the agent.
            task: As of ``run_with_recovery``. Marked by ``recovery.subjects.personal``, the run
                belongs to that subject.
            run_id: None (the default) is a new random one. If the store cannot say whether it has
                the run (a full disk, a lost connection), a note of the error names that id.
            delay_s: Seconds before which no worker begins it (0).
            priority: Due runs of a higher number are executed first (0).
            limit_key: Workers bound how many runs of one key are executed at once, see
                ``per_key`` of Worker (none). For a customer, or an account with a rate limit.

        Raises TaskMismatchError if the id was submitted with another task or agent; TypeError for
        a store of the user's that takes no submissions. Any thread may call it.
        """
        from recovery.control.submit import submit  # noqa: PLC0415 - only where it is used

        return self.run(submit(self.backend, agent, task, run_id, (delay_s, priority, limit_key)))

    def runs(
        self, *, state: State | Sequence[State] | None = None, due: bool = False
    ) -> Iterator[RunStatus]:
        """The status of each run, in the order of their ids; see RunHandle.status.

        ``state``: only runs in this state, or one of these. ``due``: only those that make progress
        if they are resumed now (see RunStatus.due). Reads each run from its newest checkpoint on,
        when the iterator reaches it; takes no lock. A run that cannot be read is "unreadable".
        On PostgreSQL one query chooses the runs by ``state`` or ``due``, and only those are read.

        A table on PostgreSQL, and the file ``.listing`` in a directory of many runs, keep what was
        read. So later listings read only runs that have changed since. Damage that leaves size and
        times of a file as they were is found by ``RunHandle.status``, and not here.
        """
        from recovery.inspect.states import STATES  # noqa: PLC0415 - only where it is used

        wanted = (state,) if isinstance(state, str) else state
        for one in () if wanted is None else wanted:
            check_one_of("state", one, STATES)
        return self._runs(wanted, due)

    def _runs(self, wanted: Sequence[State] | None, due: bool) -> Iterator[RunStatus]:
        from recovery.inspect.listing import listed  # noqa: PLC0415 - only where it is used

        for one in listed(self, wanted, due):
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

        With both, a run is removed only if both allow it; with neither, no run is removed.
        ``states``: those of the runs ("finished", "cancelled", "undone", "failed"). Failed runs are
        removed only if they are named, because they can resume once the failed call is resolved.
        Never removed are runs that a process owns, and runs that have not ended or are damaged.
        Neither are children of a run that may resume, and origins of unfinished forks. No record of
        a removed run is left: a run that begins under its id executes everything again.

        Also deletes remains of interrupted removals. Reads each run from its newest checkpoint on.
        Agents may run meanwhile, and other removals. After a crash each run is whole or gone.
        Returns the removed runs, or with ``dry_run`` those that would be: the oldest first, but a
        parent before its children. Raises ValueError for impossible settings; OSError for a run
        or remains that could not be removed, after all others were.
        """
        from recovery.ops.gc import gc  # noqa: PLC0415 - only where it is used

        return gc(self, older_than_s=older_than_s, keep=keep, states=states, dry_run=dry_run)

    def subjects(self) -> list[str]:
        """The subjects that have a key in this store, in their order (see ``@tool(subject=)``).

        Raises SubjectKeysError when the keys cannot be read.
        """
        from recovery.history.find_run import keys_of  # noqa: PLC0415 - only where it is used

        return keys_of(self).subjects()

    def forget(
        self, subject: str, *, force: bool = False, dry_run: bool = False
    ) -> ForgottenSubject | None:
        """Destroy the key of ``subject``: no one can read again what runs recorded of it.

        Durable when this returns; after a crash the key is there or gone, as a whole. Logs stay as
        they are, and all checksums fit. New values of the subject get a new key. Reads all runs
        first, to find those that hold values of it. Returns what was forgotten, or with ``dry_run``
        would be; None if the subject has no key.

        Raises LogLockedError when a process has one of these runs. With ``force`` that process
        stops the run (ForgottenError) when it is next to record a value of the subject. Raises
        SubjectKeysError when the keys cannot be read. Nothing was forgotten then.
        """
        from recovery.ops.forget import forget  # noqa: PLC0415 - only where it is used

        return forget(self, subject, force=force, dry_run=dry_run)
