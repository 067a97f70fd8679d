"""What damage means for a recovery, held against what a recovery does."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from logdump.verify.consequences import Consequences, InboxConsequences, Lost, is_run

from eventlog import EventLog, LogReader
from eventlog.dump import BAD_SNAPSHOT, DAMAGED, MISSING, TORN, Finding, dump, verify
from eventlog.files.memory import MemoryFile, MemoryFiles
from recovery.errors import DamagedRunError
from recovery.history.choose_checkpoint import Start
from recovery.history.load import load
from recovery.inspect.status import status_of
from tests.data.make_runs import RUNS

CHILD = "parent+look_around-95c44703cb9bfda7"


def files_of(run: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (RUNS / run).iterdir() if path.is_file()}


def reader_of(run: str, content: dict[str, bytes]) -> LogReader:
    files = MemoryFiles()
    files.directories[run] = {}
    for name, data in content.items():
        files.directories[run][name] = file = MemoryFile()
        file.content = bytearray(data)
    return EventLog.read(run, files=files)


def frames(run: str) -> list[tuple[str, int, int]]:
    """Each frame's file, offset and first LSN."""
    with EventLog.read(RUNS / run) as reader:
        return [
            (f"{item['segment']:08d}.seg", int(str(item["offset"])), int(str(item["lsn"])))
            for item in dump(reader)
        ]


def said_and_done(run: str, content: dict[str, bytes]) -> tuple[Start, list[str], int | None]:
    """Where recovery is said to begin, what the findings are said to mean; and the LSN of the
    checkpoint with which it really begins, None when it stops."""
    with reader_of(run, content) as reader:
        findings = list(verify(reader))
        assert findings, "nothing was found"
        meaning = Consequences(reader, findings)
        said = [meaning.of(finding) for finding in findings]
        try:
            history = load(reader, run)
        except DamagedRunError:
            return meaning.start, said, None
        return meaning.start, said, history.restored.lsn if history.restored else 0


def says_that_it_stops(said: list[str]) -> bool:
    return any("recovery stops" in text or "cannot be resumed" in text for text in said)


@pytest.mark.parametrize("run", ["finished", "parked", "forked", "resolved", CHILD, "parent"])
def test_what_is_said_of_each_record_that_may_be_damaged_is_what_recovery_does(run: str) -> None:
    sound = files_of(run)
    outcomes = set()
    for name, offset, lsn in frames(run):
        data = bytearray(sound[name])
        data[offset + 60] ^= 1
        start, said, really = said_and_done(run, {**sound, name: bytes(data)})
        stops = says_that_it_stops(said)
        assert stops == (really is None), (lsn, said)
        if really is not None:
            assert start.lsn == really, (lsn, said)
        outcomes.add(("stops" if stops else "goes on", start.lsn > 0))
    assert len(outcomes) > (run not in (CHILD, "parent"))  # which have no checkpoint


@pytest.mark.parametrize("run", ["finished", "resolved", "parked"])
def test_what_is_said_of_a_missing_segment_is_what_recovery_does(run: str) -> None:
    sound = files_of(run)
    for name in sorted(name for name in sound if name.endswith(".seg"))[:-1]:
        start, said, really = said_and_done(run, {n: d for n, d in sound.items() if n != name})
        assert says_that_it_stops(said) == (really is None), (name, said)
        assert really in (None, start.lsn)


def test_messages_that_a_checkpoint_refers_to_are_needed_by_it() -> None:
    """Their records are before it, and it restores them all the same."""
    start, said, really = said_and_done("finished", _flipped("finished", 6))
    assert (start.lsn, really) == (0, None) and "recovery stops there" in said[0]
    start, said, really = said_and_done("finished", _flipped("finished", 17))
    assert start.lsn == really == 61 and said[0].startswith("harmless: recovery begins with the ch")


def test_a_bad_snapshot_falls_back() -> None:
    start, said, really = said_and_done("finished", _flipped("finished", 61))
    assert (start.lsn, start.step, start.restored) == (44, 4, None) and really == 44
    assert said == [
        "recovery begins with the checkpoint of step 4 (LSN 44) instead; nothing is executed again"
    ]


def _flipped(run: str, wanted: int) -> dict[str, bytes]:
    content = files_of(run)
    for name, offset, lsn in frames(run):
        if lsn == wanted:
            data = bytearray(content[name])
            data[offset + 60] ^= 1
            content[name] = bytes(data)
    return content


def test_calls_whose_outcomes_are_lost_are_named() -> None:
    with EventLog.read(RUNS / "crashed_in_doubt") as reader:
        outcomes: dict[Any, Any] = {
            item["lsn"]: item["body"]["call"]  # type: ignore[index, call-overload]
            for item in dump(reader)
            if item["kind"] == "outcome" and int(str(item["lsn"])) > 44
        }
    assert sorted(outcomes) == [47, 52, 56]
    for lsn, call in outcomes.items():
        with reader_of("crashed_in_doubt", _flipped("crashed_in_doubt", int(str(lsn)))) as reader:
            (finding,) = verify(reader)
            calls = status_of(reader, "crashed_in_doubt").calls
            meaning = Consequences(reader, [finding], calls)
            (hit,) = meaning.calls_hit(finding)
            assert hit.lsn == call
            text = f"then {hit.name} becomes in doubt, as does any call of step"
            assert text in meaning.of(finding)


def test_the_steps_are_named_of_which_calls_may_be_lost() -> None:
    for lsn, wanted in ((46, "of step 5 "), (52, "of step 5 "), (56, "of steps 5 to 6 ")):
        with reader_of("crashed_in_doubt", _flipped("crashed_in_doubt", lsn)) as reader:
            (finding,) = verify(reader)
            assert wanted in Consequences(reader, [finding]).of(finding), lsn


def test_many_calls_are_not_all_named() -> None:
    names = [f"call {n}" for n in range(12)]
    calls = [SimpleNamespace(lsn=n + 1, name=name) for n, name in enumerate(names)]
    finding = Finding(DAMAGED, 1, 64, 64, 20, 29, "")
    with EventLog.read(RUNS / "parent") as reader:
        meaning = Consequences(reader, [finding], calls)  # type: ignore[arg-type]
    assert f"{', '.join(names[:10])} and 2 more become in doubt" in meaning.of(finding)


def test_what_loses_nothing_is_harmless() -> None:
    with EventLog.read(RUNS / "torn") as reader:
        (torn,) = verify(reader)
        assert torn.bit == TORN
        meaning = Consequences(reader, [torn])
    assert meaning.of(torn) == "harmless: torn tail, 50 bytes never acknowledged"
    assert meaning.of(Finding(DAMAGED, 1, 0, 64, 1, 0, "")) == "harmless: no record is lost"
    assert meaning.of(Finding(MISSING, 1, 0, 64, 1, 0, "")) == ""
    assert meaning.of(Finding(0, 1, 0, 64, 1, 0, "")) == ""
    assert meaning.of(Finding(32, 1, 0, 64, 1, 0, "")).startswith("nothing of it")


def test_loss_in_an_inbox_stops_the_run() -> None:
    of_inbox = InboxConsequences().of
    assert "the run stops" in of_inbox(Finding(DAMAGED, 1, 64, 64, 1, 1, ""))
    assert of_inbox(Finding(TORN, 1, 64, 9, 1, 0, "")).startswith("harmless")
    assert of_inbox(Finding(BAD_SNAPSHOT, 1, 64, 64, 2, 2, "")).startswith("the run stops")


def test_ranges_that_touch_are_one() -> None:
    lost = Lost([(9, 9), (1, 3), (4, 5), (2, 2), (8, 7)])
    assert lost.ranges == [(1, 5), (9, 9)]
    assert [lsn for lsn in range(12) if lsn in lost] == [1, 2, 3, 4, 5, 9]


def test_a_log_that_is_no_run_is_none(tmp_path: Path) -> None:
    with EventLog.open(tmp_path / "log") as log:
        log.append("k", 1)
    for path, wanted in (
        (tmp_path / "log", False),
        (RUNS / "finished", True),
        (RUNS / "encrypted", False),
        (RUNS / "foreign", False),
    ):
        with EventLog.read(path) as reader:
            assert is_run(reader) is wanted
