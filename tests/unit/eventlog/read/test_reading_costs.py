"""What reading costs: as much as is read, however long the log and whatever is in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

import pytest

from eventlog import EventLog
from eventlog.dump import verify
from eventlog.files.memory import MemoryDirectory
from eventlog.format.footer import INDEX_STEP
from eventlog.format.frame import SegmentHeader
from eventlog.format.names import segment_name
from eventlog.read import stream
from eventlog.read.segments import Listing, SegmentInfo
from eventlog.testing import SimulatedDisk

LOG_ID = bytes(range(16))


class CountingDisk(SimulatedDisk):
    """A disk that counts what is read from it."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.cost: Counter[str] = Counter()
        self.largest = 0  # bytes of one read

    def read(self, data: bytes) -> bytes:
        self.cost["reads"] += 1
        self.cost["bytes"] += len(data)
        self.largest = max(self.largest, len(data))
        return super().read(data)

    def open_directory(self, path: str) -> MemoryDirectory:
        return self._counted(super().open_directory(path))

    def make_directory(self, path: str) -> MemoryDirectory:
        return self._counted(super().make_directory(path))

    def _counted(self, directory: MemoryDirectory) -> MemoryDirectory:
        listed, opened = directory.names, directory.open

        def names() -> list[str]:
            self.cost["listings"] += 1
            return listed()

        def open_(name: str, **how: bool) -> object:
            self.cost["opens"] += 1
            return opened(name, **how)

        vars(directory).update(names=names, open=open_)
        return directory


def disk_with(segments: int, killed: bool) -> CountingDisk:
    """A log of so many segments of 8 records, a snapshot in the last but one; LSN 3 is one too."""
    disk = CountingDisk()
    log = EventLog.open("log", files=disk, segment_size=1500)
    while len(disk.directories["log"]) - 2 < segments or log.last_lsn % 8 < 5:
        snapshot = log.last_lsn in (2, 8 * (segments - 2) + 3)
        body = "x" * 100
        log.append_snapshot(body) if snapshot else log.append("event", body)
        log.commit()
    log._release() if killed else log.close()
    return disk


def resumed(disk: CountingDisk) -> Counter[str]:
    """What it costs to open a log and to read what a run reads that is resumed."""
    disk.cost.clear()
    with EventLog.open("log", files=disk, segment_size=1500) as log:
        last = log.last_lsn
        newest = log.latest_snapshot()
        assert newest is not None and last - 16 < newest.lsn < last
        assert set(log.fetch({2, 3, last // 2})) == {2, 3, last // 2}
        lsns = [record.lsn for record in log.records(newest.lsn + 1)]
        assert lsns == list(range(newest.lsn + 1, last + 1))
        return Counter(disk.cost)


@pytest.mark.parametrize("killed", [False, True])
def test_to_resume_costs_the_tail_whatever_the_history(killed: bool) -> None:
    short, long = (resumed(disk_with(segments, killed)) for segments in (20, 300))
    # Halving takes four looks more for each of three records: a header is a file and a read.
    for what in ("reads", "opens"):
        assert long[what] <= short[what] + 3 * 5 <= 100
    assert long["bytes"] <= short["bytes"] + 3 * 5 * 64 <= 48 << 10
    assert long["listings"] == short["listings"]


def test_a_reader_reads_no_more_than_it_is_asked_for() -> None:
    disk = disk_with(300, killed=False)
    asked: list[Callable[[], object]]
    with EventLog.read("log", files=disk) as reader:
        asked = [
            reader.latest_snapshot,
            lambda: reader.fetch({7}),
            lambda: list(reader.records(reader.tail().next_lsn - 3)),
            reader.tail,
        ]
        for ask in asked:
            disk.cost.clear()
            ask()
            assert disk.cost["reads"] <= 45 and disk.cost["bytes"] <= 8000


def test_of_a_large_segment_only_a_stretch_is_read() -> None:
    disk = CountingDisk()
    with EventLog.open("log", files=disk, segment_size=2 << 20) as log:
        for n in range(1200):
            log.append_snapshot(n) if n in (1000, 800) else log.append("event", bytes(1000))
    with EventLog.read("log", files=disk) as reader:
        disk.cost.clear()
        assert reader.fetch({700}).keys() == {700}
        assert disk.cost["bytes"] <= INDEX_STEP + 16 * 1024
        disk.cost.clear()
        newest = next(reader.snapshots())
        assert newest.lsn == 1001 and disk.cost["bytes"] <= INDEX_STEP + 32 * 1024
        assert [snapshot.lsn for snapshot in reader.snapshots()] == [1001, 801]
        last = reader.tail().next_lsn - 1
        disk.cost.clear()
        assert [r.lsn for r in reader.records(last - 10)] == list(range(last - 10, last + 1))
        assert disk.cost["bytes"] <= 2 * INDEX_STEP + 16 * 1024


def test_opening_after_a_crash_reads_the_last_segment_once_to_verify_it() -> None:
    disk = CountingDisk()
    log = EventLog.open("log", files=disk)
    for _ in range(1000):
        log.append("event", bytes(1000))
    log.commit()
    log._release()
    size = len(disk.directories["log"][segment_name(1)].content)
    with EventLog.read("log", files=disk) as reader:
        disk.cost.clear()
        assert reader.tail().records == 1000
        assert disk.cost["bytes"] <= size + 1000


def test_a_follower_reads_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = CountingDisk()
    log = EventLog.open("log", files=disk)
    log.append("event", bytes(200_000))
    with EventLog.read("log", files=disk) as reader:
        arrivals = reader.arrivals()
        assert [getattr(next(arrivals), "lsn", None) for _ in range(2)] == [1, None]
        disk.cost.clear()
        for n in range(2, 12):
            log.append("event", n)
            assert [getattr(next(arrivals), "lsn", None) for _ in range(2)] == [n, None]
        ahead = len(disk.directories["log"][segment_name(1)].content) - 200_000
        assert disk.cost["bytes"] <= 10 * (ahead + 1000)
    log.close()


def histories(rng: Random) -> list[tuple[int, int]]:
    """(First LSN, epoch) of segments as owners make them, some of whom are overtaken."""
    made = [(1, 1)]
    epoch, end = 1, 1
    for _ in range(rng.randrange(3, 25)):
        end = max(end, made[-1][0]) + rng.randrange(4)
        if rng.random() < 0.4:  # another owner; it has seen all that there is, or all but one
            epoch += 1
            if rng.random() < 0.5:
                made.append((end + rng.randrange(4), epoch - 1))  # the late one of the owner before
        made.append((end, epoch))
    return made


def test_halving_finds_the_segment_that_walking_back_finds(rng: Random) -> None:
    for _ in range(200):
        made = histories(rng)
        disk = SimulatedDisk()
        directory = disk.make_directory("log")
        for number, (first, epoch) in enumerate(made, 1):
            header = SegmentHeader(number, LOG_ID, first, 1, epoch, b"salt")
            directory.open(segment_name(number), write=True, create=True).pwrite(header.encode(), 0)
        listing = Listing(directory)
        places = listing.segments_from(1)[1]

        def holds(place: SegmentInfo, lsn: int) -> bool:
            return place.first_lsn <= lsn < (place.superseded_at or 1 << 64)

        for lsn in range(1, made[-1][0] + 2):
            walked = [place for place in places if holds(place, lsn)]
            found = [place for place in listing.segments_with({lsn})[1] if holds(place, lsn)]
            assert found == walked, (lsn, made)


def test_sealed_segments_are_read_once_and_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "PIECE_SIZE", 4096)
    disk = CountingDisk()
    with EventLog.open("log", files=disk, segment_size=64 << 10) as log:
        for n in range(400):
            log.append("event", bytes(n))  # and one that no piece holds, near the end of a segment
            if n == 100:
                log.append("event", bytes(5000))
    size = sum(len(file.content) for file in disk.directories["log"].values())
    with EventLog.read("log", files=disk) as reader:
        for read in (lambda: list(reader.records()), lambda: list(verify(reader))):
            disk.largest = 0
            disk.cost.clear()
            read()
            assert disk.cost["bytes"] < 1.6 * size
            assert disk.largest < 64 << 10
        assert [record.lsn for record in reader.records()] == list(range(1, 402))


def test_what_a_lost_owner_writes_while_a_reader_is_at_it_is_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The reader has begun with the last segment; then the log is taken over."""
    monkeypatch.setattr(stream, "PIECE_SIZE", 200)
    disk = SimulatedDisk()
    old = EventLog.open("log", files=disk)
    for n in range(1, 4):
        old.append("old", n)
    with EventLog.read("log", files=disk) as reader:
        found = reader.records()
        assert next(found).lsn == 1
        new = EventLog.open("log", files=disk, takeover=True)
        old.append("late", 4)
        assert [record.kind for record in found] == ["old", "old"]
        new.close()
    old._release()
