"""The command logdump: in a pipe, on a terminal, interrupted, misused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import msgpack
import pytest
from logdump import main

from eventlog import EventLog, Packed
from eventlog.encryption import Encryption
from tests.cli.harness import call

ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, "-W", "error", "-m", "logdump")
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tools'}"}
ENVIRONMENT.pop("PYTHONUNBUFFERED", None)  # with which a closed pipe is another case
ENVIRONMENT["PAGER"] = ""
ENVIRONMENT.pop("COLUMNS", None)  # which pytest sets for its workers

NASTY = "\x1b[31mred\x1b]0;title\x07\x9b\x7f\r\n\u202e\u2028"


def run(*args: str | Path, **more: str) -> subprocess.CompletedProcess[bytes]:
    """Call the command in this process; with ``more`` in the environment, as a process."""
    if more:
        return subprocess.run(
            [*COMMAND, *args], capture_output=True, env=ENVIRONMENT | more, check=False, timeout=60
        )
    done = call("logdump", *map(str, args), cwd=Path.cwd(), env={"COLUMNS": ""})
    return subprocess.CompletedProcess(args, done.code, done.out.encode(), done.err.encode())


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    with EventLog.open(path, segment_size=2000) as log:
        for i in range(20):
            log.append("tool_result", {"call": i, "text": NASTY})
        log.append(f"kind{NASTY}", b"\x1b[0m")
        log.append_snapshot({"state": "x" * 300, NASTY: NASTY})
        log.append("ext", Packed(msgpack.packb([msgpack.ExtType(99, b"\x1b[0m"), {1: 2.5}])))
    return path


def segment(path: Path, number: int = 1) -> Path:
    return path / f"{number:08d}.seg"


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def files(path: Path) -> dict[str, tuple[bytes, int, int]]:
    return {p.name: (p.read_bytes(), p.stat().st_mtime_ns, p.stat().st_ino) for p in path.iterdir()}


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_nothing_from_a_log_reaches_the_terminal_raw(log: Path, options: tuple[str, ...]) -> None:
    done = run("dump", log, *options)
    assert not [c for c in done.stdout.decode() if not c.isprintable() and c != "\n"]


def test_nothing_raw_from_damaged_logs_and_paths(tmp_path: Path) -> None:
    path = tmp_path / f"a{NASTY.replace('/', '')}"
    with EventLog.open(path) as log:
        log.append("k", 1)
    flip(segment(path), 130)
    for done in (run("verify", path), run("dump", path), run("dump", f"{path}x")):
        text = (done.stdout + done.stderr).decode()
        assert text and not [c for c in text if not c.isprintable() and c != "\n"]


def test_reading_changes_nothing(log: Path) -> None:
    flip(segment(log, 2), 200)
    before = files(log)
    run("dump", log)
    run("verify", log)
    assert files(log) == before


def test_live_log_can_be_read(tmp_path: Path) -> None:
    with EventLog.open(tmp_path / "run") as log:
        log.append("k", 1)
        log.commit()
        done = run("verify", tmp_path / "run")
        assert done.returncode == 0, done.stdout
        log.append("k", 2)


def test_verify_says_what_is_wrong_and_where(log: Path) -> None:
    assert run("verify", log).returncode == 0
    flip(segment(log, 2), 200)
    done = run("verify", log)
    assert done.returncode == 2
    assert b"DAMAGE: segment 2, offset" in done.stdout and b"lost" in done.stdout
    segment(log, 1).unlink()
    assert run("verify", log).returncode == 6
    done = run("verify", log, "--json")
    *findings, totals = [json.loads(line) for line in done.stdout.splitlines()]
    assert {f["bit"] for f in findings} == {2, 4}
    assert totals["type"] == "totals" and totals["exit_code"] == done.returncode == 6


def test_torn_tail_is_bit_1_for_verify_and_no_failure_for_dump(tmp_path: Path) -> None:
    log = EventLog.open(tmp_path / "run")
    log.append("k", 1)
    log.commit()
    with segment(tmp_path / "run").open("r+b") as file:
        file.seek(log._appender._writer.end)  # type: ignore[union-attr]
        file.write(b"half a frame")
    assert run("verify", tmp_path / "run").returncode == 1
    assert run("dump", tmp_path / "run").returncode == 0
    log._appender.fail(OSError("as if the process had died"))
    log.close()


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["verify", "{tmp}/nothing"], 66, "No such file"),
        (["dump", "{tmp}/nothing"], 66, "No such file"),
        (["dump", "{tmp}"], 32, "is not a log: it has no segments. There are logs in it: run"),
        (["dump", "{tmp}/run/00000001.seg"], 32, "is a file"),
        (["verify", "{tmp}/run/LOCK"], 64, "is a file, and no segment"),
        (["verify"], 64, "PATH"),
        (["vrfy", "x"], 64, "Did you mean 'verify'?"),
        ([], 64, "COMMAND"),
    ],
)
def test_users_mistake_is_answered_in_a_line(
    log: Path, tmp_path: Path, args: list[str], code: int, says: str
) -> None:
    done = run(*(arg.format(tmp=tmp_path) for arg in args))
    assert done.returncode == code
    assert says in done.stderr.decode() and b"Traceback" not in done.stderr
    assert done.stdout == b""


def test_foreign_directory_is_json_when_asked(tmp_path: Path) -> None:
    done = run("verify", "--json", tmp_path)
    assert done.returncode == 32
    assert json.loads(done.stdout.splitlines()[0])["bit"] == 32


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_log_of_somebody_else_is_an_error_in_a_line(log: Path) -> None:
    segment(log).chmod(0)
    done = run("verify", log)
    assert done.returncode == 74 and b"Permission denied" in done.stderr


def test_link_inside_a_log_is_refused(log: Path, tmp_path: Path) -> None:
    segment(log).rename(tmp_path / "elsewhere")
    segment(log).symlink_to(tmp_path / "elsewhere")
    done = run("verify", log)
    assert done.returncode == 32 and b"not a regular file" in done.stdout


@pytest.mark.parametrize("command", ["dump", "verify"])
def test_pipe_that_is_closed_before_the_end_is_noticed(log: Path, command: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [*COMMAND, command, log],
        stdout=writing,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
        check=False,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_letters_that_the_output_has_not_are_escaped(tmp_path: Path) -> None:
    with EventLog.open(tmp_path / "run") as log:
        log.append("k", "漢字")
    done = run("dump", tmp_path / "run", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.returncode == 0 and b"\\u6f22\\u5b57" in done.stdout


def test_main_returns_its_exit_code(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(log)]) == 0
    assert "sound. 23 records, LSN 1-23" in capsys.readouterr().out
    assert main(["verify", str(log / "no")]) == 66


# -- encrypted logs

KEY = bytes(range(32))


@pytest.fixture
def encrypted(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    with EventLog.open(path, encryption=Encryption(KEY, "2026-11")) as log:
        log.append("tool_result", "otters")
        log.append_batch([("part", 1), ("part", 2)])
        log.append_snapshot("otters")
    return path


def key_file(tmp_path: Path, content: str | bytes) -> Path:
    path = tmp_path / "keys"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    path.chmod(0o600)
    return path


def test_an_encrypted_log_is_shown_as_far_as_it_can_be_seen(encrypted: Path) -> None:
    before = files(encrypted)
    done = run("dump", encrypted)
    assert done.returncode == 0
    lines = done.stdout.decode().splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["1", "2", "3", "4"]
    assert all(line.endswith("encrypted under the key 2026-11") for line in lines[1:])
    done = run("dump", "--json", encrypted)
    assert done.returncode == 0 and b"otters" not in done.stdout
    assert [json.loads(line)["encrypted"] for line in done.stdout.splitlines()] == ["2026-11"] * 4
    done = run("verify", encrypted)
    assert (
        done.returncode == 0 and b"sound; 4 records encrypted, and not looked into" in done.stdout
    )
    flip(segment(encrypted), 150)
    assert run("verify", encrypted).returncode == 2
    assert run("verify", encrypted, EVENTLOG_KEY=KEY.hex()).returncode == 2
    flip(segment(encrypted), 150)
    assert {name: seen[0] for name, seen in files(encrypted).items()} == {
        name: seen[0] for name, seen in before.items()
    }


def test_with_the_key_all_is_shown(encrypted: Path, tmp_path: Path) -> None:
    keys = key_file(tmp_path, f"# keys\n2026-05 {'0' * 64}\n2026-11 {KEY.hex()}\n")
    for options, environment in (
        (("--key-file", str(keys)), {}),
        ((), {"EVENTLOG_KEY_FILE": str(keys)}),
        ((), {"EVENTLOG_KEY": KEY.hex()}),
        (("--key-file", str(keys)), {"EVENTLOG_KEY": "0" * 64}),
        ((), {"EVENTLOG_KEY": f"2026-11 {KEY.hex()}", "EVENTLOG_KEY_FILE": "nowhere"}),
    ):
        done = run("dump", *options, encrypted, **environment)
        assert done.returncode == 0 and b"tool_result" in done.stdout, done
        assert done.stdout.count(b'"otters"') == 2
        done = run("verify", *options, encrypted, **environment)
        assert done.returncode == 0 and b"sound. 4 records" in done.stdout


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644, 0o602])
def test_a_key_file_that_every_user_can_read_is_refused(
    encrypted: Path, tmp_path: Path, mode: int
) -> None:
    keys = key_file(tmp_path, f"2026-11 {KEY.hex()}\n")
    keys.chmod(mode)
    done = run("verify", "--key-file", str(keys), encrypted)
    if mode & 0o007:
        assert done.returncode == 77 and b"every user can read or change it" in done.stderr
        assert KEY.hex().encode() not in done.stdout + done.stderr
    else:
        assert done.returncode == 0 and done.stderr == b""


def test_with_a_key_logs_in_clear_are_shown_as_well(log: Path) -> None:
    done = run("verify", log, EVENTLOG_KEY=KEY.hex())
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("0" * 64, b"the key that was given is another"),
        (f"2026-05 {KEY.hex()}", b"no key was given for that id"),
        ("otters", b"line 1 is no key"),
        (f"a b {KEY.hex()}", b"line 1 is no key"),
        (b"\xff\xfe\x00", b"not text"),
        ("", b"there is no key in it"),
    ],
)
def test_a_wrong_key_has_an_exit_code_of_its_own(
    encrypted: Path, tmp_path: Path, content: str | bytes, text: bytes
) -> None:
    for command in ("dump", "verify"):
        done = run(command, "--key-file", key_file(tmp_path, content), encrypted)
        assert done.returncode == 77 and text in done.stderr, done
        assert b"Traceback" not in done.stderr and KEY.hex()[:8].encode() not in done.stderr


def test_a_key_file_that_is_not_there_is_said(encrypted: Path) -> None:
    done = run("dump", "--key-file", "nowhere", encrypted)
    assert done.returncode == 77
    assert done.stderr == b"logdump: no key was read from nowhere: No such file or directory\n"
