"""Defines what a server must do to hold logs, and what is sent to it.

A log on a server is a head and the bytes of its segments. The head says who owns the log and where
it ends; it changes in one statement. The bytes are those that a log in files would have: segment
headers and frames, cut into pieces, one piece for each commit. So checksums hold end to end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class Piece(NamedTuple):
    """Bytes of segment ``number`` from offset ``at`` on."""

    number: int
    at: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Owner:
    """A process, as the head of a log names it. ``machine``: of its process ids ("": unknown)."""

    pid: int
    host: str
    machine: str = ""
    start: str = ""  # distinguishes processes that had the same id


class LostOwner(NamedTuple):
    """An owner whose lease ended before it released the log: as Owner, and since when it had it.

    ``pid``: 0 for some that were not kept.
    """

    pid: int
    host: str
    machine: str
    since_ns: int


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a log. ``key``: how the server finds the log, however its name is used later.

    ``is_held``: an owner has not released it. ``is_alive``: and its lease lasts. ``lost``:
    the owners before that did not release it, and may still act, the newest last. ``first``
    and ``number``: its segments; ``number`` is 0 before the first. ``end``: bytes in the last one.
    ``now_ns``: the server's clock when it was read.
    """

    key: int
    name: str
    log_id: bytes
    epoch: int
    owner: Owner
    since_ns: int
    is_held: bool
    is_alive: bool
    lost: tuple[LostOwner, ...]
    next_lsn: int
    oldest_lsn: int
    snapshot: int
    first: int
    number: int
    end: int
    size: int
    now_ns: int


class Loaded(NamedTuple):
    """A head, and bytes of its segments: of each whole or, for old ones, only the header."""

    head: Head
    pieces: list[Piece]
    partial: frozenset[int] = frozenset()  # numbers of segments of which only the header is here


class Label(NamedTuple):
    """What a log is doing, for listings: see recovery.stores.RunEntry. ``due_ns``: 0 for never.
    ``agent``: None leaves it, the priority and the key as they are."""

    state: str
    due_ns: int = 0
    agent: str | None = None
    priority: int = 0
    limit_key: str = ""


@dataclass(frozen=True, slots=True)
class Batch:
    """One commit of one log: pieces, and the head as it is afterwards.

    The server refuses it, in the same statement, unless the head has this ``epoch`` and ends at
    ``expected``. Sending the same batch twice appends it once. ``keep_from``: segments before this
    number are deleted. ``releases``: the owner lets go of the log. ``wakes``: the name of a log
    whose owner is to look at this one.
    """

    key: int
    epoch: int
    expected: int
    next_lsn: int
    oldest_lsn: int
    snapshot: int
    tail: int  # the segment of the newest snapshot: a recovery reads from there
    number: int
    end: int
    pieces: tuple[Piece, ...] = ()
    keep_from: int = 0
    label: Label | None = None
    releases: bool = False
    wakes: str = ""


HEAD_ALONE = (1 << 30, 0)  # for `load`: no segment is after it


class LostConnectionError(Exception):
    """The server did not answer: it may have executed the statement, or may still do so."""


class LogServer(Protocol):
    """A server that holds logs. Any thread may call it; each call waits for the network.

    ``append`` and ``resolve`` raise LostConnectionError when the outcome is unknown. The others may
    be repeated, and do so by themselves; they raise UnreachableError in the end. No other error
    means that anything was changed.
    """

    @property
    def address(self) -> str:
        """The URL of the server, without secrets."""

    def claim(
        self, name: str, log_id: bytes, owner: Owner, lease_s: float, instead_of: int | None = None
    ) -> Head:
        """Own the log under a higher epoch; make it, with this id, if there is none.

        If another owner's lease lasts, the head names that owner instead, and nothing was changed.
        ``instead_of``: claim it all the same if the owner's epoch is still this one.
        """

    def claim_from_dead(
        self, name: str, log_id: bytes, owner: Owner, lease_s: float, instead_of: int
    ) -> Head:
        """As ``claim``, from an owner that is known to be dead: it is not among the ``lost``."""

    def load(self, name: str, after: tuple[int, int] = (0, 0)) -> Loaded | None:
        """The head, and the bytes after segment ``after[0]``, offset ``after[1]``; None if there
        is no such log. From (0, 0), old segments may be partial."""

    def segment(self, key: int, number: int) -> list[Piece]:
        """All bytes of one segment."""

    def append(self, batches: Sequence[Batch], lease_s: float) -> set[int]:
        """Append all batches in one statement, each or nothing of it; the keys of those appended.

        The leases of these are extended from now on. Durable when this returns.
        """

    def resolve(self, batches: Sequence[Batch]) -> dict[int, tuple[int, bool]]:
        """After a lost connection: for each key that exists, the LSN that the log ends at if it has
        the batch's epoch (else 0), and whether it has the batch's pieces."""
