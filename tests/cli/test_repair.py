"""logdump repair: says what it would do, does it when told to, and never without a backup."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from eventlog import EventLog
from eventlog.repair import REPAIRED
from tests.cli.harness import RUNS, Done, call
from tests.data.make_runs import KEY, KEY_ID


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return Path(shutil.copytree(RUNS, tmp_path / "runs"))


def logdump(store: Path, *args: str, **env: str) -> Done:
    return call("logdump", *args, cwd=store, env=env)


def files(path: Path) -> dict[str, bytes]:
    return {
        str(one.relative_to(path)): one.read_bytes()
        for one in path.rglob("*")
        if one.is_file() and one.name != "LOCK"
    }


def test_without_apply_nothing_is_changed(store: Path) -> None:
    before = files(store)
    done = logdump(store, "repair", "damaged_payload")
    assert done.code == 2 and "Nothing was changed. With --apply it is done." in done.out
    assert "tickets#49 becomes in doubt" in done.out
    assert "LSN 52 marked as lost" in done.out
    assert files(store) == before


@pytest.mark.parametrize("run", ["damaged_payload", "missing_segment", "damaged_header"])
def test_a_repaired_log_verifies_and_the_command_says_how_to_undo_it(store: Path, run: str) -> None:
    before = files(store / run)
    done = logdump(store, "repair", run, "--apply", "--who", "me", "--why", "bad disk")
    assert done.code == 0, done.err
    assert logdump(store, "verify", run).code == 0
    assert files(store / f"{run}.~1~") == before
    with EventLog.read(store / run) as reader:
        *_, last = reader.records()
    assert last.kind == REPAIRED and (last.body["who"], last.body["why"]) == ("me", "bad disk")
    assert logdump(store, "repair", run, "--apply").out == f"{run}: nothing to repair\n"
    undo = next(line for line in done.out.splitlines() if line.startswith("to undo: "))
    subprocess.run(["sh", "-c", undo.removeprefix("to undo: ")], check=True)
    assert files(store / run) == before


def test_a_backup_is_no_run_of_the_store(store: Path) -> None:
    runs = logdump(store, "verify", ".").out.splitlines()[-1]
    assert logdump(store, "repair", "damaged_payload", "--apply").code == 0
    assert runs.split(":")[0] == logdump(store, "verify", ".").out.splitlines()[-1].split(":")[0]


def test_the_inbox_is_in_the_backup_and_is_repaired_by_its_own_path(store: Path) -> None:
    segment = store / "finished" / "inbox" / "00000001.seg"
    content = bytearray(segment.read_bytes())
    content[100] ^= 1
    segment.write_bytes(content)
    done = logdump(store, "repair", "finished/inbox", "--apply")
    assert done.code == 0 and (store / "finished" / "inbox.~1~").is_dir()
    assert logdump(store, "verify", "finished").code == 0
    assert logdump(store, "repair", "finished").out == "finished: nothing to repair\n"


def test_a_live_log_is_refused(store: Path) -> None:
    with EventLog.open(store / "damaged_payload"):
        before = files(store)
        for more in ([], ["--apply"]):
            done = logdump(store, "repair", "damaged_payload", *more)
            assert done.code == 73 and "is held by process" in done.err and not done.out
            assert (
                "known to be stuck" in done.err and "takeover=True" not in done.err
            )  # no words of Python
        assert files(store) == before


def test_what_is_no_log_is_refused_and_not_touched(store: Path) -> None:
    before = files(store)
    for run in ("foreign", "unsupported"):
        done = logdump(store, "repair", run, "--apply")
        assert done.code == 32 and len(done.err.splitlines()) == 1
    shutil.copy(store / "finished" / "00000001.seg", store / "missing_segment" / "00000002.seg")
    done = logdump(store, "repair", "missing_segment", "--apply")
    assert done.code == 32 and "Move that file away" in done.err
    (store / "missing_segment" / "00000002.seg").rename(store / "missing_segment" / "99999999.seg")
    done = logdump(store, "repair", "missing_segment", "--apply")
    assert done.code == 32
    (store / "missing_segment" / "99999999.seg").write_bytes(bytes(5000))
    done = logdump(store, "repair", "missing_segment", "--apply")
    assert done.code == 32 and "wrong number" in done.err
    (store / "missing_segment" / "99999999.seg").unlink()
    (store / "missing_segment" / "00000002.seg").symlink_to("/dev/zero")
    done = logdump(store, "repair", "missing_segment", "--apply")
    assert done.code == 32 and "not a regular file" in done.err
    (store / "missing_segment" / "00000002.seg").unlink()
    assert files(store) == before


def test_an_encrypted_log_is_repaired_with_its_key_alone(store: Path) -> None:
    segment = max((store / "encrypted").glob("*.seg"))
    content = bytearray(segment.read_bytes())
    content[200] ^= 1
    segment.write_bytes(content)
    before = files(store)
    done = logdump(store, "repair", "encrypted")
    assert done.code == 2 and "With --apply and the key (--key-file) it is done." in done.out
    assert logdump(store, "repair", "encrypted", "--apply").code == 77
    assert logdump(store, "repair", "encrypted", "--apply", EVENTLOG_KEY="0" * 64).code == 77
    assert files(store) == before
    key = f"{KEY_ID} {KEY.hex()}"
    assert logdump(store, "repair", "encrypted", "--apply", EVENTLOG_KEY=key).code == 0
    assert logdump(store, "verify", "encrypted").code == 0
    assert logdump(store, "verify", "encrypted", EVENTLOG_KEY=key).code == 0
    lost = logdump(store, "dump", "encrypted", "--json", EVENTLOG_KEY=key).out
    assert '"kind": "lost"' in lost or '"kind":"lost"' in lost
    assert '"lost"' not in logdump(store, "dump", "encrypted", "--json").out, "in clear"


def test_json_has_all_of_it(store: Path) -> None:
    done = json.loads(logdump(store, "repair", "damaged_payload", "--json").out)
    assert (done["type"], done["needed"], done["applied"], done["undo"]) == (
        "repair",
        True,
        False,
        "",
    )
    assert done["lost"] == [[52, 52]] and done["findings"][0]["calls"] == ["tickets#49"]
    done = json.loads(logdump(store, "repair", "damaged_payload", "--json", "--apply").out)
    assert done["applied"] and done["undo"].startswith("mv ")
    done = json.loads(logdump(store, "repair", "damaged_payload", "--json").out)
    assert not done["needed"] and done["findings"] == [] and done["backup"] == ""
