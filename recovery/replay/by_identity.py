"""Finds recorded calls by the identity that the present code would give them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from recovery.journal.call_key import CallKey

if TYPE_CHECKING:
    from recovery.replay.recorded_call import RecordedCall

DigestNow = Callable[[Any], bytes | None]  # of recorded arguments


class AlikeCalls:
    """The calls that are not matched yet, by scope, tool and call id."""

    def __init__(self, calls: Iterable[RecordedCall]) -> None:
        self._calls: dict[tuple[str, str, str], list[RecordedCall]] = {}
        self._by_digest: dict[tuple[str, str, str], dict[bytes, list[RecordedCall]]] = {}
        for call in sorted(calls, key=lambda one: one.lsn):
            self._calls.setdefault(_place(call.key), []).append(call)

    def find(self, key: CallKey, digest_now: DigestNow) -> Sequence[RecordedCall]:
        """The calls that would have this identity now, in recorded order. The digests of a tool's
        calls are computed once."""
        place = _place(key)
        if place not in self._calls:
            return ()
        if place not in self._by_digest:
            known = self._by_digest[place] = {}
            for call in self._calls[place]:
                digest = None if call.arguments is None else digest_now(call.arguments)
                if digest is not None:
                    known.setdefault(digest, []).append(call)
        found = self._by_digest[place].get(key.digest)
        # Without the key, nothing is known of the arguments of a forgotten subject's call.
        return found or [one for one in self._calls[place] if one.is_forgotten]


class AnyArguments(AlikeCalls):
    """The same of a replay that does not compare arguments, nor the ids of calls where none is
    equal."""

    def find(self, key: CallKey, digest_now: DigestNow) -> Sequence[RecordedCall]:
        """The calls of this tool in this scope, in recorded order."""
        if found := self._calls.get(_place(key)):
            return found
        calls = [call for calls in self._calls.values() for call in calls]
        found = [call for call in calls if _place(call.key)[:2] == _place(key)[:2]]
        return sorted(found, key=lambda one: one.lsn)


def counterpart(left: Iterable[RecordedCall], key: CallKey) -> RecordedCall | None:
    """The recorded call in whose place changed code makes this one; None if that is ambiguous.

    It is the one unmatched call of the same tool and scope, or the one with the same call id; and
    it had an outcome.
    """
    place = key.scope, key.tool
    found = [call for call in left if (call.key.scope, call.key.tool) == place]
    found = [one for one in found if key.call_id and one.key.call_id == key.call_id] or found
    return found[0] if len(found) == 1 and found[0].has_outcome else None


def closest(left: Iterable[RecordedCall], key: CallKey) -> RecordedCall | None:
    """The recorded call for a person to compare with this one: the first of the same scope and
    tool, if there is one."""
    return max(
        left,
        default=None,
        key=lambda call: (call.key.scope == key.scope) + (call.key.tool == key.tool),
    )


def _place(key: CallKey) -> tuple[str, str, str]:
    return key.scope, key.tool, key.call_id
