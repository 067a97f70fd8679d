"""Reading: what is passed over, what is reported, and what a live writer may look like."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

from eventlog import Damage, DamagedError, EventLog, LogReader, Record
from eventlog.errors import UnsupportedFormatError
from eventlog.files.api import Directory
from eventlog.format.durable_mark import DurableMark, encode_mark
from eventlog.format.frame import HEADER_SIZE
from eventlog.format.names import segment_name
from eventlog.format.torn_or_damaged import Segment
from eventlog.read import reader as reader_module
from eventlog.read import segments as listing_module
from eventlog.read.segment_files import read_mark, read_segment
from eventlog.read.segments import Listing
from eventlog.testing import SimulatedDisk


def disk_with(count: int = 6, segment_size: int = 8 << 20, closed: bool = True) -> SimulatedDisk:
    disk = SimulatedDisk()
    log = EventLog.open("log", files=disk, segment_size=segment_size)
    for n in range(1, count + 1):
        log.append_snapshot({"n": n}) if n % 2 == 0 else log.append("event", {"n": n})
        log.commit()
    log.close() if closed else log._release()
    return disk


def hurt(disk: SimulatedDisk, number: int, offset: int) -> None:
    disk.directories["log"][segment_name(number)].content[offset] ^= 1


def frames(disk: SimulatedDisk, number: int = 1) -> list[int]:
    """Offsets of the frames of a segment."""
    content = bytes(disk.directories["log"][segment_name(number)].content)
    return [
        f.offset
        for f in Segment(number, content, content[56:60], DurableMark(), None)._frames_ahead(64)
    ]


@pytest.fixture(autouse=True)
def _ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits in vain for more of a log is told so."""
    waits = itertools.count()

    def sleep(seconds: float) -> None:
        assert next(waits) < 2000, "it waits for ever"

    monkeypatch.setattr(reader_module, "time", SimpleNamespace(sleep=sleep))


def test_damage_is_raised_where_it_is_reached() -> None:
    disk = disk_with()
    hurt(disk, 1, frames(disk)[2] + 50)
    with EventLog.read("log", files=disk) as reader:
        found = reader.records()
        assert [next(found).lsn, next(found).lsn] == [1, 2]
        with pytest.raises(DamagedError, match="LSN 3 lost") as caught:
            next(found)
        assert (caught.value.damage.segment, caught.value.damage.offset) == (1, frames(disk)[2])
        assert [r.lsn for r in reader.records(start=4)] == [4, 5, 6]


def test_an_empty_log_is_a_log() -> None:
    disk = SimulatedDisk()
    EventLog.open("log", files=disk).close()
    with EventLog.read("log", files=disk) as reader:
        assert list(reader.records()) == [] and reader.latest_snapshot() is None
        assert reader.tail().next_lsn == 1
    disk.make_directory("other")
    with pytest.raises(UnsupportedFormatError, match="not a log"):
        EventLog.read("other", files=disk)


def test_a_page_that_is_read_too_early_is_not_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reading of many pages is not atomic: a later frame is there, an earlier one is not yet."""
    disk = disk_with(closed=False)
    del disk.directories["log"]["MARK"]  # which lags
    offsets = frames(disk)
    readings = itertools.count()

    def torn_reading(directory: Directory, number: int, start: int = 0) -> bytes:
        """The writer is at work: each reading sees two frames more, and misses the one between."""
        content = bytearray(read_segment(directory, number))
        newest = 2 * next(readings) + 2
        for n in (newest - 1, *range(newest + 1, 6)):
            end = offsets[n + 1] if n < 5 else len(content)
            content[offsets[n] : end] = bytes(end - offsets[n])
        return bytes(content[start:]) if newest < 6 else read_segment(directory, number, start)

    with EventLog.read("log", files=disk) as reader:
        monkeypatch.setattr(reader_module, "read_segment", torn_reading)
        monkeypatch.setattr(reader_module, "sound_in_pieces", lambda *args: iter(()))
        assert [r.lsn for r in reader.records()] == list(range(1, 7))
        readings = itertools.count()
        assert reader.tail().damaged == ()
        readings = itertools.count()
        assert [s.lsn for s in reader.snapshots()] == [6, 4, 2]


@pytest.mark.parametrize("after", ["mark", "listing"])
def test_a_roll_between_two_readings_is_not_damage(
    after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SimulatedDisk()
    log = EventLog.open("log", files=disk, segment_size=500)
    log.append("event", 1)
    log.commit()
    reader = EventLog.read("log", files=disk)
    numbers = Listing.numbers

    def roll() -> None:
        monkeypatch.undo()
        for n in range(20):
            log.append_snapshot(n)
        log.commit()

    def marked(directory: Directory) -> object:
        found = read_mark(directory)
        roll()
        return found

    def listed(self: Listing) -> list[int]:
        found = numbers(self)
        roll()
        return found

    for read in ("records", "snapshots", "tail"):
        if after == "mark":
            monkeypatch.setattr(listing_module, "read_mark", marked)
        else:
            monkeypatch.setattr(Listing, "numbers", listed)
        damaged: list[Damage] = []
        if read == "records":
            lsns = [r.lsn for r in reader.records(on_damage=damaged.append)]
            assert lsns == list(range(1, len(lsns) + 1))
        elif read == "snapshots":
            list(reader.snapshots(damaged.append))
        else:
            damaged += reader.tail().damaged
        assert damaged == []
    log.close()
    reader.close()


def test_real_damage_is_reported_once_while_following(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = disk_with(closed=False)
    hurt(disk, 1, frames(disk)[2] + 50)
    hurt(disk, 1, 20)
    log = EventLog.open("log", files=disk)
    polls = itertools.count()

    def sleep(seconds: float) -> None:
        assert seconds == reader_module.POLL_S
        poll = next(polls)
        assert poll < 1000, "it waits for ever"
        if poll % 3 == 2:
            log.append("event", 1)

    monkeypatch.setattr(reader_module, "time", SimpleNamespace(sleep=sleep))
    damaged: list[Damage] = []
    with EventLog.read("log", files=disk) as reader:
        found = reader.records(follow=True, on_damage=damaged.append)
        lsns = [next(found).lsn for _ in range(10)]
    assert lsns == [1, 2, 4, 5, 6, 7, 8, 9, 10, 11]
    assert [(d.offset == 0, d.lost) for d in damaged] == [(True, 0), (False, 1)]
    log.close()


def test_a_mark_that_a_writer_wrote_after_it_had_lost_the_log_does_not_count() -> None:
    """It looked at the lock, was stopped, and wrote over the new owner's mark."""
    disk = SimulatedDisk()
    old = EventLog.open("log", files=disk)
    old.append("event", 1)
    old.commit()
    late = read_mark(disk.open_directory("log"))
    assert late is not None
    with EventLog.open("log", files=disk, takeover=True) as new:
        new.append("event", 2)
        new.commit()
    mark = encode_mark(late[0], late[1], DurableMark(99, 0))
    disk.directories["log"]["MARK"].content[: len(mark)] = mark
    with EventLog.read("log", files=disk) as reader:
        assert [r.lsn for r in reader.records()] == [1, 2]
        assert reader.tail().damaged == ()
    old._release()


@pytest.mark.parametrize("left", [b"torn", b"\xff" * 100, b""])
def test_a_follower_at_a_torn_tail_waits_and_does_not_spin(
    left: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = disk_with(closed=False)
    content = disk.directories["log"][segment_name(1)].content
    end = len(content.rstrip(b"\0"))
    content[end + 16 : end + 16 + len(left)] = left
    events: list[str] = []
    load = LogReader._load

    def sleep(seconds: float) -> None:
        events.append("sleep")
        if len(events) > 20:
            raise StopIteration

    def loaded(*args: object) -> object:
        events.append("read")
        assert len(events) < 50, "it spins"
        return load(*args)  # type: ignore[arg-type]

    with EventLog.read("log", files=disk) as reader:
        monkeypatch.setattr(reader_module, "time", SimpleNamespace(sleep=sleep))
        monkeypatch.setattr(LogReader, "_load", loaded)
        with pytest.raises(RuntimeError):
            list(reader.records(follow=True))
    assert "read read" not in " ".join(events)


def test_a_follower_sees_the_records_of_the_owner_that_took_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those that the old one appended and nobody acknowledged are replaced: LSNs begin again."""
    disk = SimulatedDisk()
    old = EventLog.open("log", files=disk)
    for n in range(1, 4):
        old.append("old", n)
    with EventLog.read("log", files=disk) as reader:
        found = reader.records(follow=True)
        assert [next(found).lsn for _ in range(3)] == [1, 2, 3]
        new = EventLog.open("log", files=disk, takeover=True)
        old.append("late", 4)
        new.append("new", 4)
        new.append("new", 5)
        assert [(r.lsn, r.kind) for r in itertools.islice(found, 2)] == [(4, "new"), (5, "new")]
        new.close()
    old._release()


def bad(number: int) -> str:
    what = "segment header fails its CRC; no frame found"
    return f"segment {number}, offset 0: {what}; no record lost"


def lost(number: int, what: str, last: int) -> str:
    return f"segment {number}, offset 0: {what}; LSN 3-{last} lost"


def behind(number: int, last: int) -> str:
    first, offset = {1: (6, 560), 2: (11, 584)}[number]
    return f"segment {number}, offset {offset}: nothing sound from here on; LSN {first}-{last} lost"


NONE = "no segment is readable; LSN 1-12 lost"


@pytest.mark.parametrize(
    ("garbage", "missing", "items"),
    [
        ([1], [], [bad(1), lost(2, "records are missing", 5), 6, 12]),
        ([2], [], [3, 5, behind(1, 10), bad(2), 11, 12]),
        ([3], [], [3, 10, behind(2, 12), bad(3)]),
        ([2, 3], [], [3, 5, behind(1, 12), bad(2), bad(3)]),
        ([1, 2, 3], [], [bad(1), bad(2), bad(3), f"segment 3, offset 0: {NONE}"]),
        ([], [1], [lost(2, "00000001.seg is missing", 5), 6, 12]),
        ([], [2], [3, 5, behind(1, 10), 11, 12]),
        ([], [3], [3, 10, behind(2, 12)]),
        ([], [1, 2, 3], [NONE]),
        ([1], [2], [bad(1), lost(3, "00000002.seg is missing", 10), 11, 12]),
        ([2], [3], [3, 5, behind(1, 12), bad(2)]),
        ([3], [2], [3, 5, behind(1, 12), bad(3)]),
    ],
)
def test_of_segments_that_are_gone_or_garbage_each_loss_is_said_once(
    garbage: list[int], missing: list[int], items: list[int | str]
) -> None:
    """Segment 1 holds LSN 1 to 5, the next one 6 to 10. ``items``: damage; records from, to."""
    disk = disk_with(12, 512)
    for number in garbage:
        content = disk.directories["log"][segment_name(number)].content
        content[:] = bytes(len(content))
    for number in missing:
        del disk.directories["log"][segment_name(number)]
    lsns = [item for item in items if type(item) is int]
    ranges = zip(lsns[::2], lsns[1::2], strict=True)
    there = {n for first, last in ranges for n in range(first, last + 1)}
    damaged = [item for item in items if type(item) is str]
    with EventLog.read("log", files=disk) as reader:
        arrivals = reader.arrivals(3)
        found = list(itertools.takewhile(lambda item: item is not None, arrivals))
        assert (next(arrivals), next(arrivals)) == (None, None)
        assert [str(one) for one in found if isinstance(one, Damage)] == damaged
        headers = (one.size for one in found if isinstance(one, Damage) and not one.offset)
        assert {*headers} <= {0, HEADER_SIZE * bool(garbage)}
        places = [one.lsn if isinstance(one, Record) else str(one) for one in found]
        assert [one for one in places if one in items] == items
        assert [one for one in places if type(one) is int] == sorted(there)
        assert reader.fetch({3, 7, 12}).keys() == {3, 7, 12} & there
        snapshots = [one.lsn for one in reader.snapshots() if one.lsn > 2]
        assert snapshots == sorted((n for n in there if n % 2 == 0), reverse=True)
        tail = reader.tail()
        assert (tail.next_lsn, tail.snapshot) == (13, max(snapshots, default=0))
        at_the_end = sorted(damaged) if 12 not in there else []
        assert sorted(map(str, tail.damaged)) == at_the_end


def test_records_of_one_segment_are_looked_for_once(tmp_path, monkeypatch):
    """However many are fetched, the directory is listed once for each segment that holds some."""
    listed = list[int]()
    numbers = Listing.numbers

    def counted(listing: Listing) -> list[int]:
        listed.append(1)
        return numbers(listing)

    with EventLog.open(tmp_path / "log", "process", segment_size=20_000) as log:
        for i in range(500):
            log.append("event", f"{i} " * 50)
    monkeypatch.setattr(Listing, "numbers", counted)
    with EventLog.read(tmp_path / "log") as reader:
        listed.clear()
        found = reader.fetch(set(range(1, 501, 2)))
    assert {lsn: one.body for lsn, one in found.items()} == {
        lsn: f"{lsn - 1} " * 50 for lsn in range(1, 501, 2)
    }
    segments = len(list((tmp_path / "log").glob("*.seg")))
    assert 3 < segments < 20
    assert len(listed) <= segments + 2
