"""Defines Checkpoint, its checksum, and the checks of its fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from eventlog import LogRecords, RefusedValueError
from recovery.errors import RecoveryError
from recovery.history.state_delta import checksum, pack_state
from recovery.journal.call_key import step_of
from recovery.journal.encoding import decode
from recovery.journal.events import CallFailed, CallIntended
from recovery.journal.messages import digests_of
from recovery.replay.recorded_call import RecordedCall, fold
from recovery.stores.protocol import RunStore, check_run_id
from recovery.values.pack import pack
from recovery.values.types import digest


class RecordedOutcomes(Sequence[dict[str, Any]]):
    """The outcomes of a run's calls up to a checkpoint, read from the log when first touched.

    Each is a dict of step, tool, call_id, and value or error.
    """

    def __init__(self, store: RunStore, run_id: str, up_to: int) -> None:
        self._store, self._run_id, self._up_to = store, run_id, up_to
        self._read: list[dict[str, Any]] | None = None

    def _outcomes(self) -> list[dict[str, Any]]:
        if self._read is None:
            reader = self._store.read(self._run_id)
            if reader is None:
                raise RecoveryError(f"run {self._run_id!r} is gone")
            with reader:
                if reader.oldest_lsn > 1:
                    raise RecoveryError(
                        f"the tool results of run {self._run_id!r} before LSN {reader.oldest_lsn} "
                        "were removed by retention. Keep results that an agent needs later in its "
                        "messages or its state."
                    )
                self._read = outcomes(reader, self._up_to)
        return self._read

    def __len__(self) -> int:
        return len(self._outcomes())

    def __getitem__(self, index: Any) -> Any:
        return self._outcomes()[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        try:
            return repr(self._outcomes())
        except RecoveryError as exc:
            return f"<{exc}>"


def outcomes(log: LogRecords, up_to: int) -> list[dict[str, Any]]:
    """The outcomes of calls that agents made up to LSN ``up_to``, in the order of the log."""
    made: dict[int, RecordedCall] = {}
    for record in log.records(1):
        if record.lsn > up_to:
            break
        event = decode(record)
        # One that is made inside another call is covered by its outcome.
        if not isinstance(event, CallIntended) or step_of(event.scope) is not None:
            fold(made, record.lsn, record.time_ns, event)
    over = (call for call in made.values() if call.state in ("returned", "failed"))
    return [_outcome(call) for call in sorted(over, key=lambda call: call.last_lsn)]


def _outcome(call: RecordedCall) -> dict[str, Any]:
    intent = call.intent
    found = {"step": step_of(intent.scope), "tool": intent.tool, "call_id": intent.call_id}
    if isinstance(call.last, CallFailed):
        return found | {"error": f"{call.last.type}: {call.last.message}"}
    if call.state == "failed":
        return found | {"error": f"resolved as failed: {call.value}"}
    return found | {"value": call.value}


@dataclass()
class Checkpoint:
    """The state and messages of a run at the end of a step.

    ``checkpoint_id``: its name ("": the store gives one). ``run_id``, ``step_number``: the run, and
    the step that it has completed. ``state``, ``messages`` and ``tool_results`` are plain values
    that msgpack can hold; ``timestamp`` is text (ISO 8601), which is kept as it is given, or
    seconds since 1970. ``checksum`` (32 hex digits, xxh3-128 of run, step, state, messages and
    given tool results) is computed when it is not given. ``is_valid`` turns False when validation
    fails.
    """

    checkpoint_id: str
    run_id: str
    step_number: int
    state: dict[str, Any]
    messages: list[Any]
    tool_results: Sequence[Any]
    timestamp: str | float
    is_valid: bool = True
    checksum: str = ""
    # No field: the checksum of the plain values, if it was loaded with values of subjects.
    as_loaded = ""

    def __post_init__(self) -> None:
        if not self.checksum:
            self.checksum = self.compute_checksum()

    def compute_checksum(self) -> str:
        """The checksum of the content as it is now; ValueError if it could not be loaded again."""
        check_content(self)
        _, messages = digests_of(self.messages)
        results = b""
        if not isinstance(self.tool_results, RecordedOutcomes):
            results = digest(pack(self.tool_results, "tool_results"))
        state = {key: digest(packed) for key, packed in pack_state(self.state).items()}
        return checksum(self.run_id, self.step_number, state, (messages, results))


STEP_MAX = TIME_MAX = (1 << 63) - 1  # what every reader of msgpack can hold


def check_fields(checkpoint: Checkpoint) -> None:
    """ValueError, which begins with the name of the field, for a value that could not be loaded
    again.

    Values in the state, the messages and the tool results are checked when they are packed.
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
