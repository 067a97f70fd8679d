"""Finds the recorded call that a call of a foreign loop is. Pure.

The loop resumes from a checkpoint of its own, so its calls come in any order, and some never come
again. A call is known by its tool, its call id and its arguments. Equal calls are a sequence:

    left by an earlier process   the next one of the sequence that was not asked for yet
    asked for again by its id    the same call, once it has returned; after a failure, the next one
    of no id, or of another id   one that an earlier process has left, once; else a new call
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from recovery.journal.call_key import CallKey
from recovery.replay.call_view import CallOutcome, Outcome
from recovery.replay.recorded_call import RecordedCall, state_after


class Identity(NamedTuple):
    """What calls of a foreign loop are known by."""

    tool: str
    call_id: str
    digest: bytes

    @classmethod
    def of(cls, key: CallKey) -> Identity:
        """The same of the identity of a call in a run."""
        return cls(key.tool, key.call_id, key.digest)


@dataclass(slots=True, eq=False)
class KnownCall:
    """A call that is recorded, or about to be. ``lsn``: 0 before it is recorded.

    ``made``: what the log has of it, if an earlier process made it. ``left``: the same, while the
    loop has not asked for it. ``outcome``: None while it has none. ``thread``: which makes it now;
    0 for none.
    """

    identity: Identity
    lsn: int = 0
    made: RecordedCall | None = None
    left: RecordedCall | None = None
    outcome: CallOutcome | None = None
    thread: int = 0

    @property
    def in_flight(self) -> bool:
        return self.thread != 0

    @property
    def is_given_up(self) -> bool:
        """Whether the loop cancelled it, and continued without it."""
        return self.left is not None and self.left.cancelled

    @property
    def has_returned(self) -> bool:
        """Whether it has a result to be served again."""
        return self.outcome is not None and state_after(self.outcome.event) == "returned"


class KnownCalls:
    """The calls that the loop may ask for again; guarded by the mutex of the run."""

    def __init__(self, recorded: Iterable[RecordedCall], scope: str) -> None:
        self._calls: dict[Identity, list[KnownCall]] = {}
        self._left: dict[str, list[KnownCall]] = {}  # by tool
        self._counts: Counter[CallKey] = Counter()  # of the present step, and of equal calls
        self.adopts = False  # whether an outcome under another id is served
        for made in recorded:
            if made.cancelled and made.key.scope != scope:  # the loop has called forget() since
                continue
            before = self._calls.get(Identity.of(made.key), [])
            if before and before[-1].is_given_up:  # the loop has asked for it again
                self.discard(before[-1])
            self.add_left(made)
            if made.key.scope == scope:
                base = made.key.nth(0)
                self._counts[base] = max(self._counts[base], made.key.occurrence)

    def find(
        self, identity: Identity, digest_now: Callable[[Any], bytes | None]
    ) -> KnownCall | None:
        """The call that is meant by this one; None for a new one.

        ``digest_now``: of recorded arguments, by the code of now.
        """
        same = self._calls.get(identity, [])
        left = next((known for known in same if known.left is not None), None)
        if left is not None:
            return left
        if identity.call_id and same and (same[-1].in_flight or same[-1].has_returned):
            return same[-1]
        return next(self._adoptable(identity, digest_now), None)

    def _adoptable(
        self, identity: Identity, digest_now: Callable[[Any], bytes | None]
    ) -> Iterator[KnownCall]:
        for known in self._left.get(identity.tool, ()):
            other = known.identity
            assert known.left is not None
            if other.digest == identity.digest:
                if known.outcome is None or self.adopts:
                    yield known
            elif identity.call_id and other.call_id == identity.call_id:
                given = known.left.arguments  # which the code of now may know by another digest
                if given is not None and digest_now(given) == identity.digest:
                    yield known

    def take(self, known: KnownCall) -> RecordedCall | None:
        """The loop has asked for it: what an earlier process has left of it, if that did."""
        left, known.left = known.left, None
        if left is not None:
            self._left[left.key.tool].remove(known)
        return left

    def add_left(self, made: RecordedCall) -> None:
        """The loop may ask for this call, of an earlier process."""
        known = KnownCall(Identity.of(made.key), made.lsn, made, made)
        self._left.setdefault(made.key.tool, []).append(known)
        if made.has_outcome:
            assert isinstance(made.last, Outcome)
            known.outcome = CallOutcome(made.last_lsn, made.last, raised=made.tries.raised)
        self.add(known)

    def add(self, known: KnownCall) -> None:
        """The loop may ask for this call."""
        self._calls.setdefault(known.identity, []).append(known)

    def discard(self, known: KnownCall) -> None:
        """It has not been made after all, or is forgotten."""
        self.take(known)
        self._remove(known)

    def _remove(self, known: KnownCall) -> None:
        same = self._calls[known.identity]
        same.remove(known)
        if not same:
            del self._calls[known.identity]

    def rename(self, known: KnownCall, identity: Identity) -> None:
        """The loop asks for it by another id, or with arguments that the code writes otherwise."""
        self._remove(known)
        known.identity = identity
        self.add(known)

    def occurrence(self, key: CallKey) -> int:
        """The number of a new call among those of the step that are equal to it."""
        base = key.nth(0)
        self._counts[base] += 1
        return self._counts[base]

    def begin_step(self) -> None:
        """Calls of the step before are others than those that come now."""
        self._counts.clear()

    def unfinished(self) -> list[RecordedCall]:
        """Calls that an earlier process began, without an outcome."""
        return [
            known.left
            for known in sorted(
                (one for left in self._left.values() for one in left), key=lambda one: one.lsn
            )
            if known.left is not None and known.outcome is None and not known.is_given_up
        ]

    def finished(self, named: frozenset[str | int] | None = None) -> list[KnownCall]:
        """Calls that are over; only those with one of these ids or LSNs."""
        return [
            known
            for identity, calls in self._calls.items()
            for known in calls
            if named is None or identity.call_id in named or known.lsn in named
            if (known.outcome is not None or known.is_given_up) and not known.in_flight
        ]

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left that the loop may ask for."""
        return not self._calls
