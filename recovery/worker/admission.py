"""Bounds how many runs of one agent, or of one key, all workers of a store execute at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from recovery.engine.resuming import ResumeSession
from recovery.journal.events import RunFinished
from recovery.stores.protocol import RunEntry, RunQueue

if TYPE_CHECKING:
    from eventlog import WritableLog
    from recovery.history.checkpoint_store_base import CheckpointStoreBase
    from recovery.history.load import History

RUNNING_MAX = 100_000  # runs that are executed at once, by all workers


class NotNowError(Exception):
    """Other workers have finished the run, or execute as many of its agent or key as may be; or
    this one stops."""


class Limits:
    """``per_agent``: a number, or one by agent; ``per_key``: a number. None: no limit. ``names``:
    the agents of the worker, by all names that runs have for them."""

    def __init__(
        self,
        per_agent: int | Mapping[str, int] | None,
        per_key: int | None,
        names: Mapping[str, str],
    ) -> None:
        agents = set(names.values())
        if per_agent is not None and not isinstance(per_agent, Mapping):
            per_agent = dict.fromkeys(agents, per_agent)
        for name in per_agent or ():
            if name not in agents:
                raise ValueError(f"per_agent names {name!r}; the agents are {sorted(agents)}")
        self.per_agent, self.per_key, self._names = per_agent or {}, per_key, names

    def of(self, entry: RunEntry) -> list[tuple[tuple[str, str], int]]:
        """What the run counts for, each with its limit."""
        found = []
        agent = self._names.get(entry.agent, entry.agent)
        if agent in self.per_agent:
            found.append((("agent", agent), self.per_agent[agent]))
        if entry.limit_key and self.per_key is not None:
            found.append((("key", entry.limit_key), self.per_key))
        return found


@dataclass
class Full:
    """How many runs are executed, by what is bounded."""

    limits: Limits
    running: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, entry: RunEntry) -> None:
        """Count one more run."""
        self.running.update(what for what, _ in self.limits.of(entry))

    def has(self, entry: RunEntry, more: int = 1) -> bool:
        """Whether a limit is exceeded with ``more`` runs like this one."""
        return any(self.running[what] + more > limit for what, limit in self.limits.of(entry))


class Admission:
    """Decides whether a worker may execute a run, by what all workers execute.

    Invariant: no limit is exceeded. A worker counts again when it has claimed the run. Of two that
    claim at once, the later one counts both claims, and gives its run back; sometimes both do, and
    try again after a pause of random length.
    """

    def __init__(self, queue: RunQueue, limits: Limits, stopping: Callable[[], bool]) -> None:
        self._queue, self._limits, self.stopping = queue, limits, stopping

    def full(self) -> Full:
        """What is executed now."""
        full = Full(self._limits)
        if self._limits.per_agent or self._limits.per_key is not None:
            for entry in self._queue.find(states=("running",), limit=RUNNING_MAX):
                full.add(entry)
        return full

    def session(self, entry: RunEntry) -> ResumeSession:
        """A session of the run. Raises NotNowError where it claims the run."""
        return _DueSession(entry, self)

    def check(self, entry: RunEntry) -> None:
        """Raise NotNowError if too many runs are executed, this one included."""
        if self._limits.of(entry) and self.full().has(entry, more=0):
            raise NotNowError(f"run {entry.run_id} waits for its turn")


class _DueSession(ResumeSession):
    def __init__(self, entry: RunEntry, admission: Admission) -> None:
        super().__init__(entry.run_id)
        self._entry, self._admission = entry, admission

    def claim(self, store: CheckpointStoreBase, takeover: bool) -> WritableLog:
        if self._admission.stopping():  # before the worker knew of this session
            raise NotNowError(f"run {self.run_id} is not begun: its worker stops")
        log = super().claim(store, takeover)
        try:
            self._admission.check(self._entry)
        except BaseException:
            log.close()
            raise
        return log

    def check_history(self, log: WritableLog, history: History, task: Any) -> tuple[History, Any]:
        if isinstance(history.ended, RunFinished):
            raise NotNowError(f"run {self.run_id} has finished meanwhile")
        return super().check_history(log, history, task)
