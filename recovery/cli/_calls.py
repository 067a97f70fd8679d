"""Which call of a run is meant."""

from __future__ import annotations

from collections.abc import Sequence

from recovery import CheckpointStore, OpenCall, RecoveryError
from recovery._events import CallIntended, skim
from recovery._existing import reader_of

KEY_PART_MIN = 4  # characters of an idempotency key that may stand for it


def lsn_of(store: CheckpointStore, run: str, name: str, calls: Sequence[OpenCall]) -> int:
    """The LSN of the call that ``name`` names; RecoveryError lists what it may be otherwise.

    A number is taken as it is, for a call need not be an open one to be settled. All else is looked
    for among ``calls``.
    """
    tool, sign, number = name.rpartition("#")
    if number.isdecimal() and number.isascii() and len(number) < 20:
        lsn = int(number)
        made = tool_of(store, run, lsn)
        if not sign or made == tool:
            return lsn
        is_what = f"a call of {made}" if made else "no call"
        raise _refused(run, f"LSN {lsn} is {is_what}, not of {tool}", calls)
    found = [call for call in calls if call.call_id == name] or [
        call for call in calls
        if len(name) >= KEY_PART_MIN and call.idempotency_key.startswith(name)
    ]  # fmt: skip
    if len(found) == 1:
        return found[0].lsn
    what = f"{len(found)} calls are meant by {name!r}" if found else f"no open call is {name!r}"
    raise _refused(run, what, found or calls)


def tool_of(store: CheckpointStore, run: str, lsn: int) -> str:
    """The tool that the call of this LSN is of; "" when it is no call."""
    with reader_of(store, run) as reader:
        record = reader.fetch({lsn}).get(lsn) if lsn else None
    try:
        intent = skim(record) if record is not None else None
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
