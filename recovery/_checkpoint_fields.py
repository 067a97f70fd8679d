"""Checks the fields of a checkpoint before it is saved, so that what is saved can be loaded."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from eventlog import RefusedValueError
from recovery.stores.protocol import check_run_id

if TYPE_CHECKING:
    from recovery._checkpoint import Checkpoint

STEP_MAX = TIME_MAX = (1 << 63) - 1  # what every reader of msgpack can hold


def check_fields(checkpoint: Checkpoint) -> None:
    """ValueError, which begins with the name of the field, for what could not be loaded again.

    What is in the state, the messages and the tool results is checked where it is packed.
    """
    _check_text("checkpoint_id", checkpoint.checkpoint_id)
    check_content(checkpoint)
    _check_timestamp(checkpoint.timestamp)
    if checkpoint.is_valid is not True:
        raise RefusedValueError(
            "is_valid",
            f"{_shown(checkpoint.is_valid)}; a checkpoint that is marked as not valid is not saved",
        )
    _check_text("checksum", checkpoint.checksum)


def check_content(checkpoint: Checkpoint) -> None:
    """The same of the fields that the checksum covers."""
    _check_text("run_id", checkpoint.run_id)
    check_run_id(checkpoint.run_id)
    step: object = checkpoint.step_number
    if type(step) is not int or not 0 <= step <= STEP_MAX:
        raise RefusedValueError("step_number", f"{_shown(step)}; a step is an int from 0 on")
    if not isinstance(checkpoint.state, Mapping):
        raise RefusedValueError("state", f"{_shown(checkpoint.state)}; it has to be a dict")
    if not isinstance(checkpoint.messages, list):
        raise RefusedValueError("messages", f"{_shown(checkpoint.messages)}; it has to be a list")
    if checkpoint.tool_results is None:
        raise RefusedValueError("tool_results", "None; without results it is an empty list")


def seconds_of(timestamp: float | str) -> float:
    """A timestamp in seconds since 1970; 0 for text that is not in ISO 8601.

    Text without an offset from UTC is local time.
    """
    if not isinstance(timestamp, str):
        return timestamp
    try:
        return datetime.fromisoformat(timestamp).timestamp()
    except (ValueError, OverflowError, OSError):
        return 0.0


def _check_text(field: str, value: object) -> None:
    if type(value) is not str:
        raise RefusedValueError(field, f"{_shown(value)}; it has to be a str")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise RefusedValueError(field, f"{value!r:.50} is not text that UTF-8 can hold") from None


def _check_timestamp(value: object) -> None:
    if type(value) is str:
        _check_text("timestamp", value)
    elif type(value) not in (int, float) or not _is_time(value):
        hint = "; use its .isoformat()" if isinstance(value, datetime) else ""
        raise RefusedValueError(
            "timestamp", f"{_shown(value)}; it is seconds since 1970 or text (ISO 8601){hint}"
        )


def _is_time(value: Any) -> bool:
    return bool(abs(value) <= TIME_MAX)  # neither a NaN nor an infinity is


def _shown(value: object) -> str:
    return f"{value!r:.50} ({type(value).__name__})"
