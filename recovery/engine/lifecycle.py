"""Asking runs to stop: by a call, or by a signal to the process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recovery.journal.links import ParentRun

if TYPE_CHECKING:
    from eventlog import EventLog
    from recovery.engine.execution import Execution
    from recovery.history.checkpoint_store_base import CheckpointStoreBase
    from recovery.history.load import History


class RunSession:
    """One going of a run in this process, over its recoveries. Stopped from any thread."""

    parent: ParentRun | None = None  # that started the run

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self._run: Execution | None = None
        self._error: Exception | None = None

    def claim(self, store: CheckpointStoreBase, takeover: bool) -> EventLog:
        """The run's log, for this process alone."""
        return store.claim(self.run_id, takeover)

    def check_history(self, log: EventLog, history: History) -> History:
        """What the log holds, before anything is written; raises what forbids to go on."""
        return history

    def on_first_record(self, log: EventLog) -> None:
        """It is recorded that the run has begun, and nothing is executed yet. May take a while."""

    def attach(self, run: Execution) -> None:
        """The run's present execution is this one."""
        self._run = run
        self.check()

    def check(self) -> None:
        """Raise what the run was stopped with, if it was."""
        if self._error is not None:
            raise self._error

    def stop(self, error: Exception) -> None:
        """Stop at the next safe point."""
        self._error = self._error or error
        if self._run is not None:
            self._run.cancel(self._error)
