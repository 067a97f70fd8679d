"""Defines the types of values that the library itself records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import xxhash

from eventlog.light_dataclass import light_dataclass


@light_dataclass
class Ref:
    """A value that the log has already: record ``lsn``, and the index of the value in it."""

    lsn: int
    index: int = 0

    def __hash__(self) -> int:
        # As a key in forged bytes: equal hashes of numbers could be chosen.
        return hash(b"%d %d" % (self.lsn, self.index))

    @property
    def lsns(self) -> set[int]:
        """The record that it needs."""
        return {self.lsn}

    def moved(self, at: dict[int, int]) -> Ref:
        """The same, where records have other LSNs."""
        return Ref(at[self.lsn], self.index)


@dataclass(frozen=True, slots=True)
class OutcomeUnknown:
    """The result of a call whose outcome is unknown after a crash (after_crash="report").

    The call may or may not have taken effect; ``idempotency_key`` is the key that it was given.
    """

    tool: str
    idempotency_key: str

    def __str__(self) -> str:
        return (
            f"The outcome of {self.tool} is unknown: the process died while it ran. It may or may "
            f"not have taken effect (idempotency key {self.idempotency_key}). Find out before "
            "doing it again."
        )


@dataclass(frozen=True, slots=True)
class Redacted:
    """Stands for an argument that a tool keeps out of the log (``@tool(redact=[...])``).

    ``digest`` (16 bytes, BLAKE2b keyed for the run) is the same for equal values of the run.
    """

    digest: bytes

    def __repr__(self) -> str:
        return f"<redacted, digest {self.digest.hex()[:8]}>"


class MessagesDigest:
    """Stands for the whole conversation where it is an argument: its length and its digest."""

    __slots__ = ("digest", "length")

    def __init__(self, length: int, digest: bytes) -> None:
        self.length, self.digest = length, digest

    def __repr__(self) -> str:
        return f"<{self.length} messages, digest {self.digest.hex()[:8]}>"


class Conversation(list[Any]):
    """A list that keeps a digest of itself: the type of run.messages for this module."""

    def digest(self) -> bytes:
        raise NotImplementedError


def digest(packed: bytes) -> bytes:
    """The xxh3-128 digest of a packed value: equal values of equal types have equal digests."""
    return bytes(xxhash.xxh3_128_digest(packed))
