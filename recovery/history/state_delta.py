"""The state of a run, of which a checkpoint holds what changed. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgpack
import xxhash

from eventlog.errors import RefusedValueError
from eventlog.format.record import Packed
from recovery.values.pack import UNCHANGING, pack
from recovery.values.types import digest

_CHANGING = object()  # in place of a value that may be another though it is the same object


def pack_key(key: Any) -> bytes:
    """A key of a state, packed; RefusedValueError for what is none."""
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


def pack_state(state: Mapping[str, Any]) -> dict[str, Packed]:
    """Each value of a state, packed; RefusedValueError with the path to what cannot be carried."""
    for key in state:
        pack_key(key)
    return {key: pack(value, f"state.{key}") for key, value in state.items()}


def checksum(run_id: str, step: int, state: Mapping[str, bytes], rest: tuple[bytes, bytes]) -> str:
    """The checksum of a checkpoint: 32 hex digits of xxh3-128.

    ``state`` is the digest of each value by key; ``rest`` the digests of the messages and of the
    tool results (empty when these are not in the checkpoint but in the log).
    """
    first = pack([run_id, step], "checkpoint")
    others = msgpack.packb(([(key, state[key]) for key in sorted(state)], *rest))
    # One list of all five.
    return str(xxhash.xxh3_128_hexdigest(b"\x95" + first[1:] + others[1:]))


class _Kept:
    """A value as the newest checkpoint has it: its digest, the record that holds it, its size,
    and what stands for it in the next one (key and LSN, packed)."""

    __slots__ = ("digest", "lsn", "place", "size", "value")

    def __init__(self, key: str, at: tuple[bytes, int, int], value: Any) -> None:
        self.digest, self.lsn, self.size = at
        self.place = pack_key(key) + msgpack.packb(self.lsn)
        self.value = value if type(value) in UNCHANGING else _CHANGING


class StateDelta:
    """What the newest checkpoint of a run has of its state, to tell what has changed since.

    A value that nobody can change is the same if it is the same object; any other is packed, for
    a list that was changed in place is the same object too.
    """

    def __init__(self, at: Mapping[str, tuple[bytes, int, int]]) -> None:
        """``at``: of each value the digest, the LSN of the checkpoint that holds it, its size."""
        self._kept = {key: _Kept(key, where, _CHANGING) for key, where in at.items()}

    def size(self) -> int:
        """Bytes of all values."""
        return sum(kept.size for kept in self._kept.values())

    def news(self, state: Mapping[str, Any]) -> dict[str, tuple[Packed, bytes]]:
        """The values that are new or changed, packed, with their digests."""
        news: dict[str, tuple[Packed, bytes]] = {}
        for key, value in state.items():
            kept = self._kept.get(key)
            if kept is None or type(key) is not str:
                pack_key(key)
            elif value is kept.value:
                continue
            packed = pack(value, f"state.{key}")
            found = digest(packed)
            if kept is None or found != kept.digest:
                news[key] = packed, found
            elif type(value) in UNCHANGING:
                kept.value = value
        return news

    def digests(
        self, state: Mapping[str, Any], news: Mapping[str, tuple[Packed, bytes]]
    ) -> dict[str, bytes]:
        """The digest of each value."""
        return {key: news[key][1] if key in news else self._kept[key].digest for key in state}

    def packed(self, state: Mapping[str, Any], news: Mapping[str, tuple[Packed, bytes]]) -> Packed:
        """By each key [value] where it is new, else the LSN of the checkpoint that holds it."""
        items = [msgpack.Packer().pack_map_header(len(state))]
        for key in state:
            if key in news:
                items += (pack_key(key), b"\x91", news[key][0])
            else:
                items.append(self._kept[key].place)
        return Packed(b"".join(items))

    def keep(
        self, state: Mapping[str, Any], news: Mapping[str, tuple[Packed, bytes]], lsn: int
    ) -> None:
        """A checkpoint at ``lsn`` has the state, and holds what is new."""
        for key, (packed, found) in news.items():
            self._kept[key] = _Kept(key, (found, lsn, len(packed)), state[key])
        for key in self._kept.keys() - state.keys():
            del self._kept[key]
