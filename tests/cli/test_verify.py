"""logdump verify: stores, runs, segments, inboxes, and what it says of each problem."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import logdump.verify.verify
import pytest

from eventlog import EventLog
from recovery.control.send import signal
from recovery.stores.file import FileStore
from tests.cli.harness import GOLDEN, HERE, RUNS, Done, call
from tests.data.make_runs import KEY, KEY_ID


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return Path(shutil.copytree(RUNS, tmp_path / "runs"))


def verify(store: Path, *args: str, **env: str) -> Done:
    return call("logdump", "verify", *args, cwd=store, env=env)


def as_json(store: Path, *args: str, **env: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in verify(store, "--json", *args, **env).out.splitlines()]


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def test_a_store_is_a_line_for_each_run_its_problems_and_all_bits(store: Path) -> None:
    done = verify(store, ".")
    lines = done.out.splitlines()
    assert done.code == 1 | 2 | 4 | 8 | 32 and done.err == ""
    for path in store.iterdir():
        of_run = [line for line in lines if line.startswith(f"{path.name}: ")]
        assert ["record" in line and "segment" in line for line in of_run][-1]
        assert all(line.split(": ")[1] in ("DAMAGE", "torn", "note") for line in of_run[:-1])
    assert lines[-1] == "24 runs: problems in 9 of them (exit code 47)"
    assert "torn: torn tail. 66 records" in done.out
    (store / "not a run").mkdir()
    (store / "notes.txt").write_text("no run either")
    (store / "being_made").mkdir()
    assert verify(store, ".").out == done.out


def test_a_sound_store_is_said_to_be_sound(store: Path) -> None:
    for path in store.iterdir():
        if path.name not in ("finished", "parked"):
            shutil.rmtree(path)
    done = verify(store.parent, "runs")
    assert done.code == 0 and done.out.splitlines()[-1] == "2 runs: sound (exit code 0)"
    *rest, last = as_json(store.parent, "runs")
    assert last == {"type": "store", "runs": 2, "exit_code": 0}
    assert [one["log"] for one in rest if one["type"] == "totals"] == [
        "runs/finished/inbox",
        "runs/finished",
        "runs/parked/inbox",
        "runs/parked",
    ]


def test_in_a_store_what_cannot_be_read_does_not_stop_the_rest(store: Path) -> None:
    done = verify(store, ".", EVENTLOG_KEY="0" * 64)
    assert done.code == 77
    assert "encrypted: could not be checked: " in done.out and "\nwaiting: sound" in done.out
    done = verify(store, ".", EVENTLOG_KEY=f"{KEY_ID} {KEY.hex()}")
    assert done.code == 47 and "\nencrypted: sound. 58 records" in done.out
    (store / "aaa").mkdir()
    (store / "aaa" / "00000001.seg").symlink_to(store / "finished" / "00000001.seg")
    done = verify(store, ".")
    assert done.code == 47 and "not a regular file" in done.out and "\nwaiting: sound" in done.out


def test_a_problem_says_where_it_is_and_what_it_means(store: Path) -> None:
    lines = verify(store, "damaged_early").out.splitlines()
    assert lines[:3] == [
        "DAMAGE: segment 1, offset 3144: record fails its CRC: LSN 17 lost",
        "  damaged_early/00000001.seg: sound up to 3144, 72 bytes damaged, 1560 after them, next "
        "sound frame at 3216",
        "  harmless: recovery begins with the checkpoint of step 4 (LSN 44), which needs nothing "
        "of it (a fork to an earlier step, or an undo, may)",
    ]
    found, call_, totals = as_json(store, "damaged_early")[-3:]
    size = (store / "damaged_early" / "00000001.seg").stat().st_size
    assert found == {
        "type": "damage",
        "bit": 2,
        "segment": 1,
        "offset": 3144,
        "size": 72,
        "first_lsn": 17,
        "last_lsn": 17,
        "next_frame": 3216,
        "text": "record fails its CRC: LSN 17 lost",
        "log": "damaged_early",
        "file": "damaged_early/00000001.seg",
        "bytes_after": size - 3144 - 72,
        "consequence": lines[2].strip(),
        "calls": [],
    }
    assert (call_["type"], call_["name"], call_["state"]) == (
        "open_call",
        "send_mail#58",
        "in doubt",
    )
    assert (totals["type"], totals["log"], totals["exit_code"]) == ("totals", "damaged_early", 2)


def test_the_calls_that_become_in_doubt_are_named(store: Path) -> None:
    lines = verify(store, "damaged_payload").out.splitlines()
    assert lines[2] == (
        "  recovery stops there, until `logdump repair` marks it as lost: then tickets#49 becomes "
        "in doubt, as does any call of step 5 that may have been recorded there"
    )
    found = as_json(store, "damaged_payload")[1]
    assert found["calls"] == ["tickets#49"] and found["consequence"] == lines[2].strip()


def test_calls_without_an_outcome_are_named_and_do_not_change_the_exit_code(store: Path) -> None:
    done = verify(store, "crashed_in_doubt")
    assert done.code == 0
    assert done.out.splitlines()[0] == (
        "note: call send_mail#58 (step 6, in doubt) has no outcome: recovery parks the run until "
        "it is resolved"
    )
    assert "note" not in verify(store, "finished").out
    assert "note" not in verify(store, "cancelled").out  # it asked, and nobody will make it


def test_one_segment_alone(store: Path) -> None:
    done = verify(store, "finished/00000002.seg")
    assert (done.code, done.out) == (
        0,
        "finished/00000002.seg: sound. 24 records, LSN 26-49, of which 2 snapshots; 1 segment "
        "(exit code 0)\n",
    )
    flip(store / "finished" / "00000001.seg", 300)
    assert verify(store, "finished/00000002.seg").out == done.out  # that is in another one
    assert verify(store, "finished/00000001.seg").code == 2
    alone = store / "alone"
    alone.mkdir()
    shutil.copy(store / "finished" / "00000002.seg", alone)
    assert verify(store, "alone/00000002.seg").code == 0
    assert verify(store, "alone").code == 4  # as a run, it lacks the first one
    flip(alone / "00000002.seg", 900)
    assert verify(store, "alone/00000002.seg").code == 2
    assert [one["type"] for one in as_json(store, "alone/00000002.seg")] == ["damage", "totals"]


def test_segments_of_all_runs_are_sound_alone(store: Path) -> None:
    for path in sorted(store.glob("*/*.seg")):
        run = path.parent.name
        if not run.startswith("damaged") and run not in ("foreign", "unsupported"):
            done = verify(store, str(path.relative_to(store)))
            assert done.code == (run == "torn" and path.stem == "00000003"), done


def test_the_inbox_of_a_run_is_verified_with_it(store: Path) -> None:
    signal(FileStore(store), "sleeping", "answer", "and another one")
    assert verify(store, "sleeping").code == 0
    flip(store / "sleeping" / "inbox" / "00000001.seg", 130)
    done = verify(store, "sleeping")
    assert done.code == 2
    assert done.out.splitlines()[0].startswith("sleeping/inbox: DAMAGE: segment 1, offset 64: ")
    assert "the run stops when it reads its inbox" in done.out
    assert "\nsleeping/inbox: damaged record. " in done.out
    first, *_, last = as_json(store, "sleeping")
    assert (first["log"], first["type"]) == ("sleeping/inbox", "damage")
    assert (last["log"], last["exit_code"]) == ("sleeping", 2)
    shutil.rmtree(store / "sleeping" / "inbox")
    (store / "sleeping" / "inbox").mkdir()  # just being made
    assert verify(store, "sleeping").code == 0


def test_an_encrypted_run_without_its_key(store: Path) -> None:
    segment = store / "encrypted" / "00000002.seg"
    flip(segment, 300)
    (found,) = [one for one in as_json(store, "encrypted") if one["type"] == "damage"]
    assert found["consequence"] == ""  # nobody can tell
    (found, *_) = as_json(store, "encrypted", EVENTLOG_KEY=f"{KEY_ID} {KEY.hex()}")[1:]
    assert found["consequence"] != ""


def test_more_problems_than_are_kept(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for offset in (300, 800, 1200, 1700):
        flip(store / "finished" / "00000001.seg", offset)
    all_of_them = as_json(store, "finished")
    monkeypatch.setattr(logdump.verify.verify, "FINDINGS_MAX", 2)
    few = as_json(store, "finished")
    assert len(few) == len(all_of_them) >= 5
    said = [bool(one["consequence"]) for one in few if one["type"] == "damage"]
    assert said == [True, True] + [False] * (len(said) - 2)


def test_a_log_that_is_no_run_is_verified_as_ever(tmp_path: Path) -> None:
    with EventLog.open(tmp_path / "log") as log:
        for n in range(5):
            log.append("k", n)
    done = verify(tmp_path, "log")
    assert (done.code, done.out) == (
        0,
        "log: sound. 5 records, LSN 1-5, of which 0 snapshots; 1 segment (exit code 0)\n",
    )
    flip(tmp_path / "log" / "00000001.seg", 130)
    (found, _) = as_json(tmp_path, "log")
    assert found["consequence"] == "" and found["next_frame"] is not None


def test_the_page_shows_what_is_printed() -> None:
    page = (HERE.parents[1] / "docs" / "logdump.md").read_text()
    section = page.partition("## verify")[2].partition("\n## ")[0]
    shown = section.partition("```console\n$ ")[2].partition("```")[0]
    assert f"$ {shown}" in (GOLDEN / "logdump-verify.txt").read_text()
