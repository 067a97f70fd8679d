"""Runs agents that resume where they stopped.

Decorate what an agent calls with ``@tool``, wrap the agent in a ``RecoverableAgent``, and run it:
after a crash the same call resumes it, and nothing that the log holds is executed again.

All errors are in ``recovery.errors``, the types of reports on runs in ``recovery.reports``,
kinds of stores in ``recovery.stores``, agents that are graphs in ``recovery.graph``.
"""

from typing import TYPE_CHECKING, Any

import eventlog

if not hasattr(eventlog, "EventLog"):
    raise ImportError(
        f"agent-eventlog has a package named `eventlog`, but `import eventlog` finds another one: "
        f"{eventlog.__file__ or list(eventlog.__path__)}. Remove the distribution or the folder "
        f"that it belongs to, then install agent-eventlog again, or give each an environment."
    )

from recovery.agent.checkpoint_store import CheckpointStore
from recovery.agent.recoverable import RecoverableAgent
from recovery.agent.run import Run, SyncRun, current_run
from recovery.declare.budget import Budget
from recovery.declare.retry import Retry
from recovery.declare.scope import current_call
from recovery.declare.tool import tool
from recovery.engine.recovery_report import RunResult
from recovery.errors import (
    ApprovalDeniedError,
    ChildFailedError,
    InDoubtError,
    ParkedError,
    PermanentError,
    RecoveryError,
    ToolError,
)
from recovery.history.checkpoint import Checkpoint
from recovery.journal.call import Call, Resolution
from recovery.journal.usage import Usage
from recovery.values import builtin_codecs as builtin_codecs
from recovery.values.model_data import ModelData
from recovery.values.registered import register
from recovery.values.types import OutcomeUnknown, Redacted

if TYPE_CHECKING:
    from recovery.agent.run_handle import RunHandle
    from recovery.calls.stream import Stream, SyncStream
    from recovery.graph.checkpoint_manager import CheckpointConfig, CheckpointManager


def __getattr__(name: str) -> Any:
    # Many programs do without these, and they bring a third of the package.
    module: Any
    match name:
        case "CheckpointConfig" | "CheckpointManager":
            from recovery.graph import checkpoint_manager as module  # noqa: PLC0415
        case "RunHandle":
            from recovery.agent import run_handle as module  # noqa: PLC0415
        case "Stream" | "SyncStream":
            from recovery.calls import stream as module  # noqa: PLC0415
        case _:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "ApprovalDeniedError",
    "Budget",
    "Call",
    "Checkpoint",
    "CheckpointConfig",
    "CheckpointManager",
    "CheckpointStore",
    "ChildFailedError",
    "InDoubtError",
    "ModelData",
    "OutcomeUnknown",
    "ParkedError",
    "PermanentError",
    "RecoverableAgent",
    "RecoveryError",
    "Redacted",
    "Resolution",
    "Retry",
    "Run",
    "RunHandle",
    "RunResult",
    "Stream",
    "SyncRun",
    "SyncStream",
    "ToolError",
    "Usage",
    "current_call",
    "current_run",
    "register",
    "tool",
]
