"""Standard streams that are closed or full, as cron or a shell may leave them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.harness import RUNS, environment

MODULES = {"logdump": "logdump.__main__", "recovery": "recovery.cli"}
ENTRIES = {"logdump": "logdump", "recovery": "recovery.cli"}  # of [project.scripts]


def run(command: str, redirections: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a shell, in the directory of the golden runs."""
    tool, _, words = command.partition(" ")
    path = os.pathsep.join(str(Path(part).absolute()) for part in sys.path if part)
    env = environment(PYTHONPATH=path, EVENTLOG_HOME=str(RUNS), **more)
    return subprocess.run(
        ["sh", "-c", f"exec {sys.executable} -m {MODULES[tool]} {words} {redirections}"],
        cwd=RUNS,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("logdump verify damaged_payload", 2),
        ("recovery show finished", 0),
        ("recovery show nowhere", 66),
    ],
)
def test_a_command_with_closed_streams_does_what_it_would(command: str, code: int) -> None:
    """Its exit code says what it found; nothing goes anywhere else."""
    for closed in (">&-", ">&- 2>&- <&-"):
        done = run(command, closed)
        assert (done.returncode, done.stdout) == (code, ""), done
        assert "Traceback" not in done.stderr


def test_no_file_that_is_opened_becomes_a_standard_stream() -> None:
    """Else what a library prints would go into it."""
    script = (
        "import os\nfrom recovery.cli.streams import open_closed\nopen_closed()\n"
        "fd = os.open('/', os.O_RDONLY)\nassert fd > 2, fd\n"
        "print('out'); import sys; print('err', file=sys.stderr); assert sys.stdin.read() == ''\n"
    )
    path = os.pathsep.join(str(Path(part).absolute()) for part in sys.path if part)
    for closed in ("<&-", ">&-", "2>&-", "<&- >&- 2>&-"):
        done = subprocess.run(
            ["sh", "-c", f'exec {sys.executable} -c "$0" {closed}', script],
            env=environment(PYTHONPATH=path),
            input="",
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (closed, done)


def test_who_asks_without_standard_input_is_told_so() -> None:
    done = run("recovery cancel parked", "<&-")
    assert done.returncode == 64, done
    assert "There is no terminal to ask at" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize(
    ("command", "code", "unbuffered"),
    [
        ("logdump finished", 74, ""),
        ("logdump export finished", 74, "1"),
        ("recovery --help", 74, ""),
        ("recovery show finished --json", 74, "1"),
    ],
)
def test_output_that_cannot_be_written_is_not_blamed_on_the_log(
    command: str, code: int, unbuffered: str
) -> None:
    done = run(command, ">/dev/full", PYTHONUNBUFFERED=unbuffered)
    said = f"{command.partition(' ')[0]}: standard output: No space left on device\n"
    assert (done.returncode, done.stderr) == (code, said)


@pytest.mark.parametrize("tool", ["logdump", "recovery"])
def test_ctrl_c_while_a_command_is_being_loaded_ends_it_quietly(tool: str) -> None:
    """What the installed command calls; the first import of what it needs meets a SIGINT."""
    script = (
        "import sys, signal\n"
        "class Meets:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name in ('logdump.app', 'recovery.cli.app'):\n"
        "            signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Meets())\n"
        f"from {ENTRIES[tool]} import main\n"
        "sys.exit(main())\n"
    )
    path = os.pathsep.join(str(Path(part).absolute()) for part in sys.path if part)
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment(PYTHONPATH=path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
