"""Encodes messages as references to values that the log has already. Pure.

A reply, or a part of it, is appended as it came. A tool's result is part of the message with which
the model gets it. So the log already has most of a message when it is appended. A message that
equals an outcome is recorded as a Ref to the outcome. A message that contains an outcome, or a part
of one, is recorded as a CompositeMessage: literal bytes, and references to ranges of outcomes.
Joined, they are the message byte for byte, so it has the same digest. The referenced bytes are not
searched for references in turn.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeGuard, cast

import msgpack

from eventlog.format.frame import PAYLOAD_SIZE_MAX
from eventlog.format.record import Packed, Record
from eventlog.format.record import unpack as unpack_undecoded
from eventlog.light_dataclass import light_dataclass
from recovery.values.codec import BY_CODE, BY_TYPE, Codec
from recovery.values.pack import EXT_PARTS, EXT_REF, pack, split_list, unpack, unpack_map
from recovery.values.types import Ref

REF_SIZE_MIN = 32  # a smaller value is as short as a reference
PART_SIZE_MIN = 64  # the same for a part, with the reference and the bytes around it
WALKED_MAX = 256  # values of a document that are examined: large ones are near the top
WHOLE_MAX = 256  # outcomes that are remembered, the newest
INNER_MAX, INNER_EACH_MAX = 128, 16  # parts of them
FRESH_SIZE_MAX = 16 << 10  # bytes of outcomes that are not indexed until they are needed
# How much the messages of a conversation may take from outcomes; more is recorded as literal bytes.
# Forged references, a few bytes for each megabyte, then cannot use up a reader's memory.
BORROWED_MAX = 256 << 20

# Where the number of an extension value is, by its first byte.
_EXT_CODE_AT = {0xC7: 2, 0xC8: 3, 0xC9: 5, 0xD4: 1, 0xD5: 1, 0xD6: 1, 0xD7: 1, 0xD8: 1}

_PORTION = b"\xa7portion"  # the first key of a chunk's record, and of no checkpoint

Fetch = Callable[[set[int]], dict[int, Record]]
Span = tuple[int, int, int]  # LSN of an outcome; where in its packed value: from, to


@light_dataclass
class CompositeMessage:
    """A packed message in pieces: literal bytes, and ranges in the values of outcomes."""

    pieces: tuple[bytes | Span, ...]

    @property
    def lsns(self) -> set[int]:
        """The LSNs of the records that it needs."""
        return {piece[0] for piece in self.pieces if type(piece) is tuple}

    @property
    def referenced_size(self) -> int:
        """Bytes that come from outcomes."""
        return sum(piece[2] - piece[1] for piece in self.pieces if type(piece) is tuple)

    def joined(self, value_at: Callable[[int], bytes]) -> Packed:
        """The message; ``value_at`` gives the packed value of the outcome of an LSN.

        ValueError when it would be larger than any that was recorded, or the outcome is smaller.
        """
        if self.referenced_size > PAYLOAD_SIZE_MAX:
            raise ValueError(f"a message of {self.referenced_size} bytes")
        pieces = []
        for piece in self.pieces:
            if type(piece) is bytes:
                pieces.append(piece)
                continue
            lsn, start, stop = piece
            pieces.append(value_at(lsn)[start:stop])
            if len(pieces[-1]) != stop - start:
                raise ValueError(f"LSN {lsn} has no bytes {start} to {stop}")
        return Packed(b"".join(pieces))

    def moved(self, at: dict[int, int]) -> CompositeMessage:
        """The same, where records have other LSNs."""
        return CompositeMessage(
            tuple(
                piece if type(piece) is bytes else (at[piece[0]], *piece[1:])
                for piece in self.pieces
            )
        )


def _encode(parts: CompositeMessage) -> bytes:
    return bytes(msgpack.packb(parts.pieces))


def _decode(data: bytes) -> CompositeMessage:
    pieces = unpack_undecoded(data)
    if type(pieces) is not list or not pieces:
        raise ValueError("no parts")
    return CompositeMessage(tuple(_piece(piece) for piece in pieces))


def _piece(piece: object) -> bytes | Span:
    if type(piece) is bytes:
        return piece
    if type(piece) is list and [type(number) for number in piece] == [int, int, int]:
        lsn, start, stop = piece
        if lsn > 0 and 0 <= start < stop:
            return lsn, start, stop
    raise ValueError("no part of a message")


BY_TYPE[CompositeMessage] = BY_CODE[EXT_PARTS] = Codec(EXT_PARTS, _encode, _decode, atom=True)


def parse_reference(packed: bytes) -> Ref | CompositeMessage | None:
    """The reference that stands for a message, if there is one."""
    at = _EXT_CODE_AT.get(packed[0]) if packed else None
    if at is None or packed[at : at + 1] not in (b"%c" % EXT_REF, b"%c" % EXT_PARTS):
        return None
    found = unpack(packed)
    return found if is_reference(found) else None


def is_reference(item: object) -> TypeGuard[Ref | CompositeMessage]:
    """Whether a recorded message is a reference."""
    return isinstance(item, Ref | CompositeMessage)


def refs_of(items: Iterable[object], lsn: int) -> list[Ref | None]:
    """The positions in the log of the messages recorded as ``items`` in record ``lsn`` (0: it will
    be recorded later)."""
    return [
        item if isinstance(item, Ref) else Ref(lsn, i) if lsn else None
        for i, item in enumerate(items)
    ]


# -- writing


def walk_document(
    packed: bytes, take: Callable[[int, int], bool], size_min: int = PART_SIZE_MIN
) -> None:
    """Call ``take`` with the positions of large values in a document, outer ones first. When it
    returns True, the values inside are skipped."""
    todo, left = deque([(0, len(packed))]), WALKED_MAX
    while todo:
        start, stop = todo.popleft()
        if take(start, stop) or not left:
            continue
        first = packed[start]
        is_map = first & 0xF0 == 0x80 or first in (0xDE, 0xDF)
        if not is_map and first & 0xF0 != 0x90 and first not in (0xDC, 0xDD):
            continue
        reader = msgpack.Unpacker(max_buffer_size=stop - start)
        reader.feed(packed[start:stop])
        count = reader.read_map_header() if is_map else reader.read_array_header()
        count = min(count, left)
        left -= count
        for _ in range(count):
            if is_map:
                reader.skip()
            at = reader.tell()
            reader.skip()
            if reader.tell() - at >= size_min:
                todo.append((start + at, start + reader.tell()))


# -- reading


class LostValueError(ValueError):
    """A record that a message needs (``lsn``) is damaged or missing, or holds no message."""

    def __init__(self, lsn: int, why: str) -> None:
        self.lsn = lsn
        super().__init__(why)


def is_chunk(snapshot: Record) -> bool:
    """Whether a snapshot record is no checkpoint, but a chunk of values for a later one."""
    return snapshot.packed[1 : 1 + len(_PORTION)] == _PORTION


def values_in(record: Record) -> list[Packed]:
    """The values that Refs to a record name by index; messages may be composite."""
    match record.kind:
        case "outcome" | "signal" | "resolved":
            return [unpack_map(record.packed)["value"]]
        case "messages":
            return split_list(unpack_map(record.packed)["new"])
        case "snapshot":
            return split_list(unpack_map(record.packed)["messages"])
    raise LostValueError(
        record.lsn, f"LSN {record.lsn} is a {record.kind!r}, which holds no message"
    )


RECENT_SIZE_MAX = 8 << 20


class RecentValues(OrderedDict[int, Packed]):
    """The last values of a log by LSN, up to ``RECENT_SIZE_MAX`` bytes: messages refer to them."""

    size = 0

    def remember(self, lsn: int, packed: Packed) -> None:
        """Add the newest value."""
        self[lsn] = packed
        self.size += len(packed)
        while self.size > RECENT_SIZE_MAX:
            self.size -= len(self.popitem(last=False)[1])


class RecordedValues:
    """The values in the records of a log, read when they are needed, each once.

    ``known``: outcomes that are at hand, packed or not, by LSN.
    """

    def __init__(self, fetch: Fetch, known: Mapping[int, Any] | None = None) -> None:
        self._fetch, self._known = fetch, known or {}
        self._read: dict[int, list[Packed]] = {}

    def read(self, lsns: Iterable[int]) -> None:
        """Read these records, all at once."""
        missing = {lsn for lsn in lsns if lsn not in self._read and lsn not in self._known}
        if not missing:
            return
        found = self._fetch(missing)
        for lsn in missing:
            if lsn not in found:
                raise LostValueError(lsn, f"it needs LSN {lsn}, which is damaged or missing")
            try:
                self._read[lsn] = values_in(found[lsn])
            except KeyError:
                raise LostValueError(lsn, f"LSN {lsn} holds no message") from None

    def at(self, lsn: int, index: int = 0) -> Packed:
        """The packed value of a record."""
        if lsn in self._known:
            value = self._known[lsn]
            return value if type(value) is Packed else pack(value, "outcome")
        if lsn not in self._read:
            self.read([lsn])
        values = self._read[lsn]
        if not 0 <= index < len(values):
            raise LostValueError(lsn, f"LSN {lsn} has no value {index}")
        return values[index]


def resolve(
    values: RecordedValues, items: Iterable[Packed | Ref | CompositeMessage]
) -> tuple[list[bytes], int]:
    """Recorded messages, packed, with references resolved; and the number of referenced bytes.

    Reads the log twice at most. LostValueError when it lacks one of the messages, ValueError when
    they make no sense.
    """
    stands = [(parse_reference(one) or one) if isinstance(one, bytes) else one for one in items]
    values.read(one.lsn for one in stands if isinstance(one, Ref))
    placed = [values.at(one.lsn, one.index) if isinstance(one, Ref) else one for one in stands]
    # By the object: a message that is named many times is there once.
    parts: dict[int, CompositeMessage] = {}
    for one in placed:
        found = parse_reference(one) if isinstance(one, bytes) else one
        if isinstance(found, CompositeMessage):
            parts[id(one)] = found
    borrowed = sum(one.referenced_size for one in parts.values())
    if borrowed > BORROWED_MAX:
        raise ValueError(f"messages that take {borrowed} bytes from elsewhere")
    values.read(lsn for one in parts.values() for lsn in one.lsns)
    joined = {key: one.joined(values.at) for key, one in parts.items()}
    return cast(list[bytes], [joined.get(id(one), one) for one in placed]), borrowed
