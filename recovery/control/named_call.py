"""Says which call of a run is meant."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from recovery.journal.call import Call
from recovery.journal.call_key import is_idempotency_key

if TYPE_CHECKING:
    from recovery.inspect.calls_without_outcome import OpenCall

AnyCall: TypeAlias = "Call | OpenCall | int | str"


def key_or_lsn(call: AnyCall) -> int | str:
    """The idempotency key or the LSN of the call; TypeError for a value that names none."""
    name = getattr(call, "idempotency_key", call)
    if type(name) is int or (isinstance(name, str) and is_idempotency_key(name)):
        return name
    raise TypeError(
        "call is a Call or an OpenCall, as errors, pending() and status() give it, its idempotency "
        f"key (32 hexadecimal digits) or its LSN (an int), not {call!r:.80}"
    )
