"""What of the public names few programs use: imported when the first of them is asked for."""

from __future__ import annotations

from recovery._compare import ComparedRun, Comparison, Difference, compare
from recovery._following import RunEvents, events
from recovery._fork import fork
from recovery._manager import CheckpointConfig, CheckpointManager, RestoredCheckpoint
from recovery._posted import PendingMessage
from recovery._register import register
from recovery._removal import RemovedRun, remove
from recovery._resolve import accept, resolve, retry
from recovery._retention import gc
from recovery._run_errors import RunError
from recovery._run_event import RunEvent
from recovery._status import OpenCall, RunStatus, runs, status
from recovery._stream import Stream, SyncStream
from recovery._undo_outside import undo

__all__ = [
    "CheckpointConfig",
    "CheckpointManager",
    "ComparedRun",
    "Comparison",
    "Difference",
    "OpenCall",
    "PendingMessage",
    "RemovedRun",
    "RestoredCheckpoint",
    "RunError",
    "RunEvent",
    "RunEvents",
    "RunStatus",
    "Stream",
    "SyncStream",
    "accept",
    "compare",
    "events",
    "fork",
    "gc",
    "register",
    "remove",
    "resolve",
    "retry",
    "runs",
    "status",
    "undo",
]
