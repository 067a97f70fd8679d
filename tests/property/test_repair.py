"""A damaged log, repaired: sound, everything that could be read is there with its bytes, what is
lost is marked as lost, nothing is invented, and the log as it was lies beside it.

The logs, the faults and the oracle are those of test_damage; what a crash may leave is that of the
simulated disk.
"""

from __future__ import annotations

import itertools
import logging
import random
from collections.abc import Iterator
from dataclasses import replace

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventlog import Damage, EventLog, LogError, LogLockedError, Packed, Record
from eventlog.dump import BAD_SNAPSHOT, NOT_A_LOG, TORN, Finding, verify
from eventlog.errors import UnsupportedFormatError
from eventlog.format.frame import HEADER_SIZE, SNAPSHOT, decode_segment_header
from eventlog.repair import LOST, REPAIRED, Loss, RepairPlan, plan, planning, repair
from eventlog.testing import Crash, SimulatedDisk
from eventlog.testing.disk import _OpenFile
from tests.property.histories import PROGRAM, SMALL, Action, History, actions
from tests.property.test_damage import (
    LOGS,
    LONGER,
    Files,
    Log,
    closed,
    earlier_moments,
    files_of,
    flipped,
    mark_faults,
    single_faults,
    without,
)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


def exit_code(disk: SimulatedDisk, path: str = "log") -> int:
    with EventLog.read(path, files=disk) as reader:
        findings = list(verify(reader))
    return sum({bit for finding in findings for bit in (1, 2, 4, 8, 16, 32) if finding.bit & bit})


def readable(disk: SimulatedDisk, path: str = "log") -> tuple[dict[int, Record], list[int], int]:
    """Records by LSN, the snapshots, and the last LSN that there was."""
    damage: list[Damage] = []
    with EventLog.read(path, files=disk) as reader:
        records = {record.lsn: record for record in reader.records(on_damage=damage.append)}
        snapshots = [snapshot.lsn for snapshot in reader.snapshots()]
    return records, snapshots, max([*records, *(found.last_lsn for found in damage), 0])


def without_lock(files: Files) -> Files:
    return {name: content for name, content in files.items() if name != "LOCK"}


def check_repaired(disk: SimulatedDisk, oldest: int = 1) -> RepairPlan | None:
    """Repair what is on the disk; None when it is refused, or there is nothing to repair."""
    files = files_of(disk)
    code = exit_code(disk)
    if code & NOT_A_LOG:
        with pytest.raises(UnsupportedFormatError, match="Move that file away"):
            repair("log", files=disk)
        assert files_of(disk) == files, "refused, and changed"
        return None
    records, snapshots, last = readable(disk)
    with EventLog.read("log", files=disk) as reader:
        if not records and reader.listing.numbers() and reader.listing.log_id() is None:
            with pytest.raises(UnsupportedFormatError, match="nothing in it says"):
                plan(reader)
            return None
        planned = plan(reader)
    assert files_of(disk) == files, "planning changed something"
    done = repair("log", files=disk, who="me", why="test")
    if not planned.needed:
        assert code & ~TORN == 0 and not done.needed
        assert files_of(disk) == files, "nothing to repair, and changed"
        return None
    assert code & ~TORN or planned.unfinished, "a sound log is repaired"
    assert (done.segments, done.lost, done.kept) == (planned.segments, planned.lost, planned.kept)
    backup = {name: bytes(file.content) for name, file in disk.directories[done.backup].items()}
    assert without_lock(backup) == without_lock(files)
    check_after(disk, (records, snapshots, last), oldest)
    return done


def check_after(
    disk: SimulatedDisk, before: tuple[dict[int, Record], list[int], int], oldest: int = 1
) -> None:
    """The log is sound, and what was readable is; the rest up to the end is lost, and said so."""
    assert exit_code(disk) == 0
    records, snapshots, last = before
    after, newer, end = readable(disk)
    assert end == last + 1 and after[end].kind == REPAIRED
    assert list(after) == list(range(min(after), end + 1)) and min(after) <= oldest
    assert {lsn: after[lsn] for lsn in records} == records, "a sound record is not what it was"
    lost = {lsn for lsn, record in after.items() if record.kind == LOST} - records.keys()
    assert lost | records.keys() | {end} == set(after), "invented"
    said = {lsn for first, to in after[end].body["lost"] for lsn in range(first, to + 1)}
    assert said >= lost
    assert newer == snapshots
    files = files_of(disk)
    assert not repair("log", files=disk).needed and files_of(disk) == files, "repaired twice"
    with EventLog.open("log", files=disk) as log:
        assert log.append("more", 1) == end + 1
        log.commit()
    assert exit_code(disk) == 0


# -- one fault, and pairs of them


def faults(log: Log) -> Iterator[Files]:
    moments = earlier_moments()
    yield from (files for _, files in single_faults(log, moments))
    yield from (files for _, files in mark_faults(log, moments))
    yield without(log.files, "LOCK")
    for one, two in itertools.pairwise(log.segment_names()):
        yield without(log.files, one, two)
        yield {**log.files, one: bytes(len(log.files[one])), two: b""}


def test_every_single_fault_is_repaired() -> None:
    log = Log(closed(LONGER))
    repaired = sum(check_repaired(log.disk(files)) is not None for files in faults(log))
    assert repaired > 100


@pytest.mark.parametrize("kind", sorted(LOGS))
def test_a_fault_here_and_there_in_each_kind_of_log_is_repaired(
    kind: str, rng: random.Random
) -> None:
    log = Log(LOGS[kind]())
    places = [
        (name, offset)
        for name in log.segment_names()
        for offset in range(len(log.files[name].rstrip(b"\0")))
    ]
    for name, offset in rng.sample(places, 25):
        check_repaired(log.disk(flipped(log.files, name, offset, offset % 8)))
    for name in log.segment_names():
        check_repaired(log.disk(without(log.files, name)))
        check_repaired(log.disk({**log.files, name: log.files[name][:200]}))
        check_repaired(log.disk({**log.files, name: bytes(len(log.files[name]))}))


def test_pairs_of_faults_are_repaired(rng: random.Random) -> None:
    log, moments = Log(closed(LONGER)), earlier_moments()
    kinds = [files for _, files in single_faults(log, moments)]
    for _ in range(60):
        one, two = rng.sample(kinds, 2)
        both = {
            name: two[name] if two[name] != log.files[name] else one[name]
            for name in log.files
            if name in one and name in two
        }
        check_repaired(log.disk(both))


@pytest.mark.crash
def test_a_flipped_bit_in_every_byte_is_repaired() -> None:
    for make in LOGS.values():
        log = Log(make())
        for name in log.segment_names():
            for offset in range(len(log.files[name].rstrip(b"\0"))):
                check_repaired(log.disk(flipped(log.files, name, offset, offset % 8)))


damages = st.lists(
    st.tuples(
        st.sampled_from(["flip", "zero", "cut", "remove"]),
        st.integers(0, 99),
        st.floats(0, 1),
        st.sampled_from([1, 8, 48, 200]),
    ),
    min_size=1,
    max_size=4,
)


def damage(disk: SimulatedDisk, what: list[tuple[str, int, float, int]]) -> None:
    """Do this to the files of the log."""
    directory = disk.directories["log"]
    for how, which, where, size in what:
        names = sorted(name for name in directory if name != "LOCK")
        if not names:
            return
        name = names[which % len(names)]
        content = directory[name].content
        at = int(where * len(content))
        if how == "remove":
            del directory[name]
        elif how == "cut":
            del content[at:]
        elif at < len(content) and how == "flip":
            content[at] ^= 1 << size % 8
        elif how == "zero":
            content[at : at + size] = bytes(len(content[at : at + size]))


@given(st.lists(actions, min_size=1, max_size=12), damages, st.booleans())
def test_random_damage_to_random_logs_is_repaired(
    program: list[Action], what: list[tuple[str, int, float, int]], is_closed: bool
) -> None:
    history = History(SimulatedDisk(seed=1))
    history.open()
    for action in program:
        history.do(action)
    history.close() if is_closed else history.drop()
    disk = history.disk.after_process_death()
    damage(disk, what)
    check_repaired(disk, oldest=max(history.oldest, history.truncating))


# -- one by one


def damaged(program: list[Action] = PROGRAM) -> tuple[Log, Files]:
    """A log, and its files with the payload of its fifth record damaged."""
    log = Log(closed(program))
    name, frame = log.frames[5]
    return log, flipped(log.files, name, frame.payload_offset + 5, 1)


def test_a_damaged_snapshot_costs_itself() -> None:
    log = Log(closed(PROGRAM))
    for lsn in (lsn for lsn, (kind, _) in enumerate(log.history.flat(), 1) if kind == "snapshot"):
        name, frame = log.frames[lsn]
        done = check_repaired(log.disk(flipped(log.files, name, frame.payload_end - 1, 1)))
        assert done is not None and [str(loss) for loss in done.lost] == [f"LSN {lsn} (a snapshot)"]
    # One that is as its CRC says and not as its digest does, was written so; it is lost as well.
    disk = SimulatedDisk(seed=1)
    with EventLog.open("log", files=disk) as written:
        written.append("event", 1)
        written._appender.append(SNAPSHOT, 1, msgpack.packb([1, "snapshot", b"1", bytes(16)]))
        written.append("event", 2)
    done = check_repaired(disk)
    assert done is not None and [(loss.first_lsn, loss.snapshot) for loss in done.lost] == [
        (2, True)
    ]


def test_a_plan_and_what_was_done_are_said_in_lines() -> None:
    log = Log(closed(PROGRAM))
    disk = log.disk(two_faults(log))
    with EventLog.read("log", files=disk) as reader:
        planned = plan(reader)
    lines = str(planned).splitlines()
    assert lines == [
        "log: 10 records kept, 5 lost",
        "  00000001.seg is missing: LSN 1-4 lost",
        "  record fails its CRC: LSN 8 lost",
        "  00000001.seg will be made: 0 records kept, LSN 1-4 marked as lost",
        "  00000004.seg will be made anew: 4 records kept, LSN 8 marked as lost",
        "  the log as it was: log.~1~",
    ]
    made = replace(planned.segments[0], missing=False, kept=7, lost=())
    note = replace(planned.findings[0], bit=0)
    more = replace(
        planned, segments=(made,), findings=(note,), torn_size=9, unfinished=(Loss(3, 5),)
    )
    assert str(more).splitlines() == [
        "log: 10 records kept, 3 lost",
        "  00000001.seg will be made anew: 7 records kept",
        "  marked as lost by a repair that was interrupted: LSN 3-5",
        "  9 bytes of torn tail, never acknowledged, cut off",
        lines[-1],
    ]
    assert str(repair("log", files=disk)) == str(planned).replace("will be", "was")
    assert str(repair("log", files=disk)) == "log: nothing to repair"
    with EventLog.read("log", files=disk) as reader:
        times = [record.time_ns for record in reader.records() if record.kind == LOST]
    assert len(times) == 5 and not any(one % 1_000_000 for one in times)  # as the disk's clock says


def test_more_lost_records_than_there_can_be_are_not_made_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = Log(closed(PROGRAM))
    disk = log.disk(two_faults(log))  # five are lost
    with EventLog.read("log", files=disk) as reader:
        monkeypatch.setattr(planning, "LOST_MAX", 5)
        assert plan(reader).lost_count == 5
        monkeypatch.setattr(planning, "LOST_MAX", 4)
        with pytest.raises(LogError, match=r"lost 5 records.* Nothing was changed"):
            plan(reader)


def test_a_first_segment_that_says_it_is_not_the_first_was_forged() -> None:
    log = Log(closed(SMALL))
    first = log.segment_names()[0]
    header = decode_segment_header(log.files[first])
    assert header is not None
    forged = replace(header, first_lsn=2).encode() + log.files[first][HEADER_SIZE:]
    disk = log.disk({**log.files, first: forged})
    with pytest.raises(LogError, match="begins at LSN 2, and nothing comes before it"):
        repair("log", files=disk)


def test_a_log_that_is_still_damaged_afterwards_is_not_called_repaired(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a disk that reads something else each time."""
    log, files = damaged()
    again = Finding(BAD_SNAPSHOT, 1, 64, 8, 1, 0, "bad again")
    monkeypatch.setattr("eventlog.repair.examine", lambda *args: [again])
    with pytest.raises(
        LogError, match=r"still damaged .*: bad again\. .*in log\.~1~; move it back"
    ):
        repair("log", files=log.disk(files))


def test_what_is_of_another_log_is_refused_and_not_touched() -> None:
    log, other = Log(closed(PROGRAM)), Log(closed(SMALL))
    other_disk = SimulatedDisk(seed=77)
    with EventLog.open("log", files=other_disk) as written:
        written.append("event", 1)
    foreign = files_of(other_disk)
    first, second, *_ = log.segment_names()
    for files in (
        {**log.files, first: foreign[first]},
        {**log.files, "00000099.seg": foreign[first]},
        {**log.files, second: log.files[first]},
        {**log.files, "MARK": foreign["MARK"]},
        {**log.files, first: b"\x89evlog\r\n" + bytes(56)},
    ):
        disk = log.disk(files)
        if exit_code(disk) & NOT_A_LOG:
            with pytest.raises(UnsupportedFormatError, match="not touched"):
                repair("log", files=disk)
            assert files_of(disk) == files
    assert exit_code(log.disk({**log.files, first: foreign[first]})) & NOT_A_LOG
    assert other.files


def test_what_does_not_read_back_never_gets_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that garbles what is written to it: the damaged segment stays, and nothing is lost."""
    log, files = damaged()
    disk = durable(log.disk(files))
    expected, _, _ = readable(disk)
    pwrite, refused = _OpenFile.pwrite, 0
    for nth in itertools.count():
        copy = disk.after_process_death()
        writes = itertools.count()

        def garbled(self: _OpenFile, data: bytes, offset: int) -> int:
            replaced = "replace" in self._disk.calls or "rename" not in self._disk.calls
            if replaced or next(writes) != nth:  # noqa: B023
                return pwrite(self, data, offset)
            return pwrite(self, bytes((data[0] ^ 1,)) + data[1:], offset)

        with monkeypatch.context() as patched:
            patched.setattr(_OpenFile, "pwrite", garbled)
            try:
                repair("log", files=copy)
            except LogError as exc:
                assert "does not read back" in str(exc)
                refused += 1
                assert without_lock(files_of(copy)) == without_lock(files)
            else:
                break
        assert readable(copy)[0] == expected
    assert refused > 3


def test_a_log_that_somebody_has_is_not_repaired() -> None:
    log, files = damaged()
    disk = log.disk(files)
    with EventLog.open("log", files=disk):
        before = files_of(disk)
        with pytest.raises(LogLockedError):
            repair("log", files=disk)
        assert files_of(disk) == before and list(disk.directories) == ["log"]


# -- a crash in the middle


def crashed_repairs(disk: SimulatedDisk) -> Iterator[tuple[int, SimulatedDisk]]:
    """Copies of the disk on which a repair has crashed at each call that changes something."""
    for call in itertools.count():
        copy = disk.after_process_death()
        copy.crash_at(call, torn_size=100)
        try:
            repair("log", files=copy)
        except Crash:
            yield call, copy
        else:
            return


def check_crashed(
    disk: SimulatedDisk, files: Files, before: tuple[dict[int, Record], list[int], int]
) -> None:
    """Everything that was readable is; until there is a whole backup, nothing has changed."""
    backups = [path for path in disk.directories if path.endswith("~")]
    now = without_lock(files_of(disk))
    if not backups:
        assert now == without_lock(files), "changed before there is a backup"
    for path in backups[:1]:  # the first one: later ones are of what was repaired in part
        backup = {name: bytes(file.content) for name, file in disk.directories[path].items()}
        assert without_lock(backup) == without_lock(files), "half a backup has its name"
    records, snapshots, last = readable(disk)
    assert {lsn: records[lsn] for lsn in before[0]} == before[0], "lost by a crash"
    assert snapshots == before[1] and last >= before[2]
    repair("log", files=disk)
    assert exit_code(disk) & ~TORN == 0  # the end of the last repair may be torn
    after, _, end = readable(disk)
    assert list(after) == list(range(1, end + 1))
    assert {lsn: after[lsn] for lsn in before[0]} == before[0]
    lost = {lsn for lsn, record in after.items() if record.kind == LOST}
    said = {
        lsn
        for record in after.values()
        if record.kind == REPAIRED
        for first, to in record.body["lost"]
        for lsn in range(first, to + 1)
    }
    assert lost == said, "a placeholder that no repair speaks of"


def durable(disk: SimulatedDisk) -> SimulatedDisk:
    """The disk with all that is on it flushed."""
    directory = disk.open_directory("log")
    for name in directory.names():
        directory.open(name, write=True).sync()
    directory.sync()
    return disk.after_process_death()


def two_faults(log: Log) -> Files:
    """A segment that is missing, and a record lost in one in which others are sound."""
    first, *others = log.segment_names()
    frames = {
        name: [frame for where, frame in log.frames.values() if where == name] for name in others
    }
    name = max(others, key=lambda name: len(frames[name]))
    assert len(frames[name]) > 1
    return flipped(without(log.files, first), name, frames[name][0].payload_offset + 5, 1)


def test_a_crash_at_every_call_leaves_all_that_was_readable_and_can_be_repaired() -> None:
    log = Log(closed(PROGRAM))
    disk = durable(log.disk(two_faults(log)))
    files, before = files_of(disk), readable(disk)
    calls = 0
    for _, crashed in crashed_repairs(disk):
        calls += 1
        check_crashed(crashed.after_process_death(), files, before)
        for seed in range(3):
            check_crashed(crashed.after_power_loss(seed), files, before)
    assert calls > 30


@pytest.mark.crash
def test_every_disk_that_a_power_loss_in_a_repair_may_leave() -> None:
    log = Log(closed(SMALL))
    name = log.segment_names()[0]
    frame = log.frames[2][1]
    disk = durable(log.disk(flipped(log.files, name, frame.payload_offset + 5, 1)))
    files, before = files_of(disk), readable(disk)
    for _, crashed in crashed_repairs(disk):
        for after in itertools.islice(crashed.power_losses(), 40):
            check_crashed(after, files, before)


def test_a_full_disk_at_every_call_loses_nothing_and_leaves_no_half_of_a_backup() -> None:
    log = Log(closed(PROGRAM))
    disk = durable(log.disk(two_faults(log)))
    files, before = files_of(disk), readable(disk)
    for verb in ("write", "create", "sync", "replace", "rename", "sync directory"):
        for nth in itertools.count():
            copy = disk.after_process_death()
            copy.fail_at(verb, nth, 28)
            try:
                repair("log", files=copy)
            except OSError:
                assert not any(path.endswith(".part") for path in copy.directories)
                check_crashed(copy.after_process_death(), files, before)
            else:
                break
        assert nth > 0, verb


DECLARED = [{"lost": [[1, 2]]}, {"lost": [[9, 1], [1], "no", [2, 2]]}]
NOT_DECLARED = [
    Packed(b"\xc1"),  # no msgpack
    Packed(b"\xc7\x02\x7fno"),  # a type that nobody knows
    None,
    [[1, 2]],
    {"lost": None},
    {"lost": [[1], [1, 2, 3], [True, 2], [1.0, 2], ["1", "2"], [0, 2], [3, 1], 2]},
]


@pytest.mark.parametrize("body", [*DECLARED, *NOT_DECLARED])
def test_what_somebody_wrote_as_the_record_of_a_repair_is_believed_only_where_it_is_one(
    body: object,
) -> None:
    disk = SimulatedDisk()
    with EventLog.open("log", files=disk) as log:
        log.append("event", 1)
        log.append(LOST, {})
        log.append(REPAIRED, body)
    with EventLog.read("log", files=disk) as reader:
        assert [(one.first_lsn, one.last_lsn) for one in plan(reader).unfinished] == (
            [] if body in DECLARED else [(2, 2)]
        )
