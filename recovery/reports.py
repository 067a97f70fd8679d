"""Collects the types that handles, stores and listeners return."""

from recovery.engine.recovery_report import RecoveryReport
from recovery.history.inventory import StoredCheckpoint, Validity
from recovery.inspect.calls_without_outcome import OpenCall
from recovery.inspect.compare import ComparedRun, Comparison, Difference
from recovery.inspect.follow import RunEvents
from recovery.inspect.inbox_view import PendingMessage
from recovery.inspect.run_event import RunEvent
from recovery.inspect.status import RunStatus
from recovery.journal.forked_from import ForkedFrom
from recovery.journal.related_runs import ChildRun, ParentRun
from recovery.ops.forget import ForgottenSubject
from recovery.ops.remove import RemovedRun
from recovery.replay.error_counts import RunError
from recovery.replay.progress import Progress

__all__ = [
    "ChildRun",
    "ComparedRun",
    "Comparison",
    "Difference",
    "ForgottenSubject",
    "ForkedFrom",
    "OpenCall",
    "ParentRun",
    "PendingMessage",
    "Progress",
    "RecoveryReport",
    "RemovedRun",
    "RunError",
    "RunEvent",
    "RunEvents",
    "RunStatus",
    "StoredCheckpoint",
    "Validity",
]
