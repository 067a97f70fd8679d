"""Queues the runs of a store in files or memory, by listing their states."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import TYPE_CHECKING

from recovery.inspect.listing import listed
from recovery.inspect.status import RunStatus
from recovery.journal.submission import Submission
from recovery.stores.log_store import LogStore
from recovery.stores.protocol import RunEntry, RunQueue

if TYPE_CHECKING:
    from recovery.agent.checkpoint_store import CheckpointStore

# A look at all runs takes CPU: at most a tenth of it.
PAUSE_MIN_S, LOOK_SHARE = 0.2, 10


def queue_of(store: CheckpointStore) -> RunQueue:
    """The queue of a store. Raises TypeError for a store of the user's that has none."""
    backend: object = store.backend
    if isinstance(backend, RunQueue):
        return backend
    if isinstance(backend, LogStore):
        return ListingQueue(store, backend)
    raise TypeError(
        f"{type(backend).__name__} lists no runs by state, so workers find none in it. Implement "
        "recovery.stores.RunQueue, or use one of the library's stores"
    )


class ListingQueue:
    """The queue of a store in files or memory. The methods are those of RunQueue.

    Any thread and any process may submit. ``wait`` pauses, because files do not notify of changes.
    """

    def __init__(self, store: CheckpointStore, backend: LogStore) -> None:
        self._store, self._backend = store, backend
        self._look_s = 0.0

    def submit(self, submission: Submission) -> bool:
        """See ``RunQueue.submit``."""
        return self._backend.submit(submission)

    def submission(self, run_id: str) -> Submission | None:
        """See ``RunQueue.submission``."""
        return self._backend.submission(run_id)

    def find(
        self,
        *,
        states: Collection[str] = (),
        due: bool = False,
        agents: Collection[str] | None = None,
        after: str = "",
        limit: int = 1000,
    ) -> list[RunEntry]:
        """See ``RunQueue.find``."""
        began = time.thread_time()
        found = [
            _entry(one)
            for one in listed(self._store)
            if one.kind == "agent"
            and (one.due and one.parent is None if due else one.run_id > after)
            and (not states or one.state in states)
            and (agents is None or one.agent in agents)
        ]
        if due:
            found.sort(key=lambda one: (-one.priority, max(one.due_ns, one.changed_ns)))
        self._look_s = time.thread_time() - began
        return found[:limit]

    def wait(self, timeout_s: float) -> bool:
        """See ``RunQueue.wait``."""
        time.sleep(min(timeout_s, max(PAUSE_MIN_S, LOOK_SHARE * self._look_s)))
        return True

    def time_ns(self) -> int:
        """See ``RunQueue.time_ns``."""
        return self._backend.files.time_ns()


def _entry(one: RunStatus) -> RunEntry:
    due_ns = int(one.wake_at * 1e9) if one.wake_at is not None else 0
    return RunEntry(
        one.run_id,
        one.state,
        one.agent,
        one.priority,
        one.limit_key,
        due_ns,
        one.owner,
        one.last_lsn,
        changed_ns=int(one.last * 1e9),
    )
