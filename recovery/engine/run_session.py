"""Follows one session of a run in this process, over its recoveries, and stops it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from recovery.errors import RecoveryError, RunFailedError, TaskMismatchError
from recovery.history.subject_values import check_readable
from recovery.journal.related_runs import ParentRun
from recovery.journal.submission import Submission, submission_of
from recovery.journal.user_code import traceback_of
from recovery.text import SEALED_TEXT, quoted
from recovery.values.sealed import KeyIds

if TYPE_CHECKING:
    from eventlog import WritableLog
    from recovery.engine.execution import Execution
    from recovery.history.checkpoint_store_base import CheckpointStoreBase
    from recovery.history.load import History


class RunSession:
    """One session of a run in this process, over its recoveries. Any thread may stop it."""

    parent: ParentRun | None = None  # the run that started this one
    subject: KeyIds = ()  # to whom the run belongs, if it begins now (ids of keys)
    agent_object: str | None = None  # see RunStarted, of a new run

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.submission: Submission | None = None  # what it was submitted as, of a new run
        self.fence = 0  # of this owner of the run, once it has recorded something
        self._run: Execution | None = None
        self._error: Exception | None = None

    def claim(self, store: CheckpointStoreBase, takeover: bool) -> WritableLog:
        """Claim the run's log for this process alone."""
        return store.claim(self.run_id, takeover)

    def check_history(self, log: WritableLog, history: History, task: Any) -> tuple[History, Any]:
        """Check the history before anything is written, and give the task of the run; raises if the
        run must not resume."""
        return history, task if history.started is not None else self._task_of_new(log, task)

    def _task_of_new(self, log: WritableLog, task: Any) -> Any:
        """The task of a run that has not begun: the given one, which has to be the submitted one.

        Raises TaskMismatchError, before anything is written.
        """
        self.submission = submission_of(log, self.run_id) if log.last_lsn else None
        if self.submission is not None:
            check_readable(self.submission.task, self.run_id, "its task", serves=False)
            given = replace(self.submission, task=task)
            if not given.is_same(self.submission):
                known, is_sealed = self.submission.task, bool(self.submission.subject)
                raise TaskMismatchError(self.run_id, known, task, is_sealed)
            self.subject = self.submission.subject or self.subject
        return task

    def on_first_record(self, log: WritableLog) -> None:
        """Called after the beginning of the run is recorded, before its code is executed. May take
        a while."""

    def attach(self, run: Execution) -> None:
        """Set the run's present execution. Threads of the one before may still act."""
        if self._run is not None:
            run.in_threads = self._run.in_threads
        self._run = run
        self.check()

    def check(self) -> None:
        """Raise the exception that the run was stopped with, if it was."""
        if self._error is not None:
            raise self._error

    def told(self, exc: Exception) -> str:
        """What an error of the run says, as log lines have it: nothing of a subject."""
        if isinstance(exc, RunFailedError) and exc.is_sealed:
            return f"run {self.run_id!r} failed: {exc.type_name}: {SEALED_TEXT}"
        kind = type(exc).__name__
        if isinstance(exc, RecoveryError):
            return f"{kind}: {quoted(str(exc))}"
        if self._run is not None and self._run.quoted_by(exc):
            return self._run.told(exc)
        return f"{kind}: {quoted(str(exc))}\n{traceback_of(exc).rstrip()}"

    def stop(self, error: Exception) -> None:
        """Stop at the next safe point."""
        self._error = self._error or error
        if self._run is not None:
            self._run.cancel(self._error)
