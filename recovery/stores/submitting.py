"""Hands in runs, by a record in the log of the run: what all of the library's stores share."""

from __future__ import annotations

import time
from typing import Protocol

from eventlog import LogLockedError, ReadableLog, WritableLog
from recovery.errors import TaskMismatchError
from recovery.journal.submission import SUBMITTED, Submission, submission_of

# Two processes that submit one run, or a worker that begins it: each is quick.
WAIT_S, PAUSE_S = 10.0, 0.005


class _Logs(Protocol):
    def claim(self, run_id: str, takeover: bool = False) -> WritableLog: ...
    def read(self, run_id: str) -> ReadableLog | None: ...


def submit(store: _Logs, submission: Submission) -> bool:
    """See ``TakesSubmissions.submit``."""
    deadline = time.monotonic() + WAIT_S
    while True:
        before = submitted(store, submission.run_id)
        if before is not None and not before.is_same(submission):
            if (agent := before.agent) != submission.agent:
                raise TaskMismatchError(submission.run_id, agent, submission.agent, what="agent")
            given, is_sealed = submission.task, bool(before.subject)
            raise TaskMismatchError(submission.run_id, before.task, given, is_sealed)
        if before is not None:
            return False
        try:
            with store.claim(submission.run_id) as log:
                if not log.last_lsn:
                    log.append(SUBMITTED, submission.packed())
                    log.commit()
                    return True
                if submission_of(log, submission.run_id) is None:
                    return False  # an agent has begun it
        except LogLockedError:
            if time.monotonic() > deadline:
                return False  # a process executes it
            time.sleep(PAUSE_S)


def submitted(store: _Logs, run_id: str) -> Submission | None:
    """See ``TakesSubmissions.submission``."""
    reader = store.read(run_id)
    if reader is None:
        return None
    with reader:
        return submission_of(reader, run_id)
