"""Computes the identity of calls, and their idempotency keys. Pure.

The identity of a call is its scope, its tool, the model's call id if there is one, the digest of
its arguments, and its occurrence among equal calls of the scope. It does not depend on time. So
concurrent calls find their own results, in whatever order they are made. The scope is the step in
which the calling task began, or the call around it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import msgpack
import xxhash

_IDEMPOTENCY_KEY = re.compile("[0-9a-f]{32}")


def is_idempotency_key(text: str) -> bool:
    """Whether a text has the form of one: 32 hexadecimal digits."""
    return _IDEMPOTENCY_KEY.fullmatch(text) is not None


class CallKey(NamedTuple):
    """The identity of a call within its run. ``occurrence`` counts equal ones, from 1."""

    scope: str
    tool: str
    call_id: str
    digest: bytes
    occurrence: int = 0

    def nth(self, occurrence: int) -> CallKey:
        """The same call, the ``occurrence``-th time."""
        return CallKey(self.scope, self.tool, self.call_id, self.digest, occurrence)

    def __str__(self) -> str:
        parts = [self.tool]
        if self.call_id:
            parts.append(f"id {self.call_id}")
        parts.append(f"arguments {self.digest.hex()[:8]}")
        if self.occurrence > 1:
            parts.append(f"occurrence {self.occurrence}")
        return ", ".join(parts)


UNDO_CALL, UNDO_PREFIX = "run.undo", "undo "  # no tool may be called that


def idempotency_key(uid: str, key: CallKey) -> str:
    """32 hex digits, equal for each attempt at a call, and different for any other call of any run.

    An undo of a call is one call, whichever undo of the run makes it.
    """
    if key.tool.startswith(UNDO_PREFIX):
        key = key._replace(scope="", occurrence=0)
    return str(xxhash.xxh3_128_hexdigest(msgpack.packb((uid, *key))))


def nested_key(outer: str, key: CallKey) -> str:
    """The key of a call nested in the call with the idempotency key ``outer``; "" for a call that
    has its key from elsewhere.

    It does not follow from the scope, the LSN of the outer call. If the record of the outer call is
    lost, the outer call is recorded again, and the nested calls keep their keys.
    """
    if not outer or key.tool.startswith(UNDO_PREFIX):
        return ""
    return idempotency_key(outer, key._replace(scope=""))


def step_scope(step: int) -> str:
    """The scope of calls made in a step; 0 is the code before the first one."""
    return str(step)


BEFORE_STEPS = step_scope(0)


def call_scope(lsn: int) -> str:
    """The scope of calls made by the tool whose intent is record ``lsn``."""
    return f"call {lsn}"


def step_of(scope: str) -> int | None:
    """The step whose scope this is; None for the scope of a call."""
    return number_of(scope)


def outer_call(scope: str) -> int:
    """The LSN of the call whose scope this is; 0 for a scope of no call."""
    number = scope.removeprefix("call ")
    return 0 if number == scope else number_of(number) or 0


def number_of(text: str) -> int | None:
    """The number that a text of a log or of a command line is."""
    # Bounded; and isdecimal() alone is true of other scripts' digits.
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else None
