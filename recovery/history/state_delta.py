"""Computes how the state of a run differs from that of the newest checkpoint. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import msgpack
import xxhash

from eventlog.errors import RefusedValueError
from eventlog.format.record import Packed
from recovery.values.pack import UNCHANGING, pack, unpack
from recovery.values.types import digest

Seal = Callable[[str, Any], Packed]  # packs the value of a key, and seals it if it is a subject's
_CHANGING = object()  # stands for a value that may have changed in place


def pack_key(key: Any) -> bytes:
    """A key of a state, packed; RefusedValueError for an object that cannot be a key."""
    try:
        if type(key) is str:
            return bytes(msgpack.packb(key))
    except UnicodeEncodeError:
        pass
    raise RefusedValueError(
        f"state[{key!r:.60}]",
        "keys of a state are str, of what UTF-8 can hold. Write "
        f"state[{str(key)!a:.60}], or keep a dict with such keys in it: state['by_key'] = "
        f"{{{key!a:.60}: ...}}",
    )


def pack_plain(key: str, value: Any) -> Packed:
    """A value of the state that belongs to no subject."""
    return pack(value, f"state.{key}")


def pack_state(state: Mapping[str, Any]) -> dict[str, Packed]:
    """Each value of a state, packed; RefusedValueError with the path to what cannot be carried."""
    for key in state:
        pack_key(key)
    return {key: pack_plain(key, value) for key, value in state.items()}


def checksum(run_id: str, step: int, state: Mapping[str, bytes], rest: tuple[bytes, bytes]) -> str:
    """The checksum of a checkpoint: 32 hex digits of xxh3-128.

    ``state`` is the digest of each value by key; ``rest`` the digests of the messages and of the
    tool results (empty when these are not in the checkpoint but in the log).
    """
    first = pack([run_id, step], "checkpoint")
    others = msgpack.packb(([(key, state[key]) for key in sorted(state)], *rest))
    # One list of all five.
    return str(xxhash.xxh3_128_hexdigest(b"\x95" + first[1:] + others[1:]))


@dataclass(slots=True, eq=False)
class Base:
    """An earlier snapshot, and the part of it that still holds: so many of its messages, from the
    start; its state without the keys that are ``gone`` (None: nothing)."""

    index: int
    lsn: int
    keep: int
    gone: dict[str, None] | None = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Place:
    """Where a value of the state is: in the snapshot at ``lsn``. ``since``: the snapshot with which
    its key came; ``part``: the value, or its place, in the snapshot that was read."""

    lsn: int
    since: int
    part: Packed


def folded(
    parts: Iterable[tuple[int, Sequence[str] | None, Mapping[str, Packed]]],
) -> tuple[dict[str, Place], list[dict[str, None] | None]]:
    """The places of the values of a state, and the keys that are gone from each snapshot.

    ``parts``: of a snapshot's bases, and of itself, the LSN, the keys that are gone (None: all of
    them) and the others with their values or places. ValueError for an impossible combination.
    """
    at: dict[str, Place] = {}
    before: list[tuple[int, dict[str, None] | None]] = []
    for lsn, gone, state in parts:
        if gone is None:
            at, before = {}, [(earlier, None) for earlier, _ in before]
        for key in gone or ():
            was = at.pop(key, None)
            for earlier, lost in before:
                if was is not None and lost is not None and was.since <= earlier:
                    lost[key] = None
        for key, part in state.items():
            since = at[key].since if key in at else lsn
            at[key] = Place(place_in_state(part) or lsn, since, part)
        before.append((lsn, {}))
    return at, [gone for _, gone in before]


def place_in_state(part: Packed) -> int:
    """The LSN that stands in place of a value, 0 if the value is here, in a list of one."""
    at = 0 if part[:1] == b"\x91" else unpack(part)
    if type(at) is not int:
        raise ValueError("its state holds neither a value nor where that is")
    return at


class _Kept:
    """A value of the newest checkpoint: its digest, the record that holds it and its size, the
    record with which its key came, and its reference in the next one (key and LSN, packed)."""

    __slots__ = ("digest", "lsn", "place", "since", "size", "value")

    def __init__(self, key: str, at: tuple[bytes, int, int, int], value: Any) -> None:
        self.digest, self.lsn, self.size, self.since = at
        self.place = pack_key(key) + msgpack.packb(self.lsn)
        self.value = value if type(value) in UNCHANGING else _CHANGING


@dataclass(slots=True, eq=False)
class Changes:
    """How a state differs from that of the newest checkpoint: values that are new or changed,
    packed, with their digests; and the keys that are gone, or that came again, at the end."""

    values: dict[str, tuple[Packed, bytes]]
    gone: dict[str, None]


class StateDelta:
    """The state in the newest checkpoint of a run, to find what has changed since.

    An immutable value is unchanged if it is the same object. Any other value is packed, because a
    list that was changed in place is the same object too.
    """

    def __init__(
        self, at: Mapping[str, tuple[bytes, int, int, int]], seal: Seal = pack_plain
    ) -> None:
        """``at``: of each value the digest, the LSN of the checkpoint that holds it, its size, and
        the LSN of the checkpoint with which its key came. ``seal``: see SubjectValues."""
        self._seal = seal
        self._kept = {key: _Kept(key, where, _CHANGING) for key, where in at.items()}

    def size(self) -> int:
        """Bytes of a copy: of all values under their names, and once more the names and where."""
        return sum(kept.size + 2 * len(kept.place) for kept in self._kept.values())

    def keys(self) -> Iterable[str]:
        """The keys, in their order."""
        return self._kept.keys()

    def changes(self, state: Mapping[str, Any]) -> Changes:
        """The changes since the newest checkpoint."""
        values: dict[str, tuple[Packed, bytes]] = {}
        for key, value in state.items():
            kept = self._kept.get(key)
            if kept is None:
                pack_key(key)
            elif value is kept.value:
                continue
            packed = self._seal(key, value)
            found = digest(packed)
            if kept is None or found != kept.digest:
                values[key] = packed, found
            elif type(value) in UNCHANGING:
                kept.value = value
        return Changes(values, self._gone(state))

    def _gone(self, state: Mapping[str, Any]) -> dict[str, None]:
        """The former keys that are not at the front of the state, in their order."""
        if [*islice(state, len(self._kept))] == [*self._kept]:
            return {}
        standing = iter(state)
        first, gone = next(standing, None), dict[str, None]()
        for key in self._kept:
            if key == first:
                first = next(standing, None)
            else:
                gone[key] = None
        return gone

    def digests(self, state: Mapping[str, Any], changes: Changes) -> dict[str, bytes]:
        """The digest of each value."""
        changed = changes.values
        return {key: changed[key][1] if key in changed else self._kept[key].digest for key in state}

    def gone_of(self, base: Base, changes: Changes) -> dict[str, None] | None:
        """The keys of the base that are gone; None: all of them."""
        if base.gone is None:
            return None
        return base.gone | {key: None for key in changes.gone if self._kept[key].since <= base.lsn}

    def packed(self, state: Mapping[str, Any], changes: Changes, base: Base) -> Packed:
        """For each key [value] if it is new, else the LSN of the checkpoint that holds it; keys
        whose value is where the base has it are left out."""
        stands_until = 0 if base.gone is None else base.lsn
        items: list[bytes] = []
        for key in state:
            if key in changes.values:
                items.append(pack_key(key) + b"\x91" + changes.values[key][0])
                continue
            kept = self._kept[key]
            if key in changes.gone or max(kept.lsn, kept.since) > stands_until:
                items.append(kept.place)
        return Packed(msgpack.Packer().pack_map_header(len(items)) + b"".join(items))

    def remember(
        self, state: Mapping[str, Any], changes: Changes, lsn: int, bases: Iterable[Base]
    ) -> None:
        """Note that the checkpoint at ``lsn`` has the state, and holds the changes. ``bases``:
        those before."""
        for base in bases:
            base.gone = self.gone_of(base, changes)
        left = {key: self._kept.pop(key) for key in changes.gone}
        for key, kept in left.items():
            if key in state:
                kept.since = lsn
                self._kept[key] = kept
        for key, (packed, found) in changes.values.items():
            since = self._kept[key].since if key in self._kept else lsn
            self._kept[key] = _Kept(key, (found, lsn, len(packed), since), state[key])
        if len(left) > 0:  # what came again stands among what is new
            self._kept = {key: self._kept[key] for key in state}
