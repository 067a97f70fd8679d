"""Agents that go on where they stopped.

Decorate what an agent calls with ``@tool``, wrap the agent in a ``RecoverableAgent``, and run it:
after a crash the same call resumes it, and nothing that the log holds is executed again.
"""

from typing import TYPE_CHECKING, Any

from recovery import _codecs as _codecs
from recovery._agent import RecoverableAgent
from recovery._budget import Budget
from recovery._checkpoint import Checkpoint, CheckpointStore
from recovery._errors import (
    AmbiguousCallError,
    ApprovalDeniedError,
    BudgetError,
    ChildFailedError,
    ChildParkedError,
    DamagedRunError,
    DivergenceError,
    InDoubtError,
    NotAwaitedError,
    ParkedError,
    PermanentError,
    RecoveryError,
    RunCancelledError,
    RunFailedError,
    RunUndoneError,
    StoppedError,
    TaskMismatchError,
    ToolError,
    UndoError,
    UnreadableValueError,
    UnrecordedResultError,
    WaitingError,
)
from recovery._family import ChildRun, ParentRun
from recovery._lineage import ForkedFrom
from recovery._model_data import ModelData
from recovery._outside import approve, cancel, deny, pending, signal
from recovery._progress import Progress
from recovery._relatives import children, lineage, parent
from recovery._report import RecoveryReport, RunResult
from recovery._retry import Retry
from recovery._run import Run, SyncRun
from recovery._stored import StoredCheckpoint, Validity
from recovery._tool import Call, Resolution, current_call, tool
from recovery._usage import Usage
from recovery._values import OutcomeUnknown, Redacted

if TYPE_CHECKING:
    from recovery._rarely import (
        CheckpointConfig,
        CheckpointManager,
        ComparedRun,
        Comparison,
        Difference,
        OpenCall,
        PendingMessage,
        RemovedRun,
        RestoredCheckpoint,
        RunError,
        RunEvent,
        RunEvents,
        RunStatus,
        Stream,
        SyncStream,
        accept,
        compare,
        events,
        fork,
        gc,
        register,
        remove,
        resolve,
        retry,
        runs,
        status,
        undo,
    )

__all__ = [
    "AmbiguousCallError",
    "ApprovalDeniedError",
    "Budget",
    "BudgetError",
    "Call",
    "Checkpoint",
    "CheckpointConfig",
    "CheckpointManager",
    "CheckpointStore",
    "ChildFailedError",
    "ChildParkedError",
    "ChildRun",
    "ComparedRun",
    "Comparison",
    "DamagedRunError",
    "Difference",
    "DivergenceError",
    "ForkedFrom",
    "InDoubtError",
    "ModelData",
    "NotAwaitedError",
    "OpenCall",
    "OutcomeUnknown",
    "ParentRun",
    "ParkedError",
    "PendingMessage",
    "PermanentError",
    "Progress",
    "RecoverableAgent",
    "RecoveryError",
    "RecoveryReport",
    "Redacted",
    "RemovedRun",
    "Resolution",
    "RestoredCheckpoint",
    "Retry",
    "Run",
    "RunCancelledError",
    "RunError",
    "RunEvent",
    "RunEvents",
    "RunFailedError",
    "RunResult",
    "RunStatus",
    "RunUndoneError",
    "StoppedError",
    "StoredCheckpoint",
    "Stream",
    "SyncRun",
    "SyncStream",
    "TaskMismatchError",
    "ToolError",
    "UndoError",
    "UnreadableValueError",
    "UnrecordedResultError",
    "Usage",
    "Validity",
    "WaitingError",
    "accept",
    "approve",
    "cancel",
    "children",
    "compare",
    "current_call",
    "deny",
    "events",
    "fork",
    "gc",
    "lineage",
    "parent",
    "pending",
    "register",
    "remove",
    "resolve",
    "retry",
    "runs",
    "signal",
    "status",
    "tool",
    "undo",
]


if not TYPE_CHECKING:  # else every name would do

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from recovery import _rarely  # noqa: PLC0415 - see there

        value = globals()[name] = getattr(_rarely, name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
