"""Unmodified processes whose system calls fail: strace makes the n-th call of a verb report an
error, or kills the process there. Every call is recorded and held against the rules of durability
(see system_calls), which know that a failed flush may have dropped what it was to write.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from eventlog import EventLog
from tests.integration.kernels import FORK, KILLED, Ended, needed, no_strace, python, run, traced
from tests.integration.system_calls import WATCHED, Replica, recorded

SUBJECT = (
    FORK
    + """
def body(n):
    return {"n": n, "data": "x" * (n * 371 % 600)}
def append(log, n):
    return log.append_snapshot(body(n)) if n % 4 == 0 else log.append("event", body(n))
def write():
    log = EventLog.open(sys.argv[1], segment_size=1500)
    assert not log.report.damaged, log.report
    assert [r.body for r in log.records()] == [body(n) for n in range(1, log.last_lsn + 1)]
    try:
        for n in range(log.last_lsn + 1, log.last_lsn + 7):
            append(log, n)
            log.commit()
            say("ACK", n)
        log.close()
    except OSError as exc:
        say("ERROR", errno.errorcode[exc.errno])
        for call in (lambda: append(log, n), log.commit, log.close):
            try:
                call()
                if call != log.close:
                    say("IT WENT ON")
            except LogError:
                pass
for _ in range(3):  # the process lives on, and opens the log again
    try:
        write()
    except OSError as exc:
        say("ERROR", errno.errorcode[exc.errno])
say("END")
"""
)

VERBS = ["fdatasync", "fsync", "pwrite64", "ftruncate", "linkat", "unlinkat", "mkdirat", "openat"]
ERRORS = {
    "pwrite64": ["ENOSPC", "EIO", "EDQUOT"],
    "openat": ["EMFILE", "EIO"],
    "linkat": ["ENOSPC", "EDQUOT"],
    "mkdirat": ["ENOSPC"],
    "ftruncate": ["EIO", "ENOSPC"],
    "fdatasync": ["EIO", "ENOSPC"],
}


def body(n: int) -> dict[str, object]:
    return {"n": n, "data": "x" * (n * 371 % 600)}


def inject(tmp_path: Path, verb: str, what: str, when: str) -> tuple[Ended, int]:
    """Run the subject with a fault; how it ended, and how often it called ``verb``.

    What it acknowledged is there afterwards, and the log is one to go on with.
    """
    root = tmp_path / f"{verb} {what} {when}"
    root.mkdir()
    log, record = root / "log", tmp_path / "calls"
    whole = verb != "openat"  # of these the start of Python makes many: count those in the log
    command = traced(
        python(SUBJECT, log),
        calls=WATCHED if whole else verb,
        record=record,
        inject=f"{verb}:{what}:when={when}" if what else "",
        path=None if whole else log,
    )
    ended = run(command)
    assert "IT WENT ON" not in ended.lines, ended
    # strace itself says that a path to look at is not there yet.
    said = [line for line in ended.err.splitlines() if not line.startswith("strace: ")]
    assert ended.code in (0, KILLED) and not said, ended
    replica = Replica(root)
    if whole:
        for _ in replica.play(recorded(record)):
            pass
        assert replica.violations == [], f"{verb} {what} {when}"
        assert replica.acknowledged == ended.acknowledged
        replica.check_against_disk()
        count = replica.counts.get(verb, 0)
    else:
        count = len(list(recorded(record)))
    check_after(log, ended)
    return ended, count


def check_after(path: Path, ended: Ended) -> None:
    with EventLog.open(path, segment_size=1500) as log:
        assert log.report.damaged == () and log.last_lsn >= ended.acknowledged, log.report
        last = log.last_lsn
        assert [r.body for r in log.records()] == [body(n) for n in range(1, last + 1)]
        log.append("event", body(last + 1))
        log.commit()
    with EventLog.open(path) as log:
        assert (log.report.clean, log.last_lsn) == (True, last + 1)


def check_error(ended: Ended, error: str) -> None:
    """The error reached the caller, who opened the log again and went on."""
    assert ended.after("ERROR ") == [error], ended
    assert ended.lines[-1] == "END" and ended.acknowledged > 6, ended


@pytest.mark.parametrize("verb", VERBS)
def test_a_call_that_fails_loses_nothing_acknowledged(
    tmp_path: Path, verb: str, rng: random.Random
) -> None:
    """A failed flush is not tried again on the same descriptor, nor believed on another one until
    all that it was to flush was written again: the replica would say so."""
    needed(no_strace())
    for when in sorted(rng.sample(range(1, 5), 2)) if verb != "mkdirat" else (1,):
        error = rng.choice(ERRORS.get(verb, ["EIO"]))
        ended, _ = inject(tmp_path, verb, f"error={error}", str(when))
        check_error(ended, error)


@pytest.mark.crash
@pytest.mark.parametrize(
    ("verb", "error"), [(verb, error) for verb in VERBS for error in ERRORS.get(verb, ["EIO"])]
)
def test_every_call_fails_once(tmp_path: Path, verb: str, error: str) -> None:
    needed(no_strace())
    _, count = inject(tmp_path, verb, "", "none")
    for when in range(1, count + 1):
        ended, _ = inject(tmp_path, verb, f"error={error}", str(when))
        check_error(ended, error)
    print(f"{verb} {error}: {count} calls")
    assert count >= (1 if verb == "mkdirat" else 4)


@pytest.mark.parametrize(
    "verb", [pytest.param(v, marks=[pytest.mark.crash] * (v != "fdatasync")) for v in VERBS]
)
def test_a_device_that_fails_for_good(tmp_path: Path, verb: str) -> None:
    """From some call on each one fails: nothing is acknowledged any more."""
    needed(no_strace())
    for when in (1, 2, 3, 4) if verb != "mkdirat" else (1,):
        ended, _ = inject(tmp_path, verb, "error=EIO", f"{when}+")
        assert set(ended.after("ERROR ")) == {"EIO"}, ended
        assert len(ended.after("ERROR ")) in (2, 3), ended


@pytest.mark.parametrize("verb", VERBS)
def test_a_process_killed_at_a_call_has_kept_what_it_acknowledged(
    tmp_path: Path, verb: str, rng: random.Random
) -> None:
    needed(no_strace())
    when = rng.randrange(1, 5) if verb != "mkdirat" else 1
    ended, _ = inject(tmp_path, verb, "signal=KILL", str(when))
    assert ended.code == KILLED


@pytest.mark.crash
@pytest.mark.parametrize("verb", VERBS)
def test_a_process_killed_at_every_call_has_kept_what_it_acknowledged(
    tmp_path: Path, verb: str
) -> None:
    needed(no_strace())
    _, count = inject(tmp_path, verb, "", "none")
    for when in range(1, count + 1):
        ended, _ = inject(tmp_path, verb, "signal=KILL", str(when))
        assert ended.code == KILLED
    print(f"{verb}: killed at {count} calls")
