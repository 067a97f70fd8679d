"""Going on with a run that is there, from its id alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recovery.engine.lifecycle import RunSession
from recovery.errors import RecoveryError
from recovery.history.find_run import reader_of

if TYPE_CHECKING:
    from eventlog import EventLog
    from recovery.history.checkpoint_store_base import CheckpointStoreBase
    from recovery.history.load import History

RECORDED: Any = object()  # in place of a task: the one that the run has


class ResumeSession(RunSession):
    """The life of a run that must have begun."""

    def claim(self, store: CheckpointStoreBase, takeover: bool) -> EventLog:
        reader_of(store, self.run_id, ". Nothing was executed.").close()  # a claim would make it
        return super().claim(store, takeover)

    def check_history(self, log: EventLog, history: History) -> History:
        if history.started is None:
            raise RecoveryError(
                f"no agent has begun run {self.run_id!r}, so it has no task to go on with. Nothing "
                "was executed: run it with its task."
            )
        return history
