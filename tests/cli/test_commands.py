"""What holds for every command that is registered, in either tool."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.commands import LOGS, MISSING, How, how, registered
from tests.cli.harness import (
    RUNS,
    SGR,
    Done,
    Processes,
    call,
    columns,
    environment,
    neutral,
    raw,
)

COMMANDS = registered()
DRIVEN = [command for command in COMMANDS if not how(command).elsewhere]
READING = [command for command in DRIVEN if not how(command).writes]
ABOUT_RUNS = [command for command in DRIVEN if not how(command).of_store]
SHOWN = ("finished", "damaged_frame")


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the golden runs, which reading commands leave as it is."""
    path = tmp_path_factory.mktemp("cli") / "runs"
    shutil.copytree(RUNS, path)
    return path


@pytest.fixture(scope="session")
def processes(store: Path) -> Iterator[Processes]:
    with Processes(store) as started:
        yield started


@pytest.fixture
def fresh(tmp_path: Path) -> Path:
    """A copy of the golden runs for one test."""
    return Path(shutil.copytree(RUNS, tmp_path / "runs"))


def contents(store: Path) -> dict[str, tuple[bytes, int, int]]:
    """All files, with the time of their last change and their inodes."""
    return {
        str(path.relative_to(store)): (
            path.read_bytes(),
            path.stat().st_mtime_ns,
            path.stat().st_ino,
        )
        for path in sorted(store.rglob("*"))
        if path.is_file()
    }


def args_of(command: str, run: str) -> tuple[How, str, list[str]]:
    """How to call it, the tool, and the words behind the tool's name."""
    tool, *words = command.split()
    return how(command), tool, [*words, *how(command).args(run)]


@pytest.mark.parametrize("command", ["logdump", "recovery", *COMMANDS])
def test_help_has_examples_and_fits_80_columns(command: str, store: Path) -> None:
    tool, *words = command.split()
    done = call(tool, *words, "--help", cwd=store)
    assert (done.code, done.err) == (0, ""), done.err
    assert raw(done.out) == []
    assert all(columns(line) <= 80 for line in done.out.splitlines()), done.out
    if words:
        assert "examples:" in done.out, done.out
    else:  # each command with its whole sentence
        assert not re.search(r"\w\.\.\.$", done.out, re.MULTILINE), done.out


@pytest.mark.parametrize("command", ABOUT_RUNS)
def test_a_run_that_is_not_there_is_said_in_a_line(command: str, store: Path) -> None:
    about, tool, args = args_of(command, MISSING)
    done = call(tool, *args, cwd=store)
    assert done.code == about.missing, done
    assert done.out == "" and MISSING in done.err, done
    (line,) = done.err.splitlines()
    assert line.startswith(tool) and raw(line) == []


@pytest.mark.parametrize("command", DRIVEN)
def test_wrong_options_are_said_without_a_traceback(command: str, store: Path) -> None:
    _, tool, args = args_of(command, "finished")
    done = call(tool, *args, "--no-such-option", cwd=store)
    assert done.code == 64, done
    assert "no-such-option" in done.err and "Traceback" not in done.err and done.out == ""


@pytest.mark.parametrize("command", ABOUT_RUNS)
def test_a_path_is_never_shown_raw(command: str, tmp_path: Path) -> None:
    name = "a\x1b[31m\x9b2J\u202eb\r\nc"
    shutil.copytree(RUNS / "finished", tmp_path / name)
    shutil.copytree(RUNS / "damaged_payload", tmp_path / f"{name}d")
    for run in (name, f"{name}d", f"{name}x"):
        tool, *words = command.split()
        args = [word.replace("{run}", run) for word in how(command).words.split()]
        done = call(tool, *words, *args, cwd=tmp_path)
        assert raw(done.out + done.err) == [], done
        assert "Traceback" not in done.err


@pytest.mark.parametrize("command", READING)
def test_any_log_is_read_without_a_word_too_much(command: str, store: Path) -> None:
    """No traceback and nothing raw; and reading has changed nothing."""
    before = contents(store)
    for run in LOGS[:1] if how(command).of_store else LOGS:
        _, tool, args = args_of(command, run)
        done = call(tool, *args, cwd=store)
        assert raw(done.out + done.err) == [] and "Traceback" not in done.err, done
        assert len(done.err.splitlines()) <= 1 and done.out + done.err, done
    assert contents(store) == before


@pytest.mark.parametrize("command", READING)
def test_on_a_terminal_lines_fit_80_columns(
    command: str, store: Path, processes: Processes
) -> None:
    for run in SHOWN[:1] if how(command).of_store else SHOWN:
        about, tool, args = args_of(command, run)
        shown = processes.on_terminal(tool, *args)
        assert shown.code == call(tool, *args, cwd=store).code, shown
        assert shown.shown and raw(shown.shown, live=about.live) == [], shown
        # A suggested command is whole, so that it can be pasted.
        wide = [line for line in shown.shown.splitlines() if columns(line) > 80]
        wide = [line for line in wide if not re.match(r"(next:?|more)? +(recovery|logdump) ", line)]
        assert wide == [] or about.wide, shown


@pytest.mark.parametrize("command", READING)
def test_no_color_is_heeded(command: str, processes: Processes) -> None:
    _, tool, args = args_of(command, "finished")
    shown = processes.on_terminal(tool, *args, env={"NO_COLOR": "1"}).shown
    colours = [found for found in SGR.findall(shown) if found not in BOLD_AND_THE_LIKE]
    assert shown and colours == []


# What NO_COLOR leaves: bold, dim, italic, underlined, and the end of those.
BOLD_AND_THE_LIKE = {f"\x1b[{code}m" for code in ("", "0", "1", "2", "3", "4", "1;3", "1;4")}


@pytest.mark.parametrize("command", READING)
def test_a_closed_pipe_ends_it_silently(command: str, processes: Processes) -> None:
    _, tool, args = args_of(command, "finished")
    done = processes.in_closed_pipe(tool, *args)
    assert (done.code, done.err) == (141, "")


@pytest.mark.parametrize("command", READING)
def test_ctrl_c_ends_it(command: str, processes: Processes) -> None:
    _, tool, args = args_of(command, "finished")
    done = processes.interrupted(tool, *args)
    assert done.code == 130, done
    assert done.err == ""


# -- the harness itself


def test_every_golden_run_is_a_log_or_said_to_be_none(store: Path) -> None:
    codes = {run: call("logdump", "verify", run, cwd=store).code for run in LOGS}
    wrong = {run: code for run, code in codes.items() if code}
    assert wrong == {
        "damaged_early": 2,
        "damaged_frame": 2,
        "damaged_header": 2,
        "damaged_payload": 2,
        "damaged_snapshot": 8,
        "foreign": 2,
        "missing_segment": 4,
        "torn": 1,
        "unsupported": 32,
    }


def test_what_is_raw_is_found() -> None:
    assert raw("a\n\x1b[31mb\x1b[0m") == []
    assert raw("\x1b[2J") == ["'\\x1b'"]
    assert raw("\u202e\r\x07") == ["'\\u202e'", "'\\r'", "'\\x07'"] or raw("\u202e\r\x07")
    assert raw("\x1b[2K\r") and raw("\x1b[2K\r", live=True) == []
    assert columns("漢\x1b[1mA") == 3


def test_what_differs_by_machine_is_replaced(store: Path) -> None:
    assert neutral(f"in {store}/x", store) == "in {store}/x"
    assert "COLUMNS" in environment() and environment(A="b")["A"] == "b"


def test_a_traceback_would_be_noticed(processes: Processes) -> None:
    """What the processes print and how they end does come back."""
    done = processes.on_terminal("logdump", "dump")
    assert done.code == 64 and "missing argument" in done.shown
    assert isinstance(done, Done)
