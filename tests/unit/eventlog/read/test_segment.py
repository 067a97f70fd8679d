"""One segment file: names, footers, index, space ahead; and the mark file."""

from __future__ import annotations

import msgpack
import pytest

from eventlog import EventLog
from eventlog.format.durable_mark import DurableMark, encode_mark
from eventlog.format.footer import Footer, digest_holds, read_footer
from eventlog.format.frame import (
    FOOTER,
    FRAME_SIZE,
    HEADER_SIZE,
    encode_frame,
    encode_trailer,
    padded,
)
from eventlog.format.names import MARK_NAME, segment_name, segment_number
from eventlog.read import segment_files
from eventlog.read.segment_files import read_mark, read_segment
from eventlog.testing import SimulatedDisk
from eventlog.write.segment_writer import PREALLOCATE_MAX


def closed(count: int = 3, size: int = 10) -> tuple[SimulatedDisk, bytearray]:
    disk = SimulatedDisk()
    with EventLog.open("log", files=disk) as log:
        for _ in range(count):
            log.append("event", "x" * size)
        log.append_snapshot("s")
    return disk, disk.directories["log"][segment_name(1)].content


def footer_of(content: bytearray) -> Footer | None:
    return read_footer(bytes(content), bytes(content[56:60]))


@pytest.mark.parametrize("number", [1, 99999999, 100000000, (1 << 32) - 1])
def test_a_name_has_one_number(number: int) -> None:
    assert segment_number(segment_name(number)) == number


@pytest.mark.parametrize(
    "name",
    [
        "1.seg",
        "00000000.seg",
        "000000001.seg",
        "00000001.seg.new",
        "0000000a.seg",
        "LOCK",
        ".seg",
        "00000001",
        "\u0660" * 7 + "1.seg",
        "99999999999999999999.seg",
        "-0000001.seg",
    ],
)
def test_other_names_are_no_segments(name: str) -> None:
    assert segment_number(name) is None


def test_a_footer_says_what_is_before_it() -> None:
    _, content = closed()
    footer = footer_of(content)
    assert footer is not None and footer.clean
    assert (footer.next_lsn, footer.snapshot, footer.index) == (5, 4, [(1, HEADER_SIZE)])
    assert digest_holds(bytes(content), footer)
    content[HEADER_SIZE + 50] ^= 1
    assert not digest_holds(bytes(content), footer)


def test_a_footer_that_was_hurt_is_none() -> None:
    _, content = closed()
    footer = footer_of(content)
    assert footer is not None
    for offset in range(footer.offset, len(content)):
        hurt = bytearray(content)
        hurt[offset] ^= 1 << offset % 8
        assert footer_of(hurt) is None
        assert footer_of(content[:offset]) is None


def with_index(flat: object) -> Footer | None:
    """The footer of a segment of four records, at offset 400, with another index."""
    _, content = closed()
    salt, offset = bytes(content[56:60]), 400
    body = bytes(msgpack.packb([True, flat, b"digest"]))
    body = body.ljust(padded(len(body)), b"\0") + encode_trailer(salt, offset)
    frame = encode_frame(salt, FOOTER, 0, body, (5, 4, 4))
    return read_footer(bytes(content[:offset]) + frame, salt)


def test_an_index_that_no_writer_makes_is_none() -> None:
    _, content = closed()
    footer = footer_of(content)
    assert footer is not None and footer.offset == 400
    for index in ([1, 64], [1, 64, 2, 64], [5, 400], [1, 64, 3, 200, 3, 200]):
        found = with_index(index)
        assert found is not None and [one for pair in found.index for one in pair] == index
    for wrong in (
        *([], [1], [1, 64, 2], [1, 63], [1, 401], [0, 64], [6, 64], [1, 64, 6, 200]),
        *([2, 64, 1, 200], [1, 200, 2, 64], [1, 64, 2, 200, 3, 100]),
        *(["1", 64], [True, 64], [1, 64.0], None, 7, {1: 64}),
    ):
        assert with_index(wrong) is None


def test_the_index_leads_near_every_record() -> None:
    disk, content = closed(count=300, size=1000)
    footer = footer_of(content)
    assert footer is not None and len(footer.index) == 5
    for lsn in (1, 2, 150, 299, 301):
        (first, offset), (behind, end) = footer.stretch(lsn)
        assert first <= lsn < max(behind, 302) and offset < end <= footer.offset
    with EventLog.read("log", files=disk) as reader:
        for start in (1, 2, 64, 65, 66, 150, 300, 301):
            assert [r.lsn for r in reader.records(start)] == list(range(start, 302))
        assert reader.fetch({3, 200, 301, 999}).keys() == {3, 200, 301}


def test_space_ahead_is_zeros_and_is_trimmed_at_close() -> None:
    disk = SimulatedDisk()
    content = bytearray()
    with EventLog.open("log", files=disk) as log:
        sizes, ahead = {4096}, 0
        for _ in range(400):
            log.append("event", "x" * 8000)
            content = disk.directories["log"][segment_name(1)].content
            ahead = max(ahead, len(content) - max(sizes))
            sizes.add(len(content))
            assert len(content) % 4096 == 0
        assert len(sizes) < 20, "the size changes seldom"
        assert ahead < PREALLOCATE_MAX + 3 * 4096, "and nobody waits for much of it"
        assert max(sizes) < 400 * 8100 + PREALLOCATE_MAX
        log.commit()
    assert len(content) < 400 * 8100


def test_a_commit_costs_one_flush_and_two_writes() -> None:
    """The record and the mark; the lock file is read, and looked up by its name."""
    disk = SimulatedDisk()
    with EventLog.open("log", files=disk) as log:
        log.append("event", 1)
        log.commit()
        calls, reads = len(disk.calls), disk.reads
        for n in range(10):
            log.append("event", n)
            log.commit()
        assert disk.calls[calls:] == ["write", "sync", "write"] * 10
        assert disk.reads - reads == 10


def test_the_mark_file_is_read_as_it_was_written_or_not_at_all() -> None:
    disk = SimulatedDisk()
    directory = disk.make_directory("log")
    assert read_mark(directory) is None
    file = directory.open(MARK_NAME, write=True, create=True)
    whole = encode_mark(b"i" * 16, 3, DurableMark(9, 7))
    file.pwrite(whole, 0)
    assert read_mark(directory) == (b"i" * 16, 3, DurableMark(9, 7))
    for bit in range(8 * len(whole)):
        hurt = bytearray(whole)
        hurt[bit // 8] ^= 1 << bit % 8
        file.pwrite(bytes(hurt), 0)
        assert read_mark(directory) is None
    for size in range(len(whole)):
        file.truncate(0)
        file.pwrite(whole[:size], 0)
        assert read_mark(directory) is None


@pytest.mark.parametrize(
    ("size", "used", "read"),
    [
        (1000, 10, 1000),  # as large as a payload: all of it
        (1001, 10, 41 + FRAME_SIZE + 1000),
        (2000, 1500, 2000),
        (3200, 0, FRAME_SIZE + 1000),
        (3200, 1, 64 + FRAME_SIZE + 1000),
        (3200, 64, 64 + FRAME_SIZE + 1000),
        (3200, 65, 128 + FRAME_SIZE + 1000),
        (3210, 65, 74 + FRAME_SIZE + 1000),
        (9000, 8999, FRAME_SIZE + 1000),  # no segment is so large
        (9000, 4096, 4096 + FRAME_SIZE + 1000),
        (9000, 1, 64 + FRAME_SIZE + 1000),
    ],
)
def test_of_zeros_at_the_end_no_more_are_read_than_a_frame_can_have(
    size: int, used: int, read: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("PAYLOAD_SIZE_MAX", 1000), ("PIECE_SIZE", 64), ("FILE_SIZE_MAX", 4096)):
        monkeypatch.setattr(segment_files, name, value)
    disk = SimulatedDisk()
    directory = disk.make_directory("log")
    file = directory.open(segment_name(1), write=True, create=True)
    file.truncate(size)
    file.pwrite(b"x" * (used > 0), max(0, used - 1))
    found = read_segment(directory, 1)
    assert len(found) == min(size, read)
    assert found.rstrip(b"\0").endswith(b"x" * (0 < used <= read))
    assert read_segment(directory, 1, 100) == found[100:]
    assert read_segment(directory, 1, size + 1) == b""
