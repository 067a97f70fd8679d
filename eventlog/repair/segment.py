"""Rewrites a damaged segment: sound frames byte for byte, and placeholders for lost records.

A frame's CRCs depend on the salt, not on its offset; neither does its encryption. So sound frames
are copied unchanged, under the same salt.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import xxhash

from eventlog.crypto.encrypter import Encrypter
from eventlog.errors import Damage, LogError
from eventlog.files.api import Directory, write_all
from eventlog.format.durable_mark import DurableMark
from eventlog.format.envelope import decode_envelope
from eventlog.format.footer import read_footer
from eventlog.format.frame import (
    BEYOND,
    ENCRYPTED,
    FOOTER,
    HEADER_SIZE,
    RECORDS,
    SNAPSHOT,
    Frame,
    contains_salt,
    encode_frame,
)
from eventlog.format.names import segment_name
from eventlog.format.record import Packed, encode_payload, pack
from eventlog.format.torn_or_damaged import End, Segment
from eventlog.read.reader import LogReader
from eventlog.repair.planning import LOST, Range, SegmentPlan, header_for
from eventlog.write.segment_writer import SegmentWriter

LOST_AT_ONCE = 4096  # placeholders in a frame: a reader holds one frame in memory
_TRIES = 64


def placeholders(lost: Range, snapshots: Collection[int]) -> Iterator[tuple[int, list[Packed]]]:
    """The placeholders for lost records: for each frame its first LSN, and its bodies.

    The first body has the last LSN of its frame, and whether a snapshot was lost there.
    """
    first, last = lost
    for lsn in range(first, last + 1, LOST_AT_ONCE):
        until = min(lsn + LOST_AT_ONCE - 1, last)
        about = {"last": until} | ({"snapshot": True} if lsn in snapshots else {})
        yield lsn, [Packed(pack(about)), *[Packed(pack({"last": 0}))] * (until - lsn)]


class Rewriting:
    """Rewrites one segment. ``snapshot``: the newest sound one, first before this segment, and then
    up to its end. ``time_ns``: the time of the placeholders."""

    def __init__(self, reader: LogReader, plan: SegmentPlan, log_id: bytes, time_ns: int) -> None:
        self._reader, self._plan, self._time_ns = reader, plan, time_ns
        self._random_bytes = reader.files.random_bytes
        self.kept = 0  # records
        mark, _ = reader.listing.segments_from(BEYOND)
        self._frames: list[tuple[Frame, bytes]] = []
        if plan.info is not None:
            self._frames = list(_sound(reader, plan, mark))
        first = self._frames[0] if self._frames else None
        salt = self._salt()
        encrypted = first is not None and bool(first[0].flags & ENCRYPTED)
        self.header = header_for(reader, plan, log_id, (salt, encrypted))
        self._encrypter = self._encrypter_for(first)

    def _salt(self) -> bytes:
        if self._frames:
            return self._frames[0][0].salt
        return bytes(byte or 0xA5 for byte in self._random_bytes(4))

    def _encrypter_for(self, first: tuple[Frame, bytes] | None) -> Encrypter | None:
        """The encrypter for placeholders, with the key of the segment."""
        if not self.header.encrypted or not self._plan.lost:
            return None
        decoder = self._reader.decoder
        envelope = decode_envelope(first[1]) if first is not None else None
        if envelope is not None:
            return Encrypter(decoder._key_of(envelope), self._random_bytes)
        return decoder.encrypter(self._random_bytes)

    def write(self, directory: Directory, snapshot: int) -> int:
        """Replace the damaged file; durable, and read back, when this returns.

        After a crash the name leads to the old or the new file, complete. Returns the LSN of the
        newest snapshot up to its end. Raises LogError when the file reads back differently.
        """
        name = segment_name(self._plan.number)
        temporary = f"{name}.{self.header.salt.hex()}.new"
        file = directory.open(temporary, write=True, create=True)
        try:
            encoded = self.header.encode()
            write_all(file, encoded, 0)
            index = [(self.header.first_lsn, HEADER_SIZE)]
            writer = SegmentWriter(file, self.header, HEADER_SIZE, index, preallocate=False)
            digest = xxhash.xxh3_128(encoded)
            for lsn, frame, newest in self._parts(snapshot):
                writer.write(frame, lsn)
                digest.update(frame)
                snapshot = newest
            writer.seal(DurableMark(self._plan.next - 1, snapshot), clean=False)
            self._check(file.pread(file.size(), 0), digest.digest())
        except BaseException:
            file.close()
            directory.remove(temporary)
            raise
        file.close()
        directory.replace(temporary, name)
        directory.sync()
        return snapshot

    def _parts(self, snapshot: int) -> Iterator[tuple[int, bytes, int]]:
        """Frames in the order of their LSNs, each with the newest snapshot up to it."""
        lost = list(self._plan.lost)
        for frame, payload in self._frames:
            while lost and lost[0][0] < frame.lsn:
                yield from self._placeholders(lost.pop(0), snapshot)
            snapshot = frame.lsn if frame.kind == SNAPSHOT else snapshot
            marks = (frame.lsn, frame.durable, frame.snapshot)
            kind = frame.kind | frame.flags
            yield frame.lsn, encode_frame(frame.salt, kind, frame.count, payload, marks), snapshot
        for one in lost:
            yield from self._placeholders(one, snapshot)

    def _placeholders(self, lost: Range, snapshot: int) -> Iterator[tuple[int, bytes, int]]:
        for lsn, bodies in placeholders(lost, self._plan.snapshots):
            yield lsn, self._placeholder(lsn, bodies, snapshot), snapshot

    def _placeholder(self, lsn: int, bodies: list[Packed], snapshot: int) -> bytes:
        # Durable before the segment is renamed: so is everything before it.
        marks, kind, salt = (lsn, lsn - 1, snapshot), RECORDS, self.header.salt
        count, payload = len(bodies), b""
        for n in range(_TRIES):  # no payload contains the salt of its segment
            payload = encode_payload(self._time_ns + n, [(LOST, body) for body in bodies])
            if self._encrypter is not None or not contains_salt(payload, salt):
                break
        if self._encrypter is not None:
            kind |= ENCRYPTED
            info = Frame(0, 0, kind, *marks, count, 0, 0, salt)
            payload = self._encrypter.encrypt(self.header, info, payload)
        return encode_frame(salt, kind, count, payload, marks)

    def _check(self, content: bytes, digest: bytes) -> None:
        """Raise unless the segment reads back as planned."""
        plan, header = self._plan, self.header
        walk = Segment(plan.number, content, header.salt, DurableMark(), None)
        found: list[tuple[int, int]] = []
        for item in walk.walk(HEADER_SIZE, plan.first):
            if isinstance(item, tuple):
                found += [(item[0].lsn, item[0].count)] if item[0].kind != FOOTER else []
            elif isinstance(item, Damage) or item.torn_size:
                raise _misread(plan)
        footer = read_footer(content, header.salt)
        ends = found[-1][0] + found[-1][1] if found else plan.first
        if content[:HEADER_SIZE] != header.encode() or footer is None or ends != plan.next:
            raise _misread(plan)
        if footer.digest != digest or xxhash.xxh3_128_digest(content[: footer.offset]) != digest:
            raise _misread(plan)


def _sound(
    reader: LogReader, plan: SegmentPlan, mark: DurableMark
) -> Iterator[tuple[Frame, bytes]]:
    """The frames of a segment that count, and whose records can be decoded."""
    assert plan.info is not None
    segment = reader._load(plan.info, mark)
    for item in segment.walk(HEADER_SIZE, plan.first):
        if isinstance(item, Damage | End) or item[0].kind == FOOTER:
            continue
        if not isinstance(reader.decoder.examine(plan.info, *item), str):
            yield item


def _misread(plan: SegmentPlan) -> LogError:
    return LogError(
        f"{segment_name(plan.number)} was rewritten, and does not read back as it was written: "
        "do not trust this disk. The damaged file is still in its place; copy the log to "
        "another disk and repair it there."
    )
