"""Checks a log a segment at a time; yields its records and all problems, in order."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import xxhash

from eventlog.errors import Damage, UnsupportedFormatError
from eventlog.format.durable_mark import DurableMark
from eventlog.format.envelope import Envelope
from eventlog.format.footer import Footer, digest_holds, read_footer
from eventlog.format.frame import FOOTER, HEADER_SIZE, SNAPSHOT, Frame, decode_trailer, frame_at
from eventlog.format.json_values import Json
from eventlog.format.names import MARK_NAME, segment_name
from eventlog.format.record import Record
from eventlog.format.torn_or_damaged import End, Segment
from eventlog.read.reader import LogReader
from eventlog.read.sealed_segment import Sealed
from eventlog.read.segment_files import read_mark
from eventlog.read.segments import SegmentInfo, or_removed
from eventlog.read.stream import sound_in_pieces

TORN, DAMAGED, MISSING, BAD_SNAPSHOT, GAP, NOT_A_LOG = 1, 2, 4, 8, 16, 32

# The last segment of a live log may be read in the middle of a write. A doubtful part is read again
# after this time, as long as it moves.
LOOK_AGAIN_S = 0.005
RETRIES_MAX = 10


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem, or with ``bit`` 0 a note that is not a problem.

    ``offset`` and ``size`` are bytes in ``segment`` (0: the log as a whole). ``first_lsn`` to
    ``last_lsn`` are the lost records; none when ``last_lsn < first_lsn``. ``next_frame``: offset of
    the next sound frame in the same segment; 0 when there is none.
    """

    bit: int
    segment: int
    offset: int
    size: int
    first_lsn: int
    last_lsn: int
    text: str
    next_frame: int = 0

    def as_json(self) -> dict[str, Json]:
        """The finding as ``dump`` gives it."""
        kind = {0: "note", TORN: "torn_tail"}.get(self.bit, "damage")
        return {
            "type": kind,
            "bit": self.bit,
            "segment": self.segment,
            "offset": self.offset,
            "size": self.size,
            "first_lsn": self.first_lsn,
            "last_lsn": self.last_lsn,
            "next_frame": self.next_frame or None,
            "text": self.text,
        }


@dataclass(slots=True)
class Totals:
    """Counts of ``verify``. ``exit_code``: the bits of all findings together."""

    segments: int = 0
    records: int = 0
    snapshots: int = 0
    first_lsn: int = 0
    last_lsn: int = 0
    exit_code: int = 0
    encrypted: int = 0  # records that were not decoded because there was no key


@dataclass(slots=True)  # not frozen: see Frame
class DecodedFrame:
    """The records of a frame, which takes ``size`` bytes."""

    segment: int
    offset: int
    size: int
    records: list[Record]


@dataclass(slots=True)
class EncryptedFrame:
    """A frame of encrypted records, without the key."""

    segment: int
    frame: Frame
    key_id: str


def examine(
    reader: LogReader, totals: Totals, segment: int = 0, first: int = 1
) -> Iterator[DecodedFrame | EncryptedFrame | Finding]:
    """Records and problems in the order in which they are in the log; of one segment, if given.

    ``first``: earlier records need not be read, but some of them may be yielded.
    """
    try:
        mark, infos = reader.listing.segments_from(first - 1)
    except UnsupportedFormatError as exc:
        yield _foreign(reader, exc)
        return
    expected = previous = 0
    if segment:
        infos = [info for info in infos if segment <= info.number <= segment + 1]
        if not infos:
            return
        expected, previous = infos[0].first_lsn, segment - 1
    else:
        yield from _check_mark(reader, mark, infos)
        if infos and 0 < infos[0].first_lsn < first:
            expected, previous = infos[0].first_lsn, infos[0].number - 1
    for i, info in enumerate(infos):
        if segment and info.number != segment:
            break
        totals.segments += 1
        check = _SegmentCheck(info, infos[i + 1] if i + 1 < len(infos) else None)
        yield from _check_start(reader, check, infos, previous, expected)
        previous = info.number
        if not info.first_lsn:
            continue
        totals.first_lsn = totals.first_lsn or info.first_lsn
        try:
            check.begin(reader, first)
            found = _examine_segment(reader, check, mark, totals)
            yield from _of_segment_alone(found) if segment else found
        except UnsupportedFormatError as exc:
            yield from check.placed(0)
            yield _lossless(NOT_A_LOG, info.number, str(exc), check.offset)
        except FileNotFoundError:
            yield from check.placed(0)
            if info.first_lsn >= reader.oldest_lsn:  # else it was removed on purpose
                what = f"{segment_name(info.number)} vanished while it was being read"
                yield _lossless(MISSING, info.number, what)
        expected = max(expected, check.lsn)
    totals.last_lsn = max(0, expected - 1)


def _of_segment_alone(
    found: Iterator[DecodedFrame | EncryptedFrame | Finding],
) -> Iterator[DecodedFrame | EncryptedFrame | Finding]:
    """Without findings that depend on other segments of the log."""
    return (item for item in found if not (isinstance(item, Finding) and item.bit == MISSING))


class _SegmentCheck:
    """The check of one segment: how far it is sound, and what was seen in it."""

    def __init__(self, info: SegmentInfo, following: SegmentInfo | None) -> None:
        self.info, self.following = info, following
        self.offset, self.lsn = HEADER_SIZE, info.first_lsn
        self.segment: Segment | None = None
        self.kind = 0  # of the last frame seen
        self.base = 0  # everything before this offset was sound
        self.digest = xxhash.xxh3_128()  # of the bytes before ``base``
        self.damaged = info.damage is not None
        self.snapshot = 0  # the newest in this segment
        self.whole = True  # whether the check begins at the segment's beginning
        self.held: list[Finding] = []  # until the next sound frame is known

    def begin(self, reader: LogReader, first: int) -> None:
        """Begin at the last frame before LSN ``first`` that the index has."""
        if first > self.lsn:
            self.lsn, self.offset = reader._start(self.info, first)
            self.whole = self.offset == HEADER_SIZE

    def saw(self, frame: Frame) -> None:
        self.offset, self.lsn = frame.end, frame.lsn + frame.count
        self.kind = frame.kind
        if frame.kind == SNAPSHOT:
            self.snapshot = frame.lsn

    def placed(self, next_frame: int) -> Iterator[Finding]:
        """The findings before the next sound frame, which is there."""
        held, self.held = self.held, []
        yield from (replace(finding, next_frame=next_frame) for finding in held)


def _examine_segment(
    reader: LogReader, check: _SegmentCheck, mark: DurableMark, totals: Totals
) -> Iterator[DecodedFrame | EncryptedFrame | Finding]:
    number = check.info.number
    for item in _walk_twice(reader, check, mark):
        if isinstance(item, tuple):  # tested first: nearly all items are frames
            frame, payload = item
            if check.held:
                yield from check.placed(frame.offset)
            if frame.durable >= frame.lsn:
                check.held.append(
                    _damage(check, frame, (1, 0), "durable mark is ahead of its frame")
                )
            if frame.kind == FOOTER:
                continue
            found = reader.decoder.examine(check.info, frame, payload)
            if isinstance(found, str):
                lsns = frame.lsn, frame.lsn + frame.count - 1
                check.held.append(_damage(check, frame, lsns, found))
                continue
            totals.records += frame.count
            totals.snapshots += frame.kind == SNAPSHOT
            if isinstance(found, Envelope):
                totals.encrypted += frame.count
                yield EncryptedFrame(number, frame, found.key_id)
            else:
                yield DecodedFrame(number, frame.offset, frame.end - frame.offset, found)
        elif isinstance(item, Damage):
            check.damaged = True
            check.held.append(_finding(check, item))
        else:
            yield from check.placed(0)
            if item.torn_size:
                yield _lossless(TORN, number, _torn_text(item), item.offset, item.torn_size)
            yield from _check_end(reader, check, item)


def _walk_twice(
    reader: LogReader, check: _SegmentCheck, mark: DurableMark
) -> Iterator[tuple[Frame, bytes] | Damage | End]:
    """Walks a segment; in the last segment, reads doubtful parts again."""
    info, looks, doubtful = check.info, 0, -1
    start = check.offset, check.lsn
    for found in sound_in_pieces(reader._directory, info, start, check.digest.update):
        check.saw(found[0])
        yield found
    check.base = check.offset
    while True:
        check.segment = segment = reader._load(info, mark, check.base)
        for item in segment.walk(check.offset, check.lsn):
            if isinstance(item, tuple):
                check.saw(item[0])
                yield item
                continue
            again = info.superseded_at is None and _doubtful(item) and looks < RETRIES_MAX
            if again and check.offset != doubtful:
                looks, doubtful = looks + 1, check.offset
                time.sleep(LOOK_AGAIN_S)
                break
            if isinstance(item, End):
                check.offset, check.lsn = item.offset, item.next_lsn
            else:
                check.offset = max(check.offset, item.offset + item.size)
                check.lsn = max(check.lsn, item.last_lsn + 1)
            yield item
        else:
            return


def _doubtful(item: Damage | End) -> bool:
    """Whether a write in progress may look like this."""
    if isinstance(item, Damage):
        return item.lost > 0
    return item.torn_size > 0


# -- findings


def _lossless(bit: int, segment: int, text: str, offset: int = 0, size: int = 0) -> Finding:
    """A finding that costs no record."""
    return Finding(bit, segment, offset, size, 1, 0, text)


def _finding(check: _SegmentCheck, damage: Damage) -> Finding:
    """Classifies damage that the walk found."""
    segment, following, bit = check.segment, check.following, DAMAGED
    assert segment is not None
    what = damage.what
    if damage.snapshot:
        bit = BAD_SNAPSHOT
    elif damage.lost and not damage.size and check.kind == FOOTER:
        # This segment is sound: the next one is missing.
        after = damage.segment + 1
        if following is None or following.number != after:
            bit, what = MISSING, f"{segment_name(after)} is missing"
        elif following.first_lsn:
            bit, what = GAP, "gap in LSNs before the next segment"
        else:
            what = f"what comes next is in {segment_name(after)}, which cannot be read"
    elif damage.lost and not damage.size and damage.offset < segment.end:
        bit = GAP
    text = f"{what}: {_loss(damage.first_lsn, damage.last_lsn)}"
    if bit == BAD_SNAPSHOT:
        text += "; recovery falls back to an earlier one, or to the beginning of the log"
    return Finding(
        bit, damage.segment, damage.offset, damage.size, damage.first_lsn, damage.last_lsn, text
    )


def _damage(check: _SegmentCheck, frame: Frame, lsns: tuple[int, int], what: str) -> Finding:
    check.damaged = True
    bit = BAD_SNAPSHOT if frame.kind == SNAPSHOT and lsns[0] <= lsns[1] else DAMAGED
    return Finding(
        bit,
        check.info.number,
        frame.offset,
        frame.end - frame.offset,
        *lsns,
        f"{what}: {_loss(*lsns)}",
    )


def _loss(first: int, last: int) -> str:
    if last < first:
        return "no record lost"
    return f"LSN {first} lost" if first == last else f"LSN {first}-{last} lost"


def _torn_text(end: End) -> str:
    frames = "1 whole frame" if end.torn_frames == 1 else f"{end.torn_frames} whole frames"
    whole = f", with {frames} among them," if end.torn_frames else ""
    return (
        f"torn tail: {end.torn_size} bytes{whole} after LSN {end.next_lsn - 1} that were never "
        "acknowledged; the next opening cuts them off. Harmless. (In a log that is being written "
        "to: perhaps a record in flight.)"
    )


def _check_start(
    reader: LogReader,
    check: _SegmentCheck,
    infos: list[SegmentInfo],
    previous: int,
    expected: int,
) -> Iterator[Finding]:
    """A segment's header, and whether it continues where the log was."""
    info = check.info
    name = segment_name(info.number)
    if info.damage is not None and reader.listing.header(info.number) is not None:
        yield _lossless(NOT_A_LOG, info.number, f"{name}: {info.damage.what}")
    elif info.damage is not None:
        readable = "; its records can still be read" * bool(info.first_lsn)
        text = f"{name}: {info.damage.what}{readable}"
        check.held.append(_lossless(DAMAGED, info.number, text, 0, HEADER_SIZE))
        if not readable:
            yield from check.placed(0)
    first = max(expected, info.oldest_lsn)
    last = info.first_lsn - 1 if info.first_lsn else 0
    gone, perhaps = range(previous + 1, info.number), or_removed(infos, first)
    if gone and last >= first:
        yield Finding(
            MISSING,
            info.number,
            0,
            0,
            first,
            last,
            f"{_names(gone)} missing{perhaps}: {_loss(first, last)}",
        )
    elif gone and previous:
        # Its LSNs were reported at the end of the segment before, if any were lost.
        yield _lossless(MISSING, info.number, f"{_names(gone)} missing")
    elif last >= first:
        text = f"gap in LSNs before {name}{perhaps}: {_loss(first, last)}"
        yield Finding(GAP, info.number, 0, 0, first, last, text)


def _names(numbers: range) -> str:
    if len(numbers) == 1:
        return f"{segment_name(numbers[0])} is"
    return f"{segment_name(numbers[0])} to {segment_name(numbers[-1])} are"


def _check_mark(
    reader: LogReader, mark: DurableMark, infos: list[SegmentInfo]
) -> Iterator[Finding]:
    if not any(info.first_lsn for info in infos) and mark.durable:
        text = f"no segment can be read{or_removed(infos, 1)}: {_loss(1, mark.durable)}"
        yield Finding(DAMAGED if infos else MISSING, 0, 0, 0, 1, mark.durable, text)
    found = read_mark(reader._directory)
    if found is None and _mark_is_torn(reader):
        text = f"{MARK_NAME} is torn or damaged. Harmless: the next commit writes it again"
        yield _lossless(0, 0, text)


def _mark_is_torn(reader: LogReader) -> bool:
    try:
        file = reader._directory.open(MARK_NAME)
    except FileNotFoundError:
        return False
    try:
        empty = file.size() == 0  # created, but nothing was flushed yet
    finally:
        file.close()
    # Read twice: a writer may have been writing it.
    return not empty and read_mark(reader._directory) is None


def _check_end(reader: LogReader, check: _SegmentCheck, end: End) -> Iterator[Finding]:
    """The footer, and bytes after the records that count."""
    info, segment = check.info, check.segment
    assert segment is not None
    footer = read_footer(segment.buf, segment.salt, segment.base)
    if footer is not None:
        wrong = _footer_wrong(reader, check, footer, end)
        if wrong:
            size = segment.end - footer.offset
            text = f"{wrong}: no record lost"
            yield _lossless(DAMAGED, info.number, text, footer.offset, size)
    if info.superseded_at is None:
        return
    stop = segment.end if footer is None else footer.offset
    rest = len(segment.between(end.offset, stop).rstrip(b"\0"))
    if footer is None and _was_sealed(check, end):
        text = "the footer is damaged: no record lost, a scan rebuilds it"
        yield _lossless(DAMAGED, info.number, text, end.offset, rest)
    elif rest:
        text = (
            f"{rest} bytes that do not count: a later segment begins at LSN {info.superseded_at}. "
            "Written by a writer that had lost the log, or never acknowledged"
        )
        yield _lossless(0, info.number, text, end.offset, rest)


def _was_sealed(check: _SegmentCheck, end: End) -> bool:
    """Whether a segment without a readable footer must have had one."""
    info, following, segment = check.info, check.following, check.segment
    assert segment is not None
    frame = frame_at(segment.buf, end.offset, segment.salt, segment.base)
    if decode_trailer(segment.buf, segment.salt) or (frame is not None and frame.kind == FOOTER):
        return True
    # A writer seals a segment before it makes the next one. After a crash, damage or a takeover the
    # next segment has another epoch, and this one may never have been sealed.
    if info.header is None or following is None or following.header is None:
        return False
    return info.header.epoch == following.header.epoch


def _footer_wrong(reader: LogReader, check: _SegmentCheck, footer: Footer, end: End) -> str:
    """What a sound footer says wrongly; "" when it is right."""
    if check.damaged:
        return ""  # the damage already explains a digest that does not match
    info, segment = check.info, check.segment
    assert segment is not None
    before = check.digest if segment.base else None
    if check.whole and not digest_holds(segment.buf, footer, segment.base, before):
        return "bytes were changed that no frame holds: the segment does not match its digest"
    if footer.next_lsn != end.next_lsn:
        return ""  # sealed by a fenced writer: it covers records that do not count
    sealed = Sealed.open(reader._directory, info)
    if sealed is not None:
        with sealed:
            # The first entry may be that of no frame.
            entries = set(footer.index) - {(info.first_lsn, HEADER_SIZE)}
            if not all(sealed.has_frame(*entry) for entry in entries):
                return "the footer's index points at no frame"
    if check.snapshot and footer.snapshot != check.snapshot:
        found = check.snapshot
        return f"the footer calls LSN {footer.snapshot} the newest snapshot, not LSN {found}"
    return ""


def _foreign(reader: LogReader, exc: UnsupportedFormatError) -> Finding:
    for number in reader.listing.numbers():
        try:
            reader.listing.header(number)
        except UnsupportedFormatError as found:
            return _lossless(NOT_A_LOG, number, f"{segment_name(number)}: {found}")
    return _lossless(NOT_A_LOG, 0, str(exc))
