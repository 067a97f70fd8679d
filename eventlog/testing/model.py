"""Lists what one file may hold after a power loss, by what was flushed and what was not. Pure.

A write that was not flushed is kept, lost, or torn: cut after any of its bytes, or with some of the
sectors that it touches missing. Where a file has grown over bytes that did not reach the disk, it
holds zeros, ones (erased flash), or stale bytes: former content of these blocks.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

SECTOR = 512
PAGE = 4096
BYTES = 256  # a write of up to so many bytes is cut at each; a longer one at edges and sectors

Piece = tuple[int, bytes]


@dataclass(slots=True)
class Write:
    """A write; with ``data`` None, a change of the size to ``offset`` bytes.

    ``clean``: a flush of it failed, and no later flush will write it. ``durable``: it was flushed.
    """

    offset: int
    data: bytes | None
    clean: bool = False
    durable: bool = False


def _edges(offset: int, size: int) -> range:
    """Where, in a write, one sector of the file ends and the next begins; pages in a long one."""
    unit = SECTOR if size <= 16 * SECTOR else PAGE
    return range(unit - offset % unit, size, unit)


def kept(content: bytes, write: Write) -> bytes:
    """The file with the whole of the write."""
    if write.data is None:
        return content[: write.offset].ljust(write.offset, b"\0")
    return _put(content, [(write.offset, write.data)], 0, b"")


def _put(content: bytes, pieces: Iterable[Piece], size: int, stale: bytes) -> bytes:
    """The file with these pieces, of at least ``size`` bytes; ``stale`` fills the gaps."""
    result = bytearray(content)
    end = max([size, *(offset + len(data) for offset, data in pieces)])
    if end > len(result):
        result += stale[len(result) : end].ljust(end - len(result), b"\0")
    for offset, data in pieces:
        result[offset : offset + len(data)] = data
    return bytes(result)


def torn(content: bytes, write: Write, ghost: bytes) -> Iterator[bytes]:
    """Every content that the write may have left when it was neither kept nor lost."""
    if write.data is None:
        return
    end = write.offset + len(write.data)
    for pieces in _pieces(write.offset, write.data):
        yield _put(content, pieces, 0, b"")
        if end > len(content):  # grown, and not all of it filled
            yield from (_put(content, pieces, end, stale) for stale in _stale(end, ghost))


def _stale(size: int, ghost: bytes) -> Iterator[bytes]:
    yield b""
    yield b"\xff" * size
    if ghost.rstrip(b"\0"):
        yield ghost
        yield ghost[8:]  # the same, shifted


def _pieces(offset: int, data: bytes) -> Iterator[list[Piece]]:
    """The ways in which a part of a write reaches the disk: the bytes, and their offset."""
    yield []
    for size in _cuts(offset, data):
        yield [(offset, data[:size])]
    sectors = _sectors(offset, data)
    if len(sectors) > 1:
        for i in range(min(len(sectors), 16)):
            yield [*sectors[:i], *sectors[i + 1 :]]  # one is missing
            yield [sectors[i]]  # it alone is there


def _cuts(offset: int, data: bytes) -> list[int]:
    size = len(data)
    text = len(data.rstrip(b"\0"))  # zeros after it change only the size
    cuts = set(range(1, min(text + 2, BYTES)))
    edges = {*_edges(offset, size), text, text // 8 * 8 + 8, size}
    cuts |= {edge + by for edge in edges for by in (-1, 0, 1)}
    return sorted(cut for cut in cuts if 0 < cut < size)


def _sectors(offset: int, data: bytes) -> list[Piece]:
    """The write in parts that lie in different sectors of the file, or pages if it is long."""
    edges = [0, *_edges(offset, len(data)), len(data)]
    return [(offset + start, data[start:end]) for start, end in pairwise(edges)]


def whole(durable: bytes, writes: list[Write]) -> set[bytes]:
    """Every content with any of the writes that were not flushed, none of them torn."""
    found = {durable}
    for write in writes:
        changed = {kept(content, write) for content in found}
        found = changed if write.durable else found | changed
    return found


def torn_once(durable: bytes, writes: list[Write], ghost: bytes) -> Iterator[bytes]:
    """Every content with one write torn, and any of the others. Some come more than once."""
    for i, write in enumerate(writes):
        if not write.durable:
            for before in whole(durable, writes[:i]):
                for content in torn(before, write, ghost):
                    yield from whole(content, writes[i + 1 :])


def chosen(durable: bytes, writes: list[Write], ghost: bytes, choose: random.Random) -> bytes:
    """One content, with any number of the writes torn."""
    content = durable
    for write in writes:
        fate = 1 if write.durable else choose.random()
        if fate >= 0.7 or (fate >= 0.4 and write.data is None):
            content = kept(content, write)
        elif fate >= 0.3 and write.data:
            content = _torn_by_chance(content, write, ghost, choose)
    return content


def _torn_by_chance(content: bytes, write: Write, ghost: bytes, choose: random.Random) -> bytes:
    assert write.data is not None
    offset, data = write.offset, write.data
    if len(data) <= SECTOR or choose.random() < 0.5:
        pieces = [(offset, data[: choose.randrange(len(data) + 1)])]
    else:
        pieces = [piece for piece in _sectors(offset, data) if choose.random() < 0.5]
    size = offset + len(data) if choose.random() < 0.3 else 0
    shift = choose.choice((0, 0, 8, 64, SECTOR))
    stale = choose.choice((b"", b"\xff" * size, ghost[shift:]))
    return _put(content, pieces, size, stale)
