"""Derives what a run is doing from its newest record, for stores that list runs by it. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from recovery.journal.events import (
    CallResolved,
    DivergenceAccepted,
    RunCancelled,
    RunFailed,
    RunFinished,
    RunParked,
    RunResumed,
    RunStarted,
    RunUndone,
)
from recovery.journal.submission import SUBMITTED
from recovery.values.pack import unpack, unpack_map


class RunLabel(NamedTuple):
    """``state``: as of RunEntry. ``wake_at``: when a wait ends by itself (seconds since 1970).
    ``queued``: agent, priority and limit_key, where the record says them."""

    state: str
    wake_at: float | None = None
    queued: tuple[str, int, str] | None = None


RUNNING = RunLabel("running")
WAKE_MAX = 2**63 / 1e9  # seconds since 1970, of which stores have nanoseconds in 64 bits


def wake_time(wake_at: object) -> float | None:
    """The time when a recorded wait ends by itself: never, if no clock gives that time."""
    return wake_at if isinstance(wake_at, int | float) and 0 <= wake_at < WAKE_MAX else None


def _queued(fields: dict[str, Any]) -> tuple[str, int, str]:
    return fields.get("agent", ""), fields.get("priority", 0), fields.get("limit_key", "")


def _submitted(body: bytes) -> RunLabel:
    fields: dict[str, Any] = unpack(body)
    return RunLabel("submitted", max(fields["not_before_ns"], 1) / 1e9, _queued(fields))


def _started(body: bytes) -> RunLabel:
    fields = unpack_map(body)
    known = {name: unpack(fields[name]) for name in ("agent", "queued") if name in fields}
    queued = {"agent": known.get("agent", ""), **(known.get("queued") or {})}
    return RunLabel("running", None, _queued(queued))


def _parked(body: bytes) -> RunLabel:
    fields: dict[str, Any] = unpack(body)
    wake_at, why = fields.get("wake_at"), fields.get("why")
    if wake_at is not None or (why and fields.get("calls")):
        return RunLabel("waiting", wake_time(wake_at))
    return RunLabel("parked" if why or fields.get("undo") else "in doubt")


_LABELS: dict[str, RunLabel | Callable[[bytes], RunLabel]] = {
    SUBMITTED: _submitted,
    RunStarted.kind: _started,
    RunResumed.kind: RUNNING,
    CallResolved.kind: RUNNING,  # a run that was parked for it can be resumed
    DivergenceAccepted.kind: RUNNING,
    RunParked.kind: _parked,
    RunFinished.kind: RunLabel("finished"),
    RunFailed.kind: RunLabel("failed"),
    RunCancelled.kind: RunLabel("cancelled"),
    RunUndone.kind: RunLabel("undone"),
}


def label_of(kind: str, body: bytes) -> RunLabel | None:
    """The label after a record of this kind and packed body; None if it changes nothing."""
    found = _LABELS.get(kind)
    return found(body) if callable(found) else found
