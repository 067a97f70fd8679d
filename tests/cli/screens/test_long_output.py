"""What a terminal gets, and a pipe does not: a pager, progress, a table drawn again and again."""

from __future__ import annotations

import re
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer import Exit

import recovery.cli.progress as working_module
from recovery.cli.pager import paged
from recovery.cli.progress import working
from recovery.cli.tables import Column, show_table
from tests.cli.harness import RUNS, SGR, Processes, call

PAGER = f"{sys.executable} pager.py"  # says how it was called, and passes the text on


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("long") / "runs"
    shutil.copytree(RUNS, path)
    (path / "pager.py").write_text("import sys\nprint('PAGED')\nprint(sys.stdin.read(), end='')\n")
    (path / "leaves.py").write_text("import sys\nsys.stdin.readline()\n")
    return path


@pytest.fixture(scope="module")
def processes(store: Path) -> Iterator[Processes]:
    with Processes(store) as started:
        yield started


def test_what_exceeds_the_screen_goes_to_the_pager_whole(store: Path, processes: Processes) -> None:
    done = processes.on_terminal("logdump", "dump", "finished", env={"PAGER": PAGER})
    plain = processes.on_terminal("logdump", "dump", "finished")
    assert done.code == 0 and done.shown == f"PAGED\n{plain.shown}"
    assert SGR.findall(done.shown)  # it has colours, as without a pager


@pytest.mark.parametrize(
    ("words", "env", "size"),
    [
        (["dump", "finished"], {"PAGER": PAGER}, (200, 80)),  # it fits
        (["dump", "finished", "--no-pager"], {"PAGER": PAGER}, (24, 80)),
        (["dump", "finished"], {"PAGER": ""}, (24, 80)),
        (["dump", "finished"], {"PAGER": "no-such-pager -x"}, (24, 80)),
        (["dump", "finished"], {"PAGER": PAGER, "TERM": "dumb"}, (24, 80)),
        (["export", "finished"], {"PAGER": PAGER}, (24, 80)),  # for a file
    ],
)
def test_there_is_no_pager_without_need(
    words: list[str], env: dict[str, str], size: tuple[int, int], processes: Processes
) -> None:
    done = processes.on_terminal("logdump", *words, env=env, size=size)
    assert done.code == 0 and done.shown and "PAGED" not in done.shown


def test_in_a_pipe_there_is_no_pager(store: Path) -> None:
    done = call("logdump", "dump", "finished", cwd=store, env={"PAGER": PAGER})
    assert "PAGED" not in done.out and len(done.out.splitlines()) == 75


def test_a_pager_that_is_left_early_ends_the_command_quietly(processes: Processes) -> None:
    env = {"PAGER": f"{sys.executable} leaves.py"}
    done = processes.on_terminal("logdump", "dump", "finished", "--full", env=env)
    assert done.code in (0, 141) and "Traceback" not in done.shown


def test_output_that_was_kept_back_is_shown_when_the_command_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recovery.cli.pager._command", lambda: ["cat"])
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    with pytest.raises(Exit), paged():
        print("kept back")
        raise Exit(1)
    assert capsys.readouterr().out == "kept back\n"


# -- progress


def test_what_takes_over_a_second_shows_how_far_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(working_module, "PATIENCE_S", 0.0)
    monkeypatch.setattr(working_module, "REFRESH_S", 0.001)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    asked = threading.Event()

    def done() -> int:
        asked.set()
        return 3

    with working("checking [run]\x1b[2J", done, 4):
        assert asked.wait(30)
    out, err = capsys.readouterr()
    assert out == ""
    text = SGR.sub("", err)
    assert r"checking [run]\x1b[2J" in text and "75%" in text
    with working("quick"):
        pass
    with pytest.raises(KeyError), working("it fails"):
        raise KeyError


def test_in_a_pipe_nothing_is_shown_of_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(working_module, "PATIENCE_S", 0.0)
    with working("checking", lambda: pytest.fail("nobody looks"), 4):
        pass
    assert capsys.readouterr() == ("", "")


# -- tables, drawn once or again and again


def test_rows_are_plain_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    columns = [Column("RUN", folded=(8, None)), Column("STEP", right=True), Column("STATE")]
    show_table(
        columns, [[("京都", ""), ("7", ""), ("", "")], [("b\x1b", ""), ("12", ""), ("x", "")]]
    )
    assert capsys.readouterr().out == "RUN    STEP  STATE\n京都      7\nb\\x1b    12  x\n"


def test_runs_are_watched_until_ctrl_c(processes: Processes) -> None:
    done = processes.on_terminal(
        "recovery", "runs", "--watch", "--store", ".", keys=b"\x03", size=(30, 120)
    )
    assert done.code == 130 and "Traceback" not in done.shown
    first, _, last = done.shown.partition("\x1b[?1049h")  # its own screen, which it leaves
    assert first == "" and last.count("\x1b[?1049l") == 1
    assert "24 runs at" in last and "crashed_in_doubt" in last and "Ctrl-C ends this" in last
    assert last.rindex("\x1b[?25h") > last.rindex("\x1b[?25l")  # the cursor is shown again


def test_what_does_not_fit_the_screen_is_counted(processes: Processes) -> None:
    done = processes.on_terminal(
        "recovery", "runs", "--watch", "--store", ".", keys=b"\x03", size=(12, 120)
    )
    assert re.search(r"and \d+ more", done.shown)


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_watching_needs_a_terminal(words: tuple[str, ...], store: Path) -> None:
    done = call("recovery", "runs", "--watch", "--store", ".", *words, cwd=store)
    assert done.code == 64 and done.out == "" and "--watch draws on a terminal" in done.err
