"""What a log promises, for any history and any crash, cut, flipped bit or failing disk."""

from __future__ import annotations

import errno
import itertools
import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventlog import EventLog
from eventlog.errors import WriterFailedError
from eventlog.format.frame import HEADER_SIZE
from eventlog.testing import Crash, SimulatedDisk
from tests.property.histories import (
    PROGRAM,
    SEGMENT_SIZE,
    SMALL,
    TORN_SIZES,
    Action,
    History,
    check_damaged,
    check_recovery,
    committed_bytes,
    crashes,
    programs,
    read,
    run,
    segments,
)


@given(programs)
def test_a_log_holds_what_was_appended_whatever_the_payloads_are(program: list[Action]) -> None:
    history = run(program)
    found, damaged = read(history.disk)
    assert (list(found.values()), damaged) == (history.flat()[history.oldest - 1 :], [])
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


def check_cut(history: History, cut: int) -> None:
    disk = history.disk.after_process_death()
    files = segments(disk)
    del files[max(files)][cut:]
    check_damaged(history, disk)


def flip_is_reported(history: History, number: int, offset: int, bit: int) -> None:
    disk = history.disk.after_process_death()
    segments(disk)[number][offset] ^= 1 << bit
    damaged = check_damaged(history, disk)
    assert damaged, f"a flipped bit at {offset} of segment {number} went unnoticed"


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
    crash = data.draw(st.integers(0, 60)), data.draw(st.integers(0, 400))
    history = run(program, crash)
    disk = history.disk
    check_recovery(history, disk.after_process_death())
    for seed in range(5):
        check_recovery(history, disk.after_power_loss(seed))
    history.drop()


@pytest.mark.parametrize(
    "program", [SMALL, pytest.param(PROGRAM, marks=pytest.mark.crash)], ids=["small", "all"]
)
def test_a_crash_at_every_call(program: list[Action]) -> None:
    for history in crashes(program, TORN_SIZES):
        check_recovery(history, history.disk.after_process_death())
        for seed in range(8):
            check_recovery(history, history.disk.after_power_loss(seed))


def test_a_crash_at_any_call_of_a_long_history(rng: random.Random) -> None:
    whole = run(PROGRAM)
    whole.drop()
    calls = len(whole.calls) + len(whole.disk.calls)
    for call in rng.sample(range(calls), min(calls, 40)):
        history = run(PROGRAM, (call, rng.choice(TORN_SIZES)))
        check_recovery(history, history.disk.after_process_death())
        for _ in range(4):
            check_recovery(history, history.disk.after_power_loss(rng.getrandbits(32)))
        history.drop()


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


@pytest.mark.parametrize("seeds", [1, pytest.param(4, marks=pytest.mark.crash)])
def test_a_crash_in_recovery_and_in_the_recovery_of_that(seeds: int) -> None:
    nested(SMALL, seeds)


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
    from eventlog.format.frame import frames_ahead
    from eventlog.read.segment_files import read_mark

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
