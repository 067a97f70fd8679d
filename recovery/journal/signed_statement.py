"""Defines the statement under the signature of a message to a run. Pure."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Protocol

from eventlog.light_dataclass import light_dataclass
from recovery.journal.events import RunStarted
from recovery.values.sealed import plain

RESOLVE = "resolve"
UNSIGNED = "it is not signed, and approvers= asks for that"
NOBODY_KNOWS = (
    "it has to be signed, and the store of this process has no approvers= to verify it with"
)


@light_dataclass
class Statement:
    """The signed statement: ``who`` says ``answer`` about ``about``, in the run with this ``uid``.

    ``kind``: "decision" (``about`` is the idempotency key of the call, ``answer`` "approved" or
    "denied"), "signal" (``about`` is its name), "cancel", or "resolve" (``about`` is the call's
    idempotency key, "@" and the LSN at which this is recorded, ``answer`` "outcome", "retry" or
    "fail"). ``time_ns``: when, since 1970. ``content``: the SHA-256, in hexadecimal digits, of the
    call's packed arguments, or of the packed value of a signal or resolution; "" without one.
    """

    uid: str
    kind: str
    about: str
    answer: str
    who: str
    why: str
    time_ns: int
    content: str

    def to_bytes(self) -> bytes:
        """The bytes that are signed: a line that names the format, then JSON in ASCII with its
        keys in order."""
        text = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return f"agent-eventlog statement 1\n{text}".encode("ascii")


def content_of(packed: bytes) -> str:
    """See Statement.content."""
    from hashlib import sha256  # noqa: PLC0415 - only where something is signed

    return sha256(plain(packed)).hexdigest()


class Signatures(Protocol):
    """Verifies signatures: recovery.approvers.Approvers."""

    @property
    def also(self) -> tuple[str, ...]: ...
    def needed_for(self, kind: str) -> bool: ...
    def accepts(self, statement: Statement, signature: bytes) -> bool: ...


def has_to_be_signed(kind: str, started: RunStarted | None, approvers: Signatures | None) -> bool:
    """Whether this kind of message counts in a run only with a signature: by the store of this
    process, or by that of the process that began the run."""
    by_store = approvers is not None and approvers.needed_for(kind)
    return by_store or (started is not None and kind in (started.signed or ()))
