"""What a log promises, for any history and any crash, cut, flipped bit or failing disk."""

from __future__ import annotations

import errno

import pytest
from hypothesis import example, given

from eventlog import EventLog
from eventlog.errors import WriterFailedError
from eventlog.format.frame import HEADER_SIZE
from eventlog.testing import SimulatedDisk
from tests.property.histories import (
    PROGRAM,
    Action,
    History,
    check_marks,
    check_recovery,
    programs,
    read,
    run,
    segments,
)


@given(programs)
@example([("snapshot", 3), ("roll",), ("die",), ("append", 3, "text")])
@example([("roll",), ("die",), ("snapshot", 3), ("truncate",), ("die",), ("snapshot", 3)])
def test_a_log_holds_what_was_appended_whatever_the_payloads_are(program: list[Action]) -> None:
    history = run(program)
    found, damaged = read(history.disk)
    assert (list(found.values()), damaged) == (history.flat()[history.oldest - 1 :], [])
    check_marks(history)
    history.close()
    check_recovery(history, history.disk)


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
