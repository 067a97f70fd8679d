"""Resumes an existing run from its id alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recovery.engine.lifecycle import RunSession
from recovery.errors import RecoveryError
from recovery.history.find_run import reader_of

if TYPE_CHECKING:
    from eventlog import WritableLog
    from recovery.history.checkpoint_store_base import CheckpointStoreBase
    from recovery.history.load import History

RECORDED: Any = object()  # stands for the task that the run has recorded


class ResumeSession(RunSession):
    """A session of a run that must exist already."""

    def claim(self, store: CheckpointStoreBase, takeover: bool) -> WritableLog:
        reader_of(store, self.run_id, ". Nothing was executed.").close()  # a claim would make it
        return super().claim(store, takeover)

    def check_history(self, log: WritableLog, history: History) -> History:
        if history.started is None:
            raise RecoveryError(
                f"no agent has begun run {self.run_id!r}, so it has no task to resume. Nothing "
                "was executed: run it with its task."
            )
        return history
