"""logdump export and import, as processes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from eventlog import EventLog
from eventlog.encryption import Encryption
from eventlog.transfer import export
from recovery.stores.protocol import INBOX
from tests.integration.test_logdump import COMMAND, ENVIRONMENT, NASTY, flip, run, segment

KEY = bytes(range(32))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return written(tmp_path / "run")


def written(path: Path, encryption: Encryption | None = None) -> Path:
    with EventLog.open(path, segment_size=2000, encryption=encryption) as log:
        for i in range(20):
            log.append("tool_result", {"call": i, "text": NASTY})
        log.append_batch([(f"kind{NASTY}", b"\x1b[0m"), ("nan", float("nan"))])
        log.append_snapshot({"state": "x" * 300, NASTY: NASTY})
    with EventLog.open(path / INBOX, encryption=encryption) as log:
        log.append("signal", {"name": "go"})
    return path


def contents(log: Path) -> dict[Path, tuple[bytes, int]]:
    found = (path for path in log.rglob("*") if path.is_file())
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in found}


def test_there_and_back_is_the_same(log: Path, tmp_path: Path) -> None:
    before = contents(log)
    first = run("export", log)
    assert (first.returncode, first.stderr) == (0, b"")
    assert contents(log) == before
    assert [json.loads(line)["type"] for line in first.stdout.splitlines()].count("log") == 2
    assert not any(c < 32 or c > 126 for c in first.stdout.replace(b"\n", b""))
    (tmp_path / "run.jsonl").write_bytes(first.stdout)
    done = run("import", tmp_path / "run.jsonl", tmp_path / "new")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode().endswith("new: 24 records\n")
    assert run("export", tmp_path / "new").stdout == first.stdout
    assert run("verify", tmp_path / "new").returncode == 0
    assert run("verify", tmp_path / "new" / INBOX).returncode == 0


def test_from_a_pipe(log: Path, tmp_path: Path) -> None:
    lines = run("export", log).stdout
    done = subprocess.run(
        [*COMMAND, "import", "-", tmp_path / "new"],
        input=lines,
        env=ENVIRONMENT,
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert run("export", tmp_path / "new").stdout == lines


def test_damage_is_said_in_the_export_beside_it_and_by_the_exit_code(
    log: Path, tmp_path: Path
) -> None:
    flip(segment(log), 200)
    done = run("export", log)
    assert done.returncode == run("verify", log).returncode == 2
    assert done.stderr == b"logdump: 1 problem: damaged record; `logdump verify` says more\n"
    [lost] = [o for o in map(json.loads, done.stdout.splitlines()) if o["type"] == "lost"]
    assert lost["first_lsn"] == lost["last_lsn"] == 2
    (tmp_path / "run.jsonl").write_bytes(done.stdout)
    refused = run("import", tmp_path / "run.jsonl", tmp_path / "new")
    assert refused.returncode == 32 and b"line 4 of the export: the log had lost" in refused.stderr
    assert not (tmp_path / "new").exists()
    done = run("import", "--lost", tmp_path / "run.jsonl", tmp_path / "new")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.endswith(b"new: 25 records, of which 1 stand for lost records\n")
    assert run("verify", tmp_path / "new").returncode == 0


def test_encrypted_logs_need_their_key_and_new_ones_may_have_one(tmp_path: Path) -> None:
    log = written(tmp_path / "run", Encryption(KEY, "2026-11"))
    keys = tmp_path / "keys"
    keys.write_text(f"2026-05 {'0' * 64}\n2026-11 {KEY.hex()}\n")
    keys.chmod(0o600)
    refused = run("export", log)
    assert refused.returncode == 77 and b"encrypted" in refused.stderr
    done = run("export", "--key-file", keys, log)
    assert (done.returncode, done.stderr) == (
        0,
        b"logdump: the log is encrypted, but this export is not\n",
    )
    (tmp_path / "run.jsonl").write_bytes(done.stdout)
    options = ("import", "--key-file", keys, tmp_path / "run.jsonl", tmp_path / "new")
    refused = run(*options, "--key-id", "2026-12")
    assert refused.returncode == 64 and b"no key '2026-12'" in refused.stderr
    assert run(*options, "--key-id", "2026-05").returncode == 0
    assert run("export", tmp_path / "new").returncode == 77
    assert run("export", "--key-file", keys, tmp_path / "new").stdout == done.stdout
    assert all(b"2026-05" in p.read_bytes() for p in (tmp_path / "new").glob("*.seg"))
    assert not any(b"tool_result" in p.read_bytes() for p in (tmp_path / "new").glob("*.seg"))


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["export", "{log}", "--redact", "*"], 64, "no such option: --redact"),
        (["export", "{tmp}/nothing"], 66, "No such file"),
        (["export", "{tmp}"], 32, "There are logs in it: run"),
        (["import", "{tmp}/nothing", "{tmp}/new"], 66, "No such file"),
        (["import", "{tmp}", "{tmp}/new"], 74, "Is a directory"),
        (["import", "{tmp}/bad", "{tmp}/new"], 32, "line 1 of the export: this is no line"),
        (["import", "{tmp}/good", "{log}"], 32, "holds"),
        (["import", "{tmp}/good"], 64, "missing argument 'PATH'"),
        (["import", "{tmp}/good", "{tmp}/new", "--key-id", "a b"], 64, "without spaces"),
        (["import", "{tmp}/good", "{tmp}/new", "--key-id", "a"], 64, "--key-file"),
    ],
)
def test_a_users_mistake_is_answered_in_a_line(
    log: Path, tmp_path: Path, args: list[str], code: int, said: str
) -> None:
    with EventLog.read(log) as reader:
        (tmp_path / "good").write_text("\n".join(export(reader)) + "\n")
    (tmp_path / "bad").write_text(NASTY)
    done = run(*(arg.format(log=log, tmp=tmp_path) for arg in args))
    lines = done.stderr.decode().splitlines()
    assert done.returncode == code and said in lines[-1], done.stderr
    assert len([line for line in lines if "usage:" not in line and line[:1] != " "]) == 1
    assert done.stdout == b"" and not (tmp_path / "new").exists()
    assert b"\x1b" not in done.stderr and not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("command", ["export", "import"])
def test_help_has_examples_and_fits_80_columns(command: str) -> None:
    done = run(command, "--help", COLUMNS="80")
    assert done.returncode == 0 and b"examples:" in done.stdout
    assert max(map(len, done.stdout.decode().splitlines())) <= 80
