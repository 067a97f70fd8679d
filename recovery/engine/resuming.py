"""Resumes an existing run from its id alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recovery.engine.run_session import RunSession
from recovery.errors import RecoveryError
from recovery.history.find_run import reader_of
from recovery.history.subject_values import check_readable
from recovery.journal.submission import submission_of

if TYPE_CHECKING:
    from eventlog import WritableLog
    from recovery.history.checkpoint_store_base import CheckpointStoreBase

RECORDED: Any = object()  # stands for the task that the run has recorded


class ResumeSession(RunSession):
    """A session of a run that must exist already, or was submitted."""

    def claim(self, store: CheckpointStoreBase, takeover: bool) -> WritableLog:
        reader_of(store, self.run_id, ". Nothing was executed.").close()  # a claim would make it
        return super().claim(store, takeover)

    def _task_of_new(self, log: WritableLog, task: Any) -> Any:
        self.submission = submission_of(log, self.run_id)
        if self.submission is None:
            raise RecoveryError(
                f"no agent has begun run {self.run_id!r}, so it has no task to resume. Nothing "
                "was executed: run it with its task."
            )
        check_readable(self.submission.task, self.run_id, "its task", serves=False)
        self.subject = self.submission.subject
        return self.submission.task
