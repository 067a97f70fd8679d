"""Reads a log without a lock and without writing; the log may be live, dead or damaged."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from types import TracebackType
from typing import Self

from eventlog.crypto.keys import Encryption
from eventlog.errors import Damage, DamagedError
from eventlog.files.api import Directory, Files
from eventlog.files.lock import LogOwner, former_of, owner_of
from eventlog.format.durable_mark import DurableMark
from eventlog.format.footer import digest_holds, read_footer
from eventlog.format.frame import (
    ALIGNMENT,
    BEYOND,
    FOOTER,
    FRAME_SIZE,
    HEADER_SIZE,
    SNAPSHOT,
    Frame,
)
from eventlog.format.names import segment_name
from eventlog.format.record import Record, Snapshot
from eventlog.format.torn_or_damaged import End, Segment
from eventlog.protocols import OnDamage
from eventlog.read.log_end import Tail, encoded, index_of, newest_snapshot
from eventlog.read.payloads import Decoder
from eventlog.read.sealed_segment import Sealed, Wanted, with_any_of
from eventlog.read.segment_files import identify, read_segment
from eventlog.read.segments import RETRIES_MAX, Listing, SegmentInfo, or_removed, retried
from eventlog.read.stream import sound_in_pieces

_logger = logging.getLogger("eventlog")

POLL_S = 0.02  # how often a follower looks for more


class LogReader:
    """A read-only view of the log in a directory; made by ``EventLog.read``.

    Any number of readers may read while a writer appends. Any number of threads may share a reader,
    each with an iteration of its own. A reader sees records as soon as the writer's ``append`` has
    returned; after a power loss some of these may be gone.

    Without the key of an encrypted log only ``eventlog.dump`` works. Every other read raises
    EncryptedLogError at the first record, or WrongKeyError with a wrong key.
    """

    def __init__(
        self, files: Files, directory: Directory, encryption: Encryption | None = None
    ) -> None:
        """Not for users: call ``EventLog.read``."""
        self.files, self._directory = files, directory
        self.path = directory.path
        self.listing = Listing(directory)
        self.decoder = Decoder(self.path, self.listing, encryption)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the directory. Reading afterwards raises OSError."""
        self._directory.close()

    def records(
        self, start: int = 1, follow: bool = False, on_damage: OnDamage | None = None
    ) -> Iterator[Record]:
        """Records from LSN ``start`` in order, snapshots among them.

        With ``follow`` the iteration waits at the end of the log for more records, across segments
        and writers, until the caller closes it. At damage it raises DamagedError, or passes the
        damage to ``on_damage`` and continues after it. It skips records that
        ``EventLog.truncate_before`` has removed.
        """
        report = on_damage or self._raise
        for item in self.arrivals(start):
            if isinstance(item, Record):
                yield item
            elif item is not None:
                report(item)
            elif follow:
                time.sleep(POLL_S)
            else:
                return

    def arrivals(
        self, start: int = 1, position: Position | None = None
    ) -> Iterator[Record | Damage | None]:
        """As ``records``, for callers that follow a log and wait in their own way.

        None means that there are no more records now: wait as long as you like, then continue.
        Damage is yielded among the records. The iteration never ends and never waits. ``position``,
        made for the same start, gives the position of each item in the log.
        """
        position = position or Position(start)
        while True:
            for item in self._pass(position):
                if isinstance(item, Record):
                    if item.lsn >= start:
                        yield item
                elif item.last_lsn >= start or not item.lost:
                    yield item
            yield None
            while not self._grown(position):
                yield None

    @property
    def oldest_lsn(self) -> int:
        """The LSN that the log begins at; above 1 after ``EventLog.truncate_before``."""
        return self.listing.oldest_lsn()

    def durable_lsn(self) -> int:
        """Records up to this LSN are known to have been flushed, as far as the log itself says.

        A later record can be read, but a power loss may still take it away, and another record may
        get its LSN.
        """
        return retried(self._durable_lsn)

    def _durable_lsn(self) -> int:
        mark, infos = self.listing.segments_from(BEYOND)
        if mark.durable or not infos:
            return mark.durable
        info = infos[-1]  # what is before a segment was made durable before it was made
        return max(info.first_lsn - 1, self._load(info, mark).durable_up_to())

    def owner(self) -> LogOwner | None:
        """Who has the log, or had it last; None when nothing says so. Takes no lock."""
        return owner_of(self._directory)

    def former_owner(self) -> str:
        """See ReadableLog.former_owner."""
        return former_of(self._directory)

    def snapshots(self, on_damage: OnDamage | None = None) -> Iterator[Snapshot]:
        """Verified snapshots, the newest first; a damaged one is passed to ``on_damage``."""
        before = BEYOND
        for look in count(1):
            try:
                for item in self._newest_first(before):
                    if isinstance(item, Snapshot):
                        before = item.lsn
                        yield item
                    else:
                        before = item.first_lsn
                        _logger.warning("%s: %s; an earlier one stands in", self.path, item)
                        if on_damage is not None:
                            on_damage(item)
                return
            except FileNotFoundError:  # removed meanwhile: look again
                if look == RETRIES_MAX:
                    raise

    def _newest_first(self, before: int) -> Iterator[Snapshot | Damage]:
        """Snapshots before an LSN, from the end of the log; segments are read one by one."""
        mark, infos = self.listing.newest_first()
        for info in infos:
            if not 0 < info.first_lsn < before:
                continue
            sealed = Sealed.open(self._directory, info)
            if sealed is not None:
                newest, found = sealed.footer.snapshot, None
                with sealed:
                    if info.first_lsn <= newest < before:
                        found = self._picked(sealed, info, mark, {newest})
                if newest < info.first_lsn:
                    continue
                for snapshot in (found or {}).values():
                    if isinstance(snapshot, Snapshot):
                        before = newest
                        yield snapshot
            yield from self._scanned(info, mark, before)

    def _scanned(
        self, info: SegmentInfo, mark: DurableMark, before: int
    ) -> Iterator[Snapshot | Damage]:
        found: list[Snapshot | Damage] = []
        position = Position(info.first_lsn)
        for item in self._decoded(info, mark, position, lambda f: f.kind == SNAPSHOT):
            lsn = item.first_lsn if isinstance(item, Damage) else item.lsn
            if isinstance(item, Snapshot) or (isinstance(item, Damage) and item.snapshot):
                found += [item] if lsn < before else []
        yield from reversed(found)

    def latest_snapshot(self) -> Snapshot | None:
        """The newest snapshot that verifies, or None. Nothing is deleted because one did not."""
        return next(self.snapshots(), None)

    def fetch(self, lsns: set[int]) -> dict[int, Record]:
        """The records of ``lsns`` that are there and sound; the others are left out."""
        found: dict[int, Record] = {}
        if not lsns:
            return found
        mark, infos = self.listing.segments_with(lsns)
        for info in infos:
            limit = info.superseded_at or BEYOND
            wanted = {lsn for lsn in lsns if info.first_lsn <= lsn < limit}
            if not wanted or not info.first_lsn:
                continue
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                found.update(self._records_of(info, mark, wanted))
        return found

    def _records_of(
        self, info: SegmentInfo, mark: DurableMark, wanted: set[int]
    ) -> dict[int, Record]:
        sealed = Sealed.open(self._directory, info)
        if sealed is not None:
            with sealed:
                picked = self._picked(sealed, info, mark, wanted)
            if picked is not None:
                return picked
        found: dict[int, Record] = {}
        last = max(wanted)
        for item in self._decoded(info, mark, Position(min(wanted)), with_any_of(wanted)):
            if isinstance(item, Record) and item.lsn in wanted:
                found[item.lsn] = item
                if item.lsn == last:
                    break
        return found

    def _picked(
        self, sealed: Sealed, info: SegmentInfo, mark: DurableMark, lsns: set[int]
    ) -> dict[int, Record] | None:
        """The records, from where the index says they are; None when a scan has to find out."""
        found: dict[int, Record] = {}
        for item in sealed.frames(lsns, mark):
            records = None if item is None else self.decoder.records(info, *item)
            if not isinstance(records, list):
                return None
            for record in records:
                if record.lsn in lsns:
                    found[record.lsn] = record
        return found

    def tail(self) -> Tail:
        """Verify the last segment and say where the log ends."""
        return retried(self._tail)

    def _tail(self) -> Tail:
        mark, infos = self.listing.segments_from(BEYOND)
        number = infos[-1].number if infos else 0
        damaged = [info.damage for info in reversed(infos) if info.damage is not None]
        info = next((info for info in infos if info.first_lsn), None)
        if info is None:
            lost = _unreadable(mark, infos)
            damaged += [lost] if lost else []
            oldest = infos[-1].oldest_lsn if infos else 1
            return Tail(number, number, mark.durable + 1, oldest, damaged=tuple(damaged))
        info = replace(info, superseded_at=None)
        segment = self._load(info, mark)
        footer, size = read_footer(segment.buf, segment.salt), len(segment.buf)
        whole = footer is not None and digest_holds(segment.buf, footer) and not damaged
        if footer is not None and whole and footer.next_lsn > mark.durable:
            return Tail(
                number,
                info.number,
                footer.next_lsn,
                info.oldest_lsn,
                info.header,
                offset=size,
                snapshot=footer.snapshot,
                records=footer.next_lsn - info.first_lsn,
                size=size,
                clean=footer.clean,
                index=footer.index,
                sealed=True,
                unflushed=((footer.offset, segment.buf[footer.offset :]),),
            )
        frames, end = [], End(HEADER_SIZE, info.first_lsn, 0, 0)
        unflushed: list[tuple[Frame, bytes]] = []
        for item in self._frames(info, mark, Position(info.first_lsn), loaded=segment):
            if isinstance(item, Damage):
                damaged.append(item)
            elif isinstance(item, End):
                end = item
            else:
                frames.append(item[0])
                if item[0].lsn > mark.durable:
                    unflushed.append(item)
        return Tail(
            number,
            info.number,
            end.next_lsn,
            info.oldest_lsn,
            info.header,
            offset=end.offset,
            snapshot=newest_snapshot(frames, mark),
            records=sum(frame.count for frame in frames),
            size=size,
            torn_size=end.torn_size,
            torn_frames=end.torn_frames,
            damaged=tuple(damaged),
            index=index_of(info, frames),
            unflushed=tuple(encoded(frames, unflushed, segment.salt)),
        )

    def _raise(self, damage: Damage) -> None:
        raise DamagedError(self.path, damage)

    def _load(self, info: SegmentInfo, mark: DurableMark, offset: int = 0) -> Segment:
        """The segment, or only what it holds from the frame at ``offset`` on."""
        if offset <= HEADER_SIZE or offset % ALIGNMENT or info.header is None:
            buf, base = read_segment(self._directory, info.number), 0
            salt, _ = identify(buf) or (b"", 0)
        else:
            buf, base = read_segment(self._directory, info.number, offset), offset
            salt = info.header.salt
        segment = Segment(info.number, buf, salt, mark, info.superseded_at, base)
        # A segment with a footer ends there, whichever segment comes after it.
        segment.successor_unreadable = (
            info.successor_unreadable and read_footer(buf, salt, base) is None
        )
        return segment

    def _start(self, info: SegmentInfo, lsn: int) -> tuple[int, int]:
        """An LSN at or before ``lsn``, and the offset of its frame."""
        found = None
        if lsn > info.first_lsn and (sealed := Sealed.open(self._directory, info)):
            with sealed:
                found = sealed.start(lsn)
        return found or (info.first_lsn, HEADER_SIZE)

    def _frames(
        self,
        info: SegmentInfo,
        mark: DurableMark,
        position: Position,
        wanted: Wanted | None = None,
        loaded: Segment | None = None,
    ) -> Iterator[tuple[Frame, bytes] | Damage | End]:
        """Walks a segment from ``position``, which moves past everything that is yielded.

        A position without an offset is looked up.

        A writer may write while this reads. So a frame may be there while an earlier frame, which
        it calls durable, is not. Damage is believed if the lost records were known to be durable
        before the bytes were read; otherwise the bytes are read again.
        """
        vouched = mark.durable if info.superseded_at is None else info.superseded_at - 1
        if not position.offset:
            position.lsn, position.offset = self._start(info, position.lsn)
        if wanted is None:  # of a segment that was loaded, the last one, it gives nothing
            start = position.offset, position.lsn
            for frame, payload in sound_in_pieces(self._directory, info, start):
                position.offset, position.lsn = frame.end, frame.lsn + frame.count
                yield frame, payload
        while True:
            segment = loaded or self._load(info, mark, position.offset)
            loaded = None
            for item in segment.walk(position.offset, position.lsn, wanted):
                if isinstance(item, tuple):  # first, as nearly all are
                    position.offset = item[0].end
                    position.lsn = item[0].lsn + item[0].count
                elif isinstance(item, Damage):
                    # Damage before the position is padding, of a frame that was read whole.
                    if item.offset >= position.offset and item.first_lsn > vouched:
                        vouched = max(segment.durable_up_to(), item.first_lsn)
                        break
                    position.offset = item.offset + item.size
                    position.lsn = max(position.lsn, item.last_lsn + 1)
                yield item
            else:
                return

    def _decoded(
        self,
        info: SegmentInfo,
        mark: DurableMark,
        position: Position,
        wanted: Wanted | None = None,
    ) -> Iterator[Record | Damage]:
        """The walk as records."""
        records_of = self.decoder.records
        for item in self._frames(info, mark, position, wanted):
            if isinstance(item, tuple):
                frame, payload = item
                if frame.kind == FOOTER:
                    continue
                position.frame = frame.offset
                records = records_of(info, frame, payload)
                if isinstance(records, str):
                    last = frame.lsn + frame.count - 1
                    yield Damage(
                        info.number,
                        frame.offset,
                        frame.end - frame.offset,
                        frame.lsn,
                        last,
                        records,
                        frame.kind == SNAPSHOT,
                    )
                else:
                    yield from records
            elif isinstance(item, Damage):
                yield item

    def _pass(self, position: Position) -> Iterator[Record | Damage]:
        """All that there is now from ``position`` on, which moves along."""
        looks, came_to = 0, position.lsn
        while True:
            try:
                yield from self._pass_once(position)
                return
            except FileNotFoundError:  # removed meanwhile: look again
                looks = looks + 1 if position.lsn == came_to else 0
                came_to = position.lsn
                if looks == RETRIES_MAX:
                    raise

    def _pass_once(self, position: Position) -> Iterator[Record | Damage]:
        mark, infos = self.listing.segments_from(position.lsn)
        for info in infos:
            if info.number < position.number:
                continue
            expected = position.lsn
            if info.number > position.number:
                if info.damage is not None:
                    yield info.damage
                position.number, position.offset = info.number, 0
                # From the start on: after a takeover its LSNs begin again before the position.
                position.lsn = max(info.first_lsn, position.start)
            # What is superseded from its first record on holds nothing.
            if not 0 < info.first_lsn < (info.superseded_at or BEYOND):
                position.lsn = expected
                continue
            expected = max(expected, info.oldest_lsn)
            if position.offset == 0 and info.first_lsn > expected:
                yield _missing(info, expected, infos)
            yield from self._decoded(info, mark, position)
        lost = _unreadable(mark, infos)
        if lost is not None and position.lsn <= lost.last_lsn:
            yield lost
            position.lsn = lost.last_lsn + 1

    def _grown(self, position: Position) -> bool:
        return retried(lambda: self._has_grown(position))

    def _has_grown(self, position: Position) -> bool:
        numbers = self.listing.numbers()
        if not numbers or numbers[-1] > position.number:
            return bool(numbers)
        file = self._directory.open(segment_name(position.number))
        try:
            return any(file.pread(FRAME_SIZE, position.offset))
        finally:
            file.close()


class Position:
    """How far a reader has come: the next LSN, and where it starts when ``offset`` is not 0.

    ``number`` is the segment, ``frame`` the offset of the frame that was read last.
    """

    def __init__(self, lsn: int) -> None:
        self.start = self.lsn = lsn
        self.number = self.offset = self.frame = 0


def _missing(info: SegmentInfo, expected: int, infos: list[SegmentInfo]) -> Damage:
    gap = info.number - 1 not in {one.number for one in infos}
    what = f"{segment_name(info.number - 1)} is missing" if gap else "records are missing"
    what += or_removed(infos, expected)
    return Damage(info.number, 0, 0, expected, info.first_lsn - 1, what)


def _unreadable(mark: DurableMark, infos: list[SegmentInfo]) -> Damage | None:
    """What is lost when segments were there, and none can be read, not even the header."""
    if any(info.first_lsn for info in infos) or not mark.durable:
        return None
    number, oldest = (infos[-1].number, infos[-1].oldest_lsn) if infos else (0, 1)
    what = f"no segment is readable{or_removed(infos, oldest)}"
    return Damage(number, 0, 0, oldest, mark.durable, what)
