"""Whatever is done to the files of a log: nothing wrong is read, nothing acknowledged goes unsaid.

The oracle is physical. A frame is intact when its bytes stand where they stood, in a segment that
is still this log's; all that is intact must come back, whatever was done to the rest. What is not
there must be reported, unless nothing is left that vouches for it: those cases are counted here,
and docs/guarantees.md names them.
"""

from __future__ import annotations

import itertools
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from eventlog import Damage, EventLog, Snapshot
from eventlog.dump import GAP, MISSING, Finding, dump, verify
from eventlog.format.durable_mark import DurableMark
from eventlog.format.frame import (
    ALIGNMENT,
    FOOTER,
    FRAME_SIZE,
    HEADER_SIZE,
    Frame,
    SegmentHeader,
    decode_segment_header,
    frame_at,
    frames_ahead,
)
from eventlog.format.names import segment_name, segment_number
from eventlog.format.torn_or_damaged import Segment
from eventlog.read.segment_files import identify, read_mark
from eventlog.testing import SimulatedDisk
from recovery import CheckpointStore, RecoverableAgent, tool
from recovery.errors import DamagedRunError
from recovery.stores.log_store import LogStore
from tests.conftest import Figures
from tests.property.histories import PROGRAM, SEGMENT_SIZE, SMALL, Action, History, run, segments

Files = dict[str, bytes]


_checked = Counter[str]()


@pytest.fixture(autouse=True)
def _quiet(figures: Figures) -> Iterator[None]:
    """What is logged of each of a hundred thousand damaged logs would be kept until the end."""
    logging.disable()
    before = _checked["logs"]
    yield
    logging.disable(logging.NOTSET)
    if _checked["logs"] > before:
        figures.add("damaged logs", logs=_checked["logs"] - before)


# -- logs to be damaged


def committed(program: list[Action]) -> History:
    """Left open: zeros ahead of the end, nothing closed."""
    history = run([*program, ("commit",)])
    history.drop()
    return history


def closed(program: list[Action]) -> History:
    history = run(program)
    history.close()
    return history


def crashed(program: list[Action]) -> History:
    """Records behind the last commit that nobody was told of."""
    history = run([*program, ("commit",), ("append", 40, "text"), ("batch", [9, 30])])
    history.drop()
    return history


def recovered(program: list[Action]) -> History:
    """A torn tail was cut and sealed; the next owner appended a little, and died as well."""
    history = crashed(program)
    history.disk = history.disk.after_process_death()
    content = segments(history.disk)[max(segments(history.disk))]
    last = list(frames_ahead(bytes(content), HEADER_SIZE, bytes(content[56:60])))[-1]
    content[last.end - 9] ^= 1
    history.groups.pop()
    history.open()
    history.do(("append", 20, "text"))
    history.do(("commit",))
    history.drop()
    return history


def taken_over(program: list[Action]) -> History:
    """The old owner still appended to its segment when a new one had the log."""
    history = run([*program, ("commit",)])
    old = history.log
    assert old is not None
    history.log = EventLog.open("log", files=history.disk, takeover=True)
    before = {number: bytes(content) for number, content in segments(history.disk).items()}
    old.append("late", "x" * 50)
    assert before != segments(history.disk), "it is there, and does not count"
    for action in (("append", 20, "text"), ("snapshot", 9), ("commit",)):
        history.do(action)
    old._release()
    history.drop()
    return history


LOGS: dict[str, Callable[[], History]] = {
    "small, committed": lambda: committed(SMALL),
    "small, closed": lambda: closed(SMALL),
    "small, crashed": lambda: crashed(SMALL[:-1]),
    "rolled, committed": lambda: committed(PROGRAM),
    "rolled, closed": lambda: closed(PROGRAM),
    "rolled, recovered": lambda: recovered(PROGRAM),
    "rolled, taken over": lambda: taken_over(PROGRAM[:12]),
}


@dataclass
class Log:
    """A log as it was, and what was where in it."""

    history: History
    files: Files = field(init=False)
    frames: dict[int, tuple[str, Frame]] = field(init=False)  # by each of their LSNs

    def __post_init__(self) -> None:
        self.files = files_of(self.history.disk)
        self.frames = {}
        names = [name for name in sorted(self.files) if segment_number(name)]
        for i, name in enumerate(names):
            header = decode_segment_header(self.files[name])
            assert header is not None
            later = (decode_segment_header(self.files[after]) for after in names[i + 1 :])
            limit = min((found.first_lsn for found in later if found), default=None)
            walk = Segment(header.number, self.files[name], header.salt, DurableMark(), limit)
            for item in walk.walk(HEADER_SIZE, header.first_lsn):
                assert not isinstance(item, Damage)
                if isinstance(item, tuple) and item[0].kind != FOOTER:
                    frame = item[0]
                    for lsn in range(frame.lsn, frame.lsn + frame.count):
                        self.frames[lsn] = name, frame
        assert list(self.frames) == list(range(1, len(self.frames) + 1))
        assert len(self.frames) == len(self.history.flat())

    @property
    def acknowledged(self) -> set[int]:
        return set(range(1, self.history.committed + 1))

    def segment_names(self) -> list[str]:
        return sorted({name for name, _ in self.frames.values()})

    def disk(self, files: Files) -> SimulatedDisk:
        disk = SimulatedDisk(seed=5)
        directory = disk.make_directory("log")
        for name, content in files.items():
            directory.open(name, write=True, create=True).pwrite(content, 0)
        return disk

    def intact(self, files: Files) -> set[int]:
        """The records whose frames stand where they stood, in segments that are this log's."""
        log_id = decode_segment_header(self.files[self.segment_names()[0]])
        assert log_id is not None
        found = set()
        for lsn, (name, frame) in self.frames.items():
            content = files.get(name, b"")
            header = decode_segment_header(content)
            if header is not None:
                ours = (header.number, header.log_id) == (segment_number(name), log_id.log_id)
            else:
                # Its first frame tells, or its footer, which takes up the last bytes.
                was = self.files[name]
                start = slice(HEADER_SIZE, HEADER_SIZE + FRAME_SIZE)
                sealed = any(was[-16:]) and content[-64:] == was[-64:]
                ours = content[start] == was[start] or sealed
            part = slice(frame.offset, frame.payload_end)
            if ours and content[part] == self.files[name][part]:
                found.add(lsn)
        return found


def files_of(disk: SimulatedDisk) -> Files:
    return {name: bytes(file.content) for name, file in disk.directories["log"].items()}


def witnessed(disk: SimulatedDisk) -> int:
    """The highest LSN that anything left in the directory calls durable."""
    directory = disk.open_directory("log")
    contents = {number: bytes(content) for number, content in segments(disk).items()}
    headers = {number: decode_segment_header(content) for number, content in contents.items()}
    ids = {header.log_id for header in headers.values() if header is not None}
    highest = 0
    mark = read_mark(directory)
    if mark is not None and (mark[0] in ids or not ids):
        epochs = [header.epoch for header in headers.values() if header is not None]
        highest = mark[2].durable if mark[1] >= max(epochs, default=0) else 0
    for number, content in contents.items():
        header, start = headers[number], identify(content)
        if header is not None and header.number == number:
            highest = max(highest, header.first_lsn - 1)
            start = header.salt, header.first_lsn
        if start is not None:
            marks = (frame.durable for frame in frames_ahead(content, HEADER_SIZE, start[0]))
            highest = max(highest, max(marks, default=0))
    return highest


# -- the check


@dataclass
class Seen:
    """What was read of a damaged log."""

    found: set[int]
    lost: set[int]  # reported
    silent: set[int]  # acknowledged, not there, not reported
    damaged: list[Damage]


def check(log: Log, files: Files, moved: bool = False, doubted: bool = False) -> Seen:
    """Nothing wrong is read, all that is intact is, the rest is reported; the log goes on.

    Where frames were ``moved`` to another place, sound, what is intact and what has moved may not
    go into one order: then as many records come back as are intact, not necessarily the same. Where
    two segments are damaged, records may be ``doubted``: reported as lost though they are intact.
    """
    _checked["logs"] += 1
    disk, expected = log.disk(files), dict(enumerate(log.history.flat(), 1))
    damaged: list[Damage] = []
    with EventLog.read("log", files=disk) as reader:
        records = list(reader.records(on_damage=damaged.append))
        found = {record.lsn: (record.kind, record.body) for record in records}
        assert list(found) == sorted(found) and len(found) == len(records)
        assert {lsn: expected.get(lsn) for lsn in found} == found, "wrong data"
        snapshots = [record.lsn for record in reader.snapshots()]
        assert snapshots == [r.lsn for r in records if isinstance(r, Snapshot)][::-1]
        assert reader.fetch(set(expected)) == {record.lsn: record for record in records}
        findings = list(verify(reader))
    assert files_of(disk) == files, "reading changed something"
    lost = lost_in(damaged)
    assert not lost & set(found), "reported as lost, and there"
    assert lost == lost_in(one for one in findings if one.bit), "verify says otherwise"
    check_places(files, findings)
    assert lost <= set(expected), "reported as lost, and never was there"
    intact = log.intact(files) & log.acknowledged
    missing = intact - set(found)
    enough = (moved and len(intact) <= len(found) + 4) or (doubted and missing <= lost)
    assert not missing or enough, missing
    silent = log.acknowledged - set(found) - lost
    assert all(lsn > witnessed(disk) for lsn in silent), f"lost without a word: {silent}"
    if not damaged:
        assert list(found) == list(range(1, len(found) + 1))
    check_goes_on(disk, found, lost, damaged)
    return Seen(set(found), lost, silent, damaged)


def lost_in(damaged: Iterable[Damage | Finding]) -> set[int]:
    return {lsn for one in damaged for lsn in range(one.first_lsn, one.last_lsn + 1)}


def check_places(files: Files, findings: list[Finding]) -> None:
    """What a finding says of bytes is so: they are there, and the next sound frame is the next."""
    for one in findings:
        content = files.get(segment_name(one.segment), b"")
        end = len(content) + -len(content) % ALIGNMENT  # padding may be cut off
        assert one.offset + one.size <= max(HEADER_SIZE, end)
        salt = content[one.next_frame : one.next_frame + 4]
        assert not one.next_frame or frame_at(content, one.next_frame, salt)


def check_in_parts(log: Log, files: Files) -> None:
    """From any record on, and segment by segment, there is what there is in the whole."""
    with EventLog.read("log", files=log.disk(files)) as reader:
        damaged: list[Damage] = []
        whole, findings = list(reader.records(on_damage=damaged.append)), list(verify(reader))
        for start in range(2, len(log.frames) + 2, 4):
            rest: list[Damage] = []
            assert list(reader.records(start, on_damage=rest.append)) == [
                record for record in whole if record.lsn >= start
            ]
            assert {lsn for lsn in lost_in(rest) if lsn >= start} == {
                lsn for lsn in lost_in(damaged) if lsn >= start
            }
            dumped = [item["lsn"] for item in dump(reader, start) if "lsn" in item]
            assert dumped == [record.lsn for record in whole if record.lsn >= start]
        for number in reader.listing.numbers():
            of_segment = [one for one in findings if one.segment == number]
            assert list(verify(reader, number)) == [
                one for one in of_segment if one.bit != MISSING and (one.bit != GAP or one.offset)
            ]


def check_goes_on(
    disk: SimulatedDisk, found: dict[int, Any], lost: set[int], damaged: list[Damage]
) -> None:
    """It can be opened and appended to; what was there before is there afterwards."""
    with EventLog.open("log", files=disk, segment_size=SEGMENT_SIZE) as writer:
        assert damaged or not writer.report.damaged
        last = writer.last_lsn
        assert last >= max({*found, *lost, 0})
        assert writer.append("more", last) == last + 1
        writer.commit()
    with EventLog.read("log", files=disk) as reader:
        after = {r.lsn: (r.kind, r.body) for r in reader.records(on_damage=lambda damage: None)}
    assert after == {**found, last + 1: ("more", last)}


def check_exactly(log: Log, files: Files) -> Seen:
    """As ``check``, and nothing is lost but what was hit, and that is said."""
    seen = check(log, files)
    assert seen.silent == set()
    assert seen.lost & log.acknowledged <= log.acknowledged - log.intact(files)
    return seen


# -- bits


def flipped(files: Files, name: str, offset: int, bit: int) -> Files:
    content = bytearray(files[name])
    content[offset] ^= 1 << bit
    return {**files, name: bytes(content)}


def must_be_reported(log: Log, name: str, offset: int) -> bool:
    """Whether a byte belongs to a header or a frame that was acknowledged, or to its padding."""
    if offset < HEADER_SIZE:
        return True
    ends = (
        frame.end
        for where, frame in log.frames.values()
        if where == name and frame.lsn <= log.history.committed
    )
    return offset < max(ends, default=0)


def flip(log: Log, name: str, offset: int, bit: int) -> None:
    seen = check_exactly(log, flipped(log.files, name, offset, bit))
    hit = [d for d in seen.damaged if d.segment == segment_number(name)]
    if name in log.segment_names() and must_be_reported(log, name, offset):
        assert hit, f"bit {bit} of byte {offset} of {name}: not reported"
    groups = {frame.lsn: frame.count for _, frame in log.frames.values()}
    assert len(seen.lost) <= max(groups.values()), "more than one frame is lost"


def places(log: Log) -> Iterator[tuple[str, int]]:
    """Every byte of a log but the zeros ahead of its end, of which there are some."""
    for name, content in log.files.items():
        size = len(content.rstrip(b"\0")) if name.endswith(".seg") else len(content)
        yield from ((name, offset) for offset in range(min(len(content), size + 65)))


@pytest.mark.parametrize("kind", ["small, closed", "small, crashed"])
def test_a_flipped_bit_in_every_fifth_byte_of_a_small_log_costs_its_frame_at_most(
    kind: str,
) -> None:
    log = Log(LOGS[kind]())
    for name, offset in itertools.islice(places(log), 0, None, 5):
        flip(log, name, offset, offset % 8)


@pytest.mark.crash
@pytest.mark.parametrize("kind", ["small, closed", "small, crashed"])
def test_every_flipped_bit_of_every_byte_costs_its_frame_at_most(kind: str) -> None:
    log = Log(LOGS[kind]())
    for name, offset in places(log):
        for bit in range(8):
            flip(log, name, offset, bit)


@pytest.mark.crash
@pytest.mark.parametrize("kind", LOGS)
def test_a_flipped_bit_in_any_byte_of_any_log(kind: str, rng: random.Random) -> None:
    log = Log(LOGS[kind]())
    for name, offset in places(log):
        flip(log, name, offset, rng.randrange(8))


# -- cuts


def test_any_segment_cut_anywhere() -> None:
    log = Log(closed(PROGRAM))
    silent = 0
    for name in log.segment_names():
        for size in range(0, len(log.files[name]), 11):
            seen = check_exactly(log, {**log.files, name: log.files[name][:size]})
            silent += len(seen.silent)
    assert silent == 0


@pytest.mark.crash
@pytest.mark.parametrize("kind", LOGS)
def test_any_segment_cut_at_every_byte(kind: str) -> None:
    log = Log(LOGS[kind]())
    for name in log.segment_names():
        for size in range(len(log.files[name].rstrip(b"\0")) + 9):
            check_exactly(log, {**log.files, name: log.files[name][:size]})


# -- sectors

SECTORS = (512, 4096)


def sectors(content: bytes, size: int) -> Iterator[slice]:
    for start in range(0, len(content), size):
        yield slice(start, min(start + size, len(content)))


def over(content: bytes, part: slice, data: bytes) -> bytes:
    data = data[: part.stop - part.start]
    return content[: part.start] + data + content[part.start + len(data) :]


def overwritten_sectors(log: Log, other: Log, size: int) -> Iterator[Files]:
    """Each sector zeroed, erased, or with what belongs elsewhere: in any segment, or log."""
    names = log.segment_names()
    elsewhere = [log.files[name][part] for name in names for part in sectors(log.files[name], size)]
    elsewhere += [content[:size] for content in other.files.values()]
    for name in names:
        content = log.files[name]
        for part in sectors(content, size):
            length = part.stop - part.start
            for data in (bytes(length), b"\xff" * length, *elsewhere):
                if content[part] != data[:length]:
                    yield {**log.files, name: over(content, part, data)}


def swapped_sectors(log: Log, size: int) -> Iterator[Files]:
    """Any two sectors exchanged, within a segment and between two."""
    at = [(name, part) for name in log.segment_names() for part in sectors(log.files[name], size)]
    for (one, here), (two, there) in itertools.combinations(at, 2):
        files = {**log.files, one: over(log.files[one], here, log.files[two][there])}
        yield {**files, two: over(files[two], there, log.files[one][here])}


LONG: list[Action] = [("append", n * 13 % 90, "text") for n in range(60)]


def long_log() -> Log:
    """60 records in two segments of a few KiB, so that several frames share a sector."""
    history = History(SimulatedDisk(seed=9))
    history.log = EventLog.open("log", files=history.disk, segment_size=5000)
    for n, action in enumerate(LONG):
        history.do(action)
        if n % 7 == 0:
            history.do(("commit",))
        if n % 11 == 10:
            history.do(("snapshot", 20))
    history.close()
    return Log(history)


@pytest.mark.parametrize("size", [512, 4096])
def test_a_sector_that_is_zeroed_erased_or_written_over_costs_what_was_in_it(size: int) -> None:
    log, other = long_log(), Log(closed(SMALL))
    for files in overwritten_sectors(log, other, size):
        check_exactly(log, files)


@pytest.mark.parametrize("size", [512, 4096])
def test_swapped_sectors_cost_what_was_in_them(size: int) -> None:
    log = long_log()
    for files in swapped_sectors(log, size):
        assert not check(log, files, moved=True).silent


# -- whole files


def other_log() -> Log:
    """A log with the same history: another run of the same agent."""
    history = run(PROGRAM, seed=77)
    history.close()
    return Log(history)


def earlier(program: list[Action], upto: int) -> Files:
    """The files of the same log at an earlier moment."""
    history = run(program[:upto])
    files = files_of(history.disk)
    history.drop()
    return files


def test_a_missing_segment_is_reported_with_its_records() -> None:
    log = Log(closed(PROGRAM))
    for name in log.segment_names():
        seen = check_exactly(log, without(log.files, name))
        assert seen.lost == {lsn for lsn, (where, _) in log.frames.items() if where == name}


def test_missing_segments_are_reported_down_to_the_last_one() -> None:
    log = Log(closed(PROGRAM))
    names = log.segment_names()
    for count in range(2, len(names) + 1):
        for gone in itertools.combinations(names, count):
            check_exactly(log, without(log.files, *gone))


def test_segments_under_wrong_names_are_not_read_and_not_passed_over_in_silence() -> None:
    log = Log(closed(PROGRAM))
    names = log.segment_names()
    for one, two in itertools.permutations([*names, "00000099.seg"], 2):
        content = log.files.get(one)
        if content is None:
            continue
        seen = check_exactly(log, {**log.files, two: content})  # a copy
        assert seen.damaged
        check_exactly(log, {**without(log.files, one), two: content})  # renamed
        if two in log.files:
            check_exactly(log, {**log.files, one: log.files[two], two: content})  # exchanged


def test_a_segment_of_another_run_with_more_owners_does_not_silence_the_mark() -> None:
    log = Log(closed(SMALL))
    foreign = SegmentHeader(99, bytes(16), 1, 1, 999, b"salt").encode()
    seen = check_exactly(
        log, {**without(log.files, log.segment_names()[-1]), "00000099.seg": foreign}
    )
    assert seen.lost


def test_a_segment_of_another_run_is_never_read() -> None:
    log = Log(closed(PROGRAM))
    other = other_log()
    for name in (*log.segment_names(), "00000099.seg"):
        for foreign in other.segment_names():
            seen = check_exactly(log, {**log.files, name: other.files[foreign]})
            assert seen.damaged


def test_a_mark_of_another_log_says_so_and_loses_nothing() -> None:
    for make in LOGS.values():
        log = Log(make())
        seen = check_exactly(log, {**log.files, "MARK": other_log().files["MARK"]})
        assert seen.damaged


def test_a_log_whose_only_segment_was_exchanged_says_so() -> None:
    """Mark and segment are of two logs. Nobody can tell which belongs here, so it is read."""
    log, other = Log(closed(SMALL[:3])), other_log()
    disk = log.disk({**log.files, "00000001.seg": other.files["00000001.seg"]})
    damaged: list[Damage] = []
    with EventLog.read("log", files=disk) as reader:
        list(reader.records(on_damage=damaged.append))
    with EventLog.open("log", files=disk) as writer:
        assert writer.report.damaged
    assert any("another log" in damage.what for damage in damaged)


def test_an_earlier_version_of_a_segment_is_reported() -> None:
    """Restored from a backup, say. The mark file knows better, and so do later segments."""
    log = Log(closed(PROGRAM))
    for upto in range(1, len(PROGRAM)):
        for name, content in earlier(PROGRAM, upto).items():
            if name in log.segment_names():
                check_exactly(log, {**log.files, name: content})


def test_an_earlier_mark_and_no_mark_at_all_lose_nothing() -> None:
    for kind, make in LOGS.items():
        log = Log(make())
        check_exactly(log, without(log.files, "MARK"))
        check_exactly(log, without(log.files, "LOCK"))
        check_exactly(log, without(log.files, "MARK", "LOCK"))
        for upto in range(1, len(PROGRAM)):
            mark = earlier(PROGRAM if "rolled" in kind else SMALL, upto).get("MARK", b"")
            check_exactly(log, {**log.files, "MARK": mark})


def without(files: Files, *names: str) -> Files:
    return {name: content for name, content in files.items() if name not in names}


# -- what nobody can see


# Commits after which the last segment is not yet as it will be.
LONGER = [*PROGRAM, ("commit",), ("append", 20, "text"), ("commit",), ("append", 30, "text")]


def earlier_moments() -> list[Files]:
    """The files of one log after each thing that was done to it, the last time closed."""
    moments = [earlier(LONGER, upto) for upto in range(1, len(LONGER) + 1)]
    return [*moments, Log(closed(LONGER)).files]


def single_faults(log: Log, moments: list[Files]) -> Iterator[tuple[str, Files]]:
    """By kind: what happened to which part, and what is there afterwards."""
    last = log.segment_names()[-1]
    for name in log.segment_names():
        part = "last segment" if name == last else "a segment"
        content = log.files[name]
        yield f"{part} missing", without(log.files, name)
        for before in moments:
            if name in before and before[name] != content:
                yield f"{part} of an earlier moment", {**log.files, name: before[name]}
        for size in range(0, len(content), 97):
            yield f"{part} cut", {**log.files, name: content[:size]}
            zeroed = content[:size].ljust(len(content), b"\0")
            yield f"{part} zeroed from somewhere on", {**log.files, name: zeroed}
        for offset in range(0, len(content), 61):
            yield f"{part} with a flipped bit", flipped(log.files, name, offset, 3)


def mark_faults(log: Log, moments: list[Files]) -> Iterator[tuple[str, Files]]:
    yield "MARK missing", without(log.files, "MARK")
    yield "MARK damaged", flipped(log.files, "MARK", 35, 1)
    for before in moments[:-1:3]:
        if "MARK" in before and before["MARK"] != log.files["MARK"]:
            yield "MARK of an earlier moment", {**log.files, "MARK": before["MARK"]}


# What only MARK vouches for is lost without a word when MARK is lost with it. docs/guarantees.md,
# G4, names these, and no others.
UNSEEN = {
    f"last segment {what}, {mark}"
    for what in ("missing", "of an earlier moment", "cut", "zeroed from somewhere on")
    for mark in ("MARK missing", "MARK damaged", "MARK of an earlier moment")
}


def test_no_single_fault_loses_anything_unseen() -> None:
    log, moments = Log(closed(LONGER)), earlier_moments()
    kinds = Counter[str]()
    for kind, files in itertools.chain(single_faults(log, moments), mark_faults(log, moments)):
        kinds[kind] += 1
        check_exactly(log, files)
        check_in_parts(log, files)
    assert len(kinds) == 13 and sum(kinds.values()) > 200, kinds


@pytest.mark.crash
def test_of_two_faults_only_those_to_the_last_segment_and_its_mark_go_unseen() -> None:
    log, moments = Log(closed(LONGER)), earlier_moments()
    unseen, seen = Counter[str](), Counter[str]()
    for kind, files in single_faults(log, moments):
        for mark, marked in mark_faults(log, moments):
            found = check(log, {**files, "MARK": marked.get("MARK", b"")})
            (unseen if found.silent else seen)[f"{kind}, {mark}"] += 1
    assert set(unseen) == UNSEEN, f"{set(unseen) ^ UNSEEN}"


def test_a_log_put_back_as_a_whole_to_an_earlier_moment_is_that_log() -> None:
    """A backup restored: nothing in the directory knows of what came later."""
    log = Log(closed(LONGER))
    for files in earlier_moments():
        seen = check(log, files)
        assert seen.damaged == [] and seen.silent == log.acknowledged - seen.found


def test_pairs_of_faults_lose_what_they_hit(rng: random.Random) -> None:
    log, moments = Log(closed(LONGER)), earlier_moments()
    faults = [files for _, files in single_faults(log, moments)]
    for _ in range(250):
        one, two = rng.sample(faults, 2)
        both = {
            name: two[name] if two[name] != log.files[name] else one[name]
            for name in log.files
            if name in one and name in two
        }
        # Before a segment that cannot be read, in one that lost its end, nothing tells records
        # from what an overruled writer wrote late.
        assert not check(log, both, doubted=True).silent


def test_a_clean_close_covers_every_record_without_the_mark_file() -> None:
    log = Log(closed(LONGER))
    for name in log.segment_names():
        for offset in range(0, len(log.files[name]), 17):
            files = without(flipped(log.files, name, offset, offset % 8), "MARK")
            check_exactly(log, files)


# -- large logs


def large_log(rng: random.Random) -> Log:
    """Three segments of the default size and more, with payloads up to a MiB."""
    history = History(SimulatedDisk(seed=3))
    history.log = EventLog.open("log", files=history.disk)
    for n in range(40):
        body = {"n": n, "data": rng.randbytes(rng.choice((10, 5000, 1 << 20)))}
        history.groups.append([("event", body)])
        history.log.append("event", body)
        if n % 5 == 4:
            history.do(("commit",))
    history.close()
    return Log(history)


def damaged_somewhere(log: Log, rng: random.Random) -> Files:
    name = rng.choice(log.segment_names())
    content = bytearray(log.files[name])
    at = rng.randrange(len(content))
    size = rng.choice((1, 1, 8, 48, 512, 4096, 1 << 16, 1 << 20))
    at -= at % size if size >= 512 else 0
    burst = content[at : at + size]
    content[at : at + size] = rng.choice(
        (
            bytes(len(burst)),
            b"\xff" * len(burst),
            rng.randbytes(len(burst)),
            bytes([burst[0] ^ 1 << rng.randrange(8)]) + burst[1:],
        )
    )
    return {**log.files, name: bytes(content)}


@pytest.mark.parametrize("count", [3, pytest.param(120, marks=pytest.mark.crash)])
def test_bits_and_bursts_in_a_large_log(count: int, rng: random.Random) -> None:
    log = large_log(rng)
    for _ in range(count):
        check_exactly(log, damaged_somewhere(log, rng))


# -- the runtime over a damaged log


class Killed(BaseException):
    """The process died here."""


class World:
    """An agent, what its tools did, and where it dies."""

    def __init__(self, die_after: int) -> None:
        self.die_after, self.done = die_after, Counter[str]()

    def agent(self, run: Any) -> Any:
        @tool
        def send(to: str) -> str:
            self.done[to] += 1
            return f"sent to {to}"

        @tool(after_crash="retry")
        def ask(what: str) -> dict[str, str]:
            self.done[what] += 1
            return {"answer": what * 20}

        for _ in run.steps():
            number = len(run.messages) // 2
            run.messages.append(run.call(ask, f"question {number}"))
            run.messages.append(run.call(send, f"person {number}"))
            run.state["count"] = number + 1
            if number + 1 == self.die_after:
                self.die_after = 0
                raise Killed
            if number == 7:
                break
        return [dict(run.state), list(run.messages)]


class Store(LogStore):
    """Runs in small segments."""

    def __init__(self, disk: SimulatedDisk) -> None:
        super().__init__("runs", disk, "power")

    def claim(self, run_id: str, takeover: bool = False) -> EventLog:
        return EventLog.open(self._path(run_id), files=self.files, segment_size=900)


def resume(disk: SimulatedDisk, world: World) -> Any:
    agent = RecoverableAgent(
        world.agent, CheckpointStore(Store(disk)), checkpoint_every_n=2, max_recoveries=0
    )
    return agent.run_with_recovery_sync("task", "run")["result"]


def run_that_died(die_after: int) -> tuple[Files, Counter[str], Any]:
    """The files of a run that died, all of it durable; what was done; what it would have given."""
    disk, world = SimulatedDisk(seed=die_after), World(die_after)
    with pytest.raises(Killed):
        resume(disk, world)
    disk = disk.after_process_death()
    Store(disk).claim("run").close()
    files = {name: bytes(file.content) for name, file in disk.directories["runs/run"].items()}
    return files, world.done, resume(SimulatedDisk(), World(0))


def damaged_runs(files: Files) -> Iterator[Files]:
    """A bit of each header and payload, each sector, each segment, cuts."""
    for name in [name for name in sorted(files) if name.endswith(".seg")]:
        content = files[name]
        yield without(files, name)
        yield flipped(files, name, 20, 5)
        for frame in frames_ahead(content, HEADER_SIZE, content[56:60]):
            yield flipped(files, name, frame.offset + 9, 2)
            yield flipped(files, name, frame.payload_end - 1, 6)
            yield {**files, name: content[: frame.payload_offset]}
        for part in sectors(content, 512):
            yield {**files, name: over(content, part, bytes(512))}


def check_resumed(files: Files, done: Counter[str], expected: Any) -> bool:
    """The same end, and nothing done twice; or an error, and nothing done at all."""
    disk, world = SimulatedDisk(seed=99), World(0)
    directory = disk.make_directory("runs/run")
    for name, content in files.items():
        directory.open(name, write=True, create=True).pwrite(content, 0)
    try:
        result = resume(disk, world)
    except DamagedRunError:
        assert not world.done, "executed, though a record is lost"
        return False
    assert result == expected
    assert not world.done & done, f"done again: {world.done & done}"
    assert set((world.done + done).values()) == {1}
    return True


@pytest.mark.parametrize("die_after", [3, 6])
def test_a_run_over_a_damaged_log_goes_on_rightly_or_not_at_all(die_after: int) -> None:
    files, done, expected = run_that_died(die_after)
    ends = Counter(check_resumed(damaged, done, expected) for damaged in damaged_runs(files))
    assert ends[True] > 20 and ends[False] > 20, ends
