"""Messages of what the log has already: what is recorded in their place. Pure.

A reply is appended as it came, or a part of it is; a tool's result stands in the message that
tells the model of it. So the log has most of a message when it is appended. What is recorded for a
message that equals an outcome is a Ref to that. For one that holds an outcome, or a part of one, it
is Parts: some bytes as they are, others by where they are in an outcome. Joined, they are the
message as it would have been recorded whole, byte for byte: whatever is in it, and with the same
digest. What they are joined of is not looked at for references in turn.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard, cast

import msgpack

from eventlog.format.frame import PAYLOAD_SIZE_MAX
from eventlog.format.record import Packed, Record
from eventlog.format.record import unpack as unpack_undecoded
from recovery.values.codec import BY_CODE, BY_TYPE, Codec
from recovery.values.pack import EXT_PARTS, EXT_REF, pack, split_list, unpack, unpack_map
from recovery.values.types import Ref

REF_SIZE_MIN = 32  # below this the value itself is as short as a reference
PART_SIZE_MIN = 64  # the same for a part: a reference, and the bytes around it
WALKED_MAX = 256  # values in a document that are looked at: what is worth it stands near the top
WHOLE_MAX = 256  # outcomes that are remembered, the newest
INNER_MAX, INNER_EACH_MAX = 128, 16  # parts of them
FRESH_SIZE_MAX = 16 << 10  # bytes of outcomes that are held until somebody asks for their parts
# What the messages of a conversation may take from outcomes; more is recorded as it is. It keeps
# forged references, a few bytes for each megabyte, from using up a reader's memory.
BORROWED_MAX = 256 << 20

# Where the number of an extension value is, by its first byte.
_EXT_CODE_AT = {0xC7: 2, 0xC8: 3, 0xC9: 5, 0xD4: 1, 0xD5: 1, 0xD6: 1, 0xD7: 1, 0xD8: 1}

_PORTION = b"\xa7portion"  # the first key of such a record, and of no checkpoint

Fetch = Callable[[set[int]], dict[int, Record]]
Span = tuple[int, int, int]  # LSN of an outcome; where in its packed value: from, to


@dataclass(frozen=True, slots=True)
class CompositeMessage:
    """A message, packed, in pieces: bytes, and where in the values of outcomes the others are."""

    pieces: tuple[bytes | Span, ...]

    @property
    def lsns(self) -> set[int]:
        """The records that it needs."""
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
    """What stands here for a message, if something does."""
    at = _EXT_CODE_AT.get(packed[0]) if packed else None
    if at is None or packed[at : at + 1] not in (b"%c" % EXT_REF, b"%c" % EXT_PARTS):
        return None
    found = unpack(packed)
    return found if is_reference(found) else None


def is_reference(item: object) -> TypeGuard[Ref | CompositeMessage]:
    """Whether a recorded message is not itself but what stands for it."""
    return isinstance(item, Ref | CompositeMessage)


def refs_of(items: Iterable[object], lsn: int) -> list[Ref | None]:
    """Where in the log the messages are that are recorded as ``items`` in record ``lsn`` (0: it is
    put off, and where is not known yet)."""
    return [
        item if isinstance(item, Ref) else Ref(lsn, i) if lsn else None
        for i, item in enumerate(items)
    ]


# -- writing


def walk_document(packed: bytes, take: Callable[[int, int], bool]) -> None:
    """Show ``take`` where values of some size are in a document, each before what is in it; what
    it takes (it says True) is not looked into."""
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
            if reader.tell() - at >= PART_SIZE_MIN:
                todo.append((start + at, start + reader.tell()))


# -- reading


class LostValueError(ValueError):
    """A record that a message needs (``lsn``) is damaged or missing, or holds no message."""

    def __init__(self, lsn: int, why: str) -> None:
        self.lsn = lsn
        super().__init__(why)


def is_chunk(snapshot: Record) -> bool:
    """Whether a snapshot record is no checkpoint, but holds values for those behind it."""
    return snapshot.packed[1 : 1 + len(_PORTION)] == _PORTION


def values_in(record: Record) -> list[Packed]:
    """The values that Refs to a record name by their index; those of messages may be Parts."""
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
        """The newest."""
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
    """Recorded messages as they are, packed, and how much of them was borrowed.

    Two reads of the log at most, however many there are. LostValueError when it lacks one of them,
    ValueError when they make no sense.
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
