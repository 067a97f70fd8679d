"""What a log promises, for any history and any crash, cut, flipped bit or failing disk.

The model of a log is the list of what was appended, in groups that must be there whole or not at
all, and how much of it was committed.
"""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventlog import Damage, EventLog, WriterFailedError
from eventlog._frame import HEADER_SIZE, RECORDS, encode_frame
from eventlog._segment import read_footer, segment_number
from eventlog.testing import Crash, SimulatedDisk

SEGMENT_SIZE = 900  # a handful of records
Action = tuple[Any, ...]


class History:
    """A log under test, beside the model of it."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self.groups: list[list[tuple[str, Any]]] = []
        self.committed = 0
        self.log: EventLog | None = None

    def open(self) -> EventLog:
        self.log = EventLog.open("log", files=self.disk, segment_size=SEGMENT_SIZE)
        return self.log

    def flat(self) -> list[tuple[str, Any]]:
        return [item for group in self.groups for item in group]

    def do(self, action: Action) -> None:
        assert self.log is not None
        verb, *rest = action
        if verb == "append":
            body = self.body(*rest)
            self.groups.append([("event", body)])
            self.log.append("event", body)
        elif verb == "batch":
            items = [("part", self.body(size, "text")) for size in rest[0]]
            self.groups.append(items)
            self.log.append_batch(items)
        elif verb == "snapshot":
            state = self.body(rest[0], "text")
            self.groups.append([("snapshot", state)])
            self.log.append_snapshot(state)
        elif verb == "commit":
            self.log.commit()
            self.committed = len(self.flat())
        elif verb == "reopen":
            self.close()
            self.open()
        else:  # the process dies here, and the next one goes on
            assert verb == "die"
            self.drop()
            self.disk = self.disk.after_process_death()
            self.open()

    def close(self) -> None:
        assert self.log is not None
        self.log.close()
        self.committed = len(self.flat())

    def drop(self) -> None:
        """Leave the log as a crash leaves it, without a word."""
        if self.log is not None:
            self.log._release()
            self.log = None

    def body(self, size: int, what: str) -> dict[str, Any]:
        files = segments(self.disk)
        newest = bytes(files[max(files)].rstrip(b"\0")) if files else b""
        return {"n": len(self.flat()), "data": PAYLOADS[what](newest, size)}


def forged(segment: bytes, size: int) -> bytes:
    """A frame of that segment, far ahead, that calls everything durable."""
    if not segment:
        return b""
    frame = encode_frame(segment[56:60], RECORDS, 1, b"x" * size, (1000, 999, 0))
    return b"".join(bytes(pad) + frame for pad in range(8))  # one of them is aligned


# An agent may read its own log while it runs, and record what it has read.
PAYLOADS: dict[str, Callable[[bytes, int], Any]] = {
    "text": lambda segment, size: "x" * size,
    "zeros": lambda segment, size: bytes(size),
    "segment": lambda segment, size: segment[:2000],
    "frames": lambda segment, size: bytes(size % 8) + segment[HEADER_SIZE:2000],
    "forged": forged,
}


def segments(disk: SimulatedDisk) -> dict[int, bytearray]:
    """The bytes of the segments, by number; to be changed at will."""
    files = disk.directories.get("log", {})
    found = {segment_number(name): file.content for name, file in files.items()}
    return {number: content for number, content in found.items() if number is not None}


def run(program: list[Action], disk: SimulatedDisk | None = None) -> History:
    """All of the program, and the log left open; Crash ends it early."""
    history = History(disk or SimulatedDisk())
    try:
        history.open()
        for action in program:
            history.do(action)
    except Crash:
        pass
    return history


def read(disk: SimulatedDisk) -> tuple[dict[int, tuple[str, Any]], list[Damage]]:
    """Records by LSN and all damage, of a fresh reader that changes nothing."""
    damaged: list[Damage] = []
    with EventLog.read("log", files=disk) as reader:
        found = list(reader.records(on_damage=damaged.append))
    assert [record.lsn for record in found] == sorted({record.lsn for record in found})
    return {record.lsn: (record.kind, record.body) for record in found}, damaged


def state_of(disk: SimulatedDisk) -> dict[int, bytes]:
    return {number: bytes(content) for number, content in segments(disk).items()}


def check_recovery(history: History, disk: SimulatedDisk, again: bool = True) -> None:
    """After an honest crash: all committed, a prefix of what was appended, and usable."""
    expected = history.flat()
    with EventLog.open("log", files=disk, segment_size=SEGMENT_SIZE) as log:
        assert log.report.damaged == ()
        found = [(record.kind, record.body) for record in log.records()]
        assert found == expected[: len(found)]
        assert len(found) == log.last_lsn >= history.committed
        ends = list(itertools.accumulate((len(g) for g in history.groups), initial=0))
        assert len(found) in ends, "a batch is there in part"
        snapshots = [lsn for lsn, (kind, _) in enumerate(found, 1) if kind == "snapshot"]
        newest = log.latest_snapshot()
        assert (newest.lsn if newest else None) == (snapshots[-1] if snapshots else None)
    recovered = state_of(disk)
    if again:
        with EventLog.open("log", files=disk, segment_size=SEGMENT_SIZE) as log:
            assert (log.last_lsn, log.report.torn_size) == (len(found), 0)
            assert state_of(disk) == recovered, "a second recovery changed something"
            log.append("more", {"n": len(found)})
            log.commit()
            after = disk.after_power_loss(len(found))
        with EventLog.open("log", files=after, segment_size=SEGMENT_SIZE) as log:
            assert log.report.damaged == ()
            kinds = [record.kind for record in log.records()]
            assert kinds == [kind for kind, _ in found] + ["more"]


sizes = st.integers(0, 300)
actions: st.SearchStrategy[Action] = st.one_of(
    st.tuples(st.just("append"), sizes, st.sampled_from(sorted(PAYLOADS))),
    st.tuples(st.just("batch"), st.lists(sizes, min_size=1, max_size=4)),
    st.tuples(st.just("snapshot"), sizes),
    st.tuples(st.just("commit")),
    st.tuples(st.just("reopen")),
    st.tuples(st.just("die")),
)
programs = st.lists(actions, max_size=14)

# One of everything, with rolls, for the exhaustive sweeps.
PROGRAM: list[Action] = [
    ("append", 10, "text"),
    ("batch", [5, 60, 0]),
    ("commit",),
    ("append", 100, "frames"),
    ("snapshot", 30),
    ("commit",),
    ("append", 33, "forged"),
    ("reopen",),
    ("append", 200, "text"),
    ("append", 7, "zeros"),
    ("commit",),
    ("batch", [90, 90]),
    ("snapshot", 8),
    ("append", 31, "text"),
    ("commit",),
    ("append", 3, "text"),
    ("append", 50, "forged"),
]
SMALL: list[Action] = [
    ("append", 9, "text"),
    ("snapshot", 3),
    ("commit",),
    ("batch", [1, 700]),
    ("append", 9, "forged"),
    ("commit",),
    ("append", 1, "text"),
]


@given(programs)
def test_a_log_holds_what_was_appended_whatever_the_payloads_are(program: list[Action]) -> None:
    history = run(program)
    found, damaged = read(history.disk)
    assert (list(found.values()), damaged) == (history.flat(), [])
    history.close()
    check_recovery(history, history.disk)


@given(programs, st.booleans(), st.data())
def test_a_cut_log_is_a_prefix_with_all_that_was_committed_or_reports_damage(
    program: list[Action], closed: bool, data: st.DataObject
) -> None:
    history = run(program)
    history.close() if closed else history.drop()
    files = segments(history.disk)
    if files:
        cut = data.draw(st.integers(0, len(files[max(files)])))
        check_cut(history, cut)


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("program", [SMALL, PROGRAM], ids=["small", "all"])
def test_every_cut_of_the_last_segment(program: list[Action], closed: bool) -> None:
    history = run(program)
    history.close() if closed else history.drop()
    files = segments(history.disk)
    for cut in range(len(files[max(files)].rstrip(b"\0")) + 9):
        check_cut(history, cut)


def check_cut(history: History, cut: int) -> None:
    disk = history.disk.after_process_death()
    files = segments(disk)
    del files[max(files)][cut:]
    check_damaged(history, disk)


def check_damaged(history: History, disk: SimulatedDisk) -> list[Damage]:
    """Whatever was done to it, nothing wrong is read and nothing acknowledged is lost unsaid."""
    expected = dict(enumerate(history.flat(), 1))
    before, seen = read(disk)
    with EventLog.open("log", files=disk, segment_size=SEGMENT_SIZE) as log:
        damaged = [*log.report.damaged, *seen]
        lost = {lsn for d in damaged for lsn in range(d.first_lsn, d.last_lsn + 1)}
        assert {lsn: expected.get(lsn) for lsn in before} == before
        assert not lost & set(before), "reported as lost, and there"
        assert set(range(1, history.committed + 1)) <= lost | set(before), "lost without a word"
        assert lost <= set(expected), "never was there"
        if not damaged:
            assert list(before) == list(range(1, len(before) + 1))
            assert log.last_lsn == len(before)
        last = log.last_lsn
        assert log.append("more", last) == last + 1 > history.committed
        log.commit()
    after, _ = read(disk)
    assert after == {**before, last + 1: ("more", last)}
    return damaged


def committed_bytes(disk: SimulatedDisk) -> Iterator[tuple[int, int]]:
    """Segment and offset of every byte of headers, frames and padding, without the last footer."""
    for number, content in segments(disk).items():
        footer = read_footer(bytes(content), bytes(content[56:60]))
        size = footer.offset if footer is not None else len(content.rstrip(b"\0"))
        for offset in range(size):
            yield number, offset


def flip_is_reported(history: History, number: int, offset: int, bit: int) -> None:
    disk = history.disk.after_process_death()
    segments(disk)[number][offset] ^= 1 << bit
    damaged = check_damaged(history, disk)
    assert damaged, f"a flipped bit at {offset} of segment {number} went unnoticed"


@pytest.mark.parametrize("closed", [False, True], ids=["committed", "closed"])
@pytest.mark.parametrize("program", [SMALL[:-1], PROGRAM[:-2]], ids=["small", "all"])
def test_a_flipped_bit_in_any_committed_byte_is_reported(
    program: list[Action], closed: bool
) -> None:
    """The last record's too: the mark file, or the footer of a clean close, covers it."""
    history = run(program)
    history.close() if closed else history.drop()
    for number, offset in committed_bytes(history.disk):
        flip_is_reported(history, number, offset, offset % 8)


@pytest.mark.crash
def test_every_flipped_bit_in_every_committed_byte_is_reported() -> None:
    for closed in (False, True):
        history = run(PROGRAM[:-2])
        history.close() if closed else history.drop()
        for number, offset in committed_bytes(history.disk):
            for bit in range(8):
                flip_is_reported(history, number, offset, bit)


def test_a_clean_close_covers_the_last_record_without_the_mark_file() -> None:
    history = run(PROGRAM)
    history.close()
    del history.disk.directories["log"]["MARK"]
    for number, offset in committed_bytes(history.disk):
        flip_is_reported(history, number, offset, offset % 8)


@given(programs, st.data())
def test_any_flipped_bit_in_what_was_committed_is_reported(
    program: list[Action], data: st.DataObject
) -> None:
    history = run(program)
    history.close()
    places = list(committed_bytes(history.disk))
    if places:
        number, offset = data.draw(st.sampled_from(places))
        flip_is_reported(history, number, offset, data.draw(st.integers(0, 7)))


@given(programs, st.data())
def test_any_crash_leaves_a_prefix_with_all_that_was_committed(
    program: list[Action], data: st.DataObject
) -> None:
    disk = SimulatedDisk()
    torn = data.draw(st.integers(0, 400))
    # The disk changes where the process dies; the crash is armed on the first one.
    disk.crash_at(data.draw(st.integers(0, 60)), torn)
    history = run(program, disk)
    disk = history.disk
    check_recovery(history, disk.after_process_death())
    for seed in range(5):
        check_recovery(history, disk.after_power_loss(seed))
    history.drop()


TORN_SIZES = (0, 1, 7, 8, 47, 48, 49, 64, 100, 1 << 20)


def crashes(program: list[Action], torn_sizes: tuple[int, ...]) -> Iterator[History]:
    """The program crashed at every call that changes the disk."""
    whole = run(program)
    calls = len(whole.disk.calls)
    whole.drop()
    for call in range(calls + 1):
        for torn in torn_sizes:
            disk = SimulatedDisk()
            disk.crash_at(call, torn)
            history = run(program, disk)
            yield history
            history.drop()
            if call < calls and disk.calls[call] != "write":
                break  # nothing to be torn


@pytest.mark.parametrize("program", [SMALL, PROGRAM], ids=["small", "all"])
def test_a_crash_at_every_call(program: list[Action]) -> None:
    for history in crashes(program, TORN_SIZES):
        check_recovery(history, history.disk.after_process_death())
        for seed in range(8):
            check_recovery(history, history.disk.after_power_loss(seed))


@pytest.mark.crash
def test_a_crash_at_every_call_and_many_power_losses() -> None:
    for program in (SMALL, PROGRAM):
        for history in crashes(program, (*TORN_SIZES, *range(2, 47))):
            for seed in range(100):
                check_recovery(history, history.disk.after_power_loss(seed))


def crashed_recoveries(disk: SimulatedDisk, seed: int) -> Iterator[SimulatedDisk]:
    """Disks left by a crash at every call of opening and closing the log on ``disk``."""
    for call in itertools.count():
        again = disk.after_process_death()
        again.crash_at(call, (seed * 7 + call) % 90)
        try:
            EventLog.open("log", files=again, segment_size=SEGMENT_SIZE).close()
        except Crash:
            yield again
        else:
            return


def nested(program: list[Action], seeds: int) -> None:
    for history in crashes(program, (0, 50)):
        for seed in range(seeds):
            for once in crashed_recoveries(history.disk.after_power_loss(seed), seed):
                check_recovery(history, once.after_process_death())
                lost = once.after_power_loss(seed)
                check_recovery(history, lost.after_process_death())
                for twice in crashed_recoveries(lost, seed + 1):
                    check_recovery(history, twice.after_power_loss(seed), again=False)


def test_a_crash_in_recovery_and_in_the_recovery_of_that() -> None:
    nested(SMALL, 2)


@pytest.mark.crash
def test_many_crashes_in_recovery() -> None:
    nested(PROGRAM, 10)


@pytest.mark.parametrize("verb", ["sync", "write", "truncate", "sync directory", "publish"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_after_a_failed_call_the_writer_takes_no_more_and_the_log_loses_nothing(
    verb: str, error: int
) -> None:
    """What a failed flush was to write may be gone for good, though it can still be read."""
    for nth in range(count(PROGRAM, verb)):
        history = History(SimulatedDisk())
        history.disk.fail_at(verb, nth, error)
        run_to_failure(history)
        for seed in range(4):
            check_recovery(history, history.disk.after_power_loss(seed))
        # The same machine goes on: what is kept now must survive the next power loss.
        check_recovery(history, history.disk)


def run_to_failure(history: History) -> None:
    failed = 0
    try:
        history.open()
        for action in PROGRAM:
            history.do(action)
    except OSError:
        failed += 1
        if history.log is not None and history.log._open:
            for refused in (lambda: history.log.append("more", 1), history.log.commit):
                with pytest.raises(WriterFailedError):
                    refused()
            history.log.close()  # says nothing: the failure has been told
    assert failed == 1
    if history.log is not None and history.log._open:
        history.drop()


def count(program: list[Action], verb: str) -> int:
    history = run(program)
    history.drop()
    return history.disk.calls.count(verb)


@pytest.mark.parametrize("size", [0, 1, 20, 60])
def test_a_short_write_is_completed(size: int) -> None:
    for nth in range(count(PROGRAM, "write")):
        history = History(SimulatedDisk())
        if size:
            history.disk.shorten_at(nth, size)
            history.open()
            for action in PROGRAM:
                history.do(action)
            history.close()
        else:  # a write that writes nothing is an error, not a reason to try for ever
            history.disk.shorten_at(nth, 1)
            history.disk.shorten_at(nth + 1, 0)
            try:
                history.open()
                for action in PROGRAM:
                    history.do(action)
                history.close()
            except OSError:
                history.drop()
        check_recovery(history, history.disk)


def test_a_short_write_before_a_full_disk_tears_nothing_that_was_acknowledged() -> None:
    for nth in range(count(PROGRAM, "write")):
        history = History(SimulatedDisk())
        history.disk.shorten_at(nth, 20)
        history.disk.fail_at("write", nth + 1, errno.ENOSPC)
        run_to_failure(history) if nth + 1 < count(PROGRAM, "write") else None
        history.drop()
        check_recovery(history, history.disk)


def test_the_durable_mark_moves_in_frames_and_in_the_mark_file() -> None:
    """pebble#6031: a mark that stays behind makes damage look like a torn tail."""
    from eventlog._frame import frames_ahead
    from eventlog._segment import read_mark

    disk = SimulatedDisk()
    with EventLog.open("log", files=disk) as log:
        marks = []
        for lsn in range(1, 6):
            log.append("event", lsn)
            log.commit()
            found = read_mark(disk.open_directory("log"))
            assert found is not None
            marks.append(found[2].durable)
        content = bytes(segments(disk)[1])
        in_frames = [f.durable for f in frames_ahead(content, HEADER_SIZE, content[56:60])]
    assert marks == [1, 2, 3, 4, 5]
    assert in_frames == [0, 1, 2, 3, 4]
