"""Finds the call of a run that an argument names."""

from __future__ import annotations

from collections.abc import Sequence

from recovery import CheckpointStore, RecoveryError
from recovery.history.find_run import reader_of
from recovery.journal.call_key import is_idempotency_key, number_of
from recovery.journal.encoding import decode_shallow
from recovery.journal.events import CallIntended
from recovery.reports import OpenCall, RunStatus

KEY_PART_MIN = 4  # characters of an idempotency key that may stand for it


def meant(
    store: CheckpointStore, one: RunStatus, name: str, calls: Sequence[OpenCall]
) -> int | str:
    """The call that ``name`` names, by its idempotency key; RecoveryError lists the candidates.

    The key means the same call, also if another run gets this name before the decision. A number is
    the LSN of any call, because a call that is resolved need not be open. Other names (a call id,
    the beginning of a key, a tool) are searched among ``calls``, and the call whose failure ended
    the run.
    """
    tool, sign, number = name.rpartition("#")
    lsn = number_of(number)
    if lsn is not None:
        made = tool_of(store, one.run_id, lsn)
        if not sign or made == tool:
            return next((call.idempotency_key for call in calls if call.lsn == lsn), lsn)
        is_what = f"a call of {made}" if made else "no call"
        raise _refused(one.run_id, f"LSN {lsn} is {is_what}, not of {tool}", calls)
    found = [call.idempotency_key for call in calls if call.call_id == name]
    known = dict.fromkeys([*(call.idempotency_key for call in calls), one.failed_call_key])
    found = found or [key for key in known if len(name) >= KEY_PART_MIN and key.startswith(name)]
    found = found or [call.idempotency_key for call in calls if call.tool == name]
    if not found and one.failed_call and name == tool_of(store, one.run_id, one.failed_call):
        return one.failed_call_key or one.failed_call
    if len(found) == 1:
        return found[0]
    if not found and is_idempotency_key(name):  # perhaps of a call that an undo is about
        return name
    what = f"{len(found)} calls are meant by {name!r}" if found else f"no open call is {name!r}"
    others = [call for call in calls if call.idempotency_key in found]
    raise _refused(one.run_id, what, others or calls)


def tool_of(store: CheckpointStore, run: str, lsn: int) -> str:
    """The tool of the call at this LSN; "" when it is no call."""
    with reader_of(store, run) as reader:
        record = reader.fetch({lsn}).get(lsn) if lsn else None
    try:
        intent = decode_shallow(record) if record is not None else None
    except ValueError:
        intent = None
    return intent.tool if isinstance(intent, CallIntended) else ""


def _refused(run: str, what: str, calls: Sequence[OpenCall]) -> RecoveryError:
    lines = "".join(
        f"\n  {call.name}  {call.state}, idempotency key {call.idempotency_key}"
        + (f", call id {call.call_id}" if call.call_id else "")
        for call in calls
    )
    return RecoveryError(
        f"run {run!r}: {what}. Nothing was written. Its open calls:{lines or ' none'}"
    )
