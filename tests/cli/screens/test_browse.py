"""``logdump browse``: its keys, on the golden runs and on worse ones; and on a real terminal."""

from __future__ import annotations

import asyncio
import html
import io
import itertools
import json
import re
import shutil
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from logdump.browse import app as browse_app_module
from logdump.browse import browse as browse_module
from logdump.browse import log as browse_log_module
from logdump.browse.app import Browser
from logdump.browse.log import Line, Log
from logdump.context import Context, UsageError
from textual.pilot import Pilot

from eventlog import EventLog
from recovery.journal.encoding import encode
from recovery.journal.events import CallFailed, CallIntended, CallReturned, RunStarted
from recovery.values.render import HIDDEN
from tests.cli.commands import KINDS
from tests.cli.harness import RUNS, Processes, call, raw

SIZE = (80, 24)
Script = Callable[["Pilot[None]", Browser], Awaitable[None]]


def browse(
    store: Path,
    *names: str,
    script: Script,
    size: tuple[int, int] = SIZE,
    redact: Sequence[str] = (),
    keys: Path | None = None,
) -> None:
    """Run the browser on these runs of a store, with somebody at the keyboard."""
    options = {"path": str(store), "redact": redact, "key_file": str(keys) if keys else None}
    context = Context(options, io.StringIO())

    async def run() -> None:
        app = Browser(list(names), lambda name: context.read(str(store / name)), context.redaction)
        async with app.run_test(size=size) as pilot:
            await settled(pilot, app)
            await script(pilot, app)

    asyncio.run(run())


async def settled(pilot: Pilot[None], app: Browser) -> None:
    await app.workers.wait_for_complete()
    await pilot.pause()


async def press(pilot: Pilot[None], app: Browser, *keys: str) -> None:
    await pilot.press(*keys)
    await settled(pilot, app)


def screen(app: Browser) -> str:
    """What is on the screen, as text."""
    svg = app.export_screenshot(simplify=True)
    lines: dict[float, str] = {}
    for y, text in re.findall(r'<text [^>]*y="([\d.]+)"[^>]*>([^<]*)</text>', svg):
        lines[float(y)] = lines.get(float(y), "") + html.unescape(text).replace("\xa0", " ")
    return "\n".join(text for _, text in sorted(lines.items()))


def at(line: Line) -> tuple[int, str]:
    """A line by what ``dump`` says of it: its LSN, or the problem."""
    return (0, line.finding.text) if line.finding is not None else (line.at, "")


def dumped(run: str, *options: str) -> list[tuple[int, str]]:
    """The same of what ``dump`` shows."""
    lines = call("logdump", "dump", "--json", *options, run, cwd=RUNS).out.splitlines()
    found = [json.loads(line) for line in lines]
    return [(one["lsn"], "") if "lsn" in one else (0, one["text"]) for one in found]


# -- what is there, and where one can go


@pytest.mark.parametrize("run", KINDS)
def test_every_line_of_a_log_is_passed_once_in_order(
    run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the next page has to be read, forward and back."""
    wanted = dumped(run)
    for module in (browse_log_module, browse_app_module):
        monkeypatch.setattr(module, "PAGE", 20)

    async def script(pilot: Pilot[None], app: Browser) -> None:
        await press(pilot, app, "g")
        passed = [at(app.records.line)]
        for step in (1, -1):
            for _ in wanted:
                app.records.action_move(step)
                passed += [at(app.records.line)] if at(app.records.line) != passed[-1] else []
        assert passed == wanted + wanted[-2::-1] or not wanted
        assert raw(screen(app)) == []

    browse(RUNS, run, script=script, size=(80, 12))


@pytest.mark.parametrize("run", ["crashed_in_doubt", "damaged_frame", "torn"])
def test_n_and_p_go_to_what_dump_calls_errors(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = dumped(run, "--errors")
    notes = {
        text for lsn, text in wanted if not lsn and "armless: the next commit writes it" in text
    }
    wanted = [one for one in wanted if one[1] not in notes]
    monkeypatch.setattr(browse_log_module, "STRETCH", 7)

    async def script(pilot: Pilot[None], app: Browser) -> None:
        await press(pilot, app, "g")
        for key, expected in (("n", wanted), ("p", wanted[-2::-1])):
            for one in expected:
                await press(pilot, app, key)
                assert at(app.records.line) == one
            await press(pilot, app, key)
            assert "a problem is not there, that way" in screen(app)
        assert wanted

    browse(RUNS, run, script=script)


def test_keys() -> None:
    async def script(pilot: Pilot[None], app: Browser) -> None:
        records = app.records

        async def goes(expected: int, *keys: str) -> None:
            await press(pilot, app, *keys)
            assert records.line.at == expected, keys

        assert records.line.at == 74 and app.focused is records
        await goes(1, "g")
        await goes(4, "down", "j", "down")
        await goes(2, "up", "k")
        await goes(74, "G")
        await goes(62, "pageup", "up")
        await goes(9, "colon", "9", "enter")
        await goes(9, "colon", "x", "enter")
        assert "x is no LSN: a number from 1 to 74" in screen(app)
        await goes(74, "colon", *"999", "enter")
        await goes(1, "colon", "0", "enter")
        await press(pilot, app, "enter")
        assert app.focused is app.query_one("#value")
        await press(pilot, app, "tab", "escape")
        assert app.focused is records
        await press(pilot, app, "question_mark")
        assert "the next or previous problem" in screen(app)
        await press(pilot, app, "escape", "q")
        assert not app.is_running and app.return_code == 0

    browse(RUNS, "finished", script=script)


def test_searching() -> None:
    async def script(pilot: Pilot[None], app: Browser) -> None:
        await press(pilot, app, "g", "slash", *"SEND_MAIL", "enter")
        first = app.records.line
        assert (first.kind, first.tool) == ("call", "send_mail") or "send_mail" in screen(app)
        await press(pilot, app, "slash", "enter")  # the same again
        assert app.records.line.at > first.at
        await press(pilot, app, "G", "slash", *"send_mail", "enter")
        assert "'send_mail' is not there, that way" in screen(app)
        await press(pilot, app, "slash", "escape")
        assert app.focused is app.records and not app.ask.display

    browse(RUNS, "finished", script=script)


def test_a_search_can_be_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that would never end; the screen lives meanwhile."""

    def endless(*_: Any) -> Iterator[tuple[int, None]]:
        for at in itertools.count():
            time.sleep(0.001)  # else it takes the processor from the screen
            yield at, None

    monkeypatch.setattr(Log, "ahead", endless)

    async def script(pilot: Pilot[None], app: Browser) -> None:
        await pilot.press("g", "n", "down")
        assert app.records.line.at == 2
        await press(pilot, app, "escape")
        assert "stopped searching" in screen(app)

    browse(RUNS, "finished", script=script)


def test_runs_are_on_the_left_with_their_states(tmp_path: Path) -> None:
    async def script(pilot: Pilot[None], app: Browser) -> None:
        shown = screen(app)
        assert "damaged_payload" in shown and "failed" in shown and "finished" in shown
        assert app.runs.has_focus
        await press(pilot, app, "down", "down", "enter")
        assert "finished: LSN 74 of 74" in screen(app) and app.records.has_focus
        shutil.rmtree(tmp_path / "failed")
        await press(pilot, app, "shift+tab", "up", "enter")
        assert "failed: LSN" not in screen(app)

    for name in ("damaged_payload", "failed", "finished"):
        shutil.copytree(RUNS / name, tmp_path / name)
    browse(tmp_path, "damaged_payload", "failed", "finished", script=script)

    async def alone(pilot: Pilot[None], app: Browser) -> None:
        assert app.focused is app.records

    browse(tmp_path, "finished", script=alone)


def test_a_log_is_followed(tmp_path: Path) -> None:
    with EventLog.open(tmp_path / "live", durability="process") as log:
        log.append("note", {"text": "one"})

        async def script(pilot: Pilot[None], app: Browser) -> None:
            await press(pilot, app, "f")
            assert "live: LSN 1 of 1, following" in screen(app)
            for i in range(2, 200):
                log.append("note", {"text": f"number {i}"})
            app.look()
            await settled(pilot, app)
            assert "number 199" in screen(app) and app.records.line.at == 199
            await press(pilot, app, "f")
            log.append("note", {"text": "unseen"})
            app.look()
            await settled(pilot, app)
            assert app.records.line.at == 199 and "unseen" not in screen(app)

        browse(tmp_path, "live", script=script)


# -- what may be shown, and how


NASTY = "[bold red]x[/] [/nope] \x1b[2J\x1b]0;t\x07\u202e\x9b2J\r\n[@click=app.quit]y[/]"


def test_what_is_in_a_log_is_neither_markup_nor_sent_raw(tmp_path: Path) -> None:
    with EventLog.open(tmp_path / "evil", durability="none") as log:
        log.append(*encode(RunStarted("evil", NASTY, "u" * 32)))
        intent = CallIntended("1", "[bold]t[/bold]", "", bytes(16), 1, "park", [[NASTY], {}], 3)
        lsn = log.append(*encode(intent))
        log.append(*encode(CallFailed(lsn, "[b]E[/b]", NASTY)))
        log.append("[i]kind[/i]", {NASTY: NASTY})

    async def script(pilot: Pilot[None], app: Browser) -> None:
        await press(pilot, app, "g")
        for _ in range(4):
            shown = screen(app)
            assert raw(shown) == []
            assert "[bold red]x[/] [/nope] \\x1b[2J" in shown.replace("\n", " ")
            assert "[@click=app.quit]y[/]" in shown
            await press(pilot, app, "down")
        assert "[bold]t[/bold]#2" in shown or "[i]kind[/i]" in shown
        await press(pilot, app, "slash", *"[/b]", "enter")
        assert "'[/b]' is not there" in screen(app)

    browse(tmp_path, "evil", script=script, size=(250, 50))


def test_what_is_redacted_is_on_no_screen(tmp_path: Path) -> None:
    with EventLog.open(tmp_path / "run", durability="none") as log:
        log.append(*encode(RunStarted("run", "a task", "u" * 32)))
        intent = CallIntended("1", "pay", "", bytes(16), 1, "park", [["4111"], {}], 3)
        lsn = log.append(*encode(intent))
        log.append(*encode(CallReturned(lsn, {"token": "sesame"})))

    async def script(pilot: Pilot[None], app: Browser) -> None:
        await press(pilot, app, "g")
        for _ in range(3):
            shown = screen(app)
            assert "4111" not in shown and "sesame" not in shown
            await press(pilot, app, "down")
        assert HIDDEN in shown
        await press(pilot, app, "g", "slash", *"sesame", "enter")
        assert "is not there" in screen(app) and app.records.line.at == 1

    for redact in ("pay", "*"):
        browse(tmp_path, "run", script=script, redact=(redact,))


@pytest.mark.parametrize("run", ["finished", "damaged_frame", "foreign"])
def test_any_log_at_any_size(run: str) -> None:
    sizes = [(200, 60), (20, 6)] if run in ("finished", "damaged_frame") else []

    async def script(pilot: Pilot[None], app: Browser) -> None:
        await press(pilot, app, "g", "n", "down")
        where = at(app.records.line)
        for size in (*sizes, (1, 1), SIZE):
            await pilot.resize_terminal(*size)
            await settled(pilot, app)
            assert at(app.records.line) == where
        assert raw(screen(app)) == []
        assert all(len(line) <= 80 for line in screen(app).splitlines())

    browse(RUNS, run, script=script, size=(150, 40))


def test_with_the_key_and_without(tmp_path: Path) -> None:
    right, wrong = tmp_path / "keys", tmp_path / "wrong"
    right.write_text(f"{bytes(range(64, 96)).hex()}\n")  # as tests/data/make_runs.py has it
    wrong.write_text(f"{'ab' * 32}\n")
    for file in (right, wrong):
        file.chmod(0o600)

    async def with_it(pilot: Pilot[None], app: Browser) -> None:
        assert "encrypted: LSN 58 of 58" in screen(app) and "send_mail" in screen(app)

    async def without(pilot: Pilot[None], app: Browser) -> None:
        assert "encrypted under the key" in screen(app)

    async def mistaken(pilot: Pilot[None], app: Browser) -> None:
        assert "this log cannot be read" in screen(app)

    browse(RUNS, "encrypted", script=without)
    browse(RUNS, "encrypted", script=with_it, keys=right)
    browse(RUNS, "encrypted", script=mistaken, keys=wrong)


def test_a_large_value_is_cut_and_a_larger_one_not_decoded(tmp_path: Path) -> None:
    with EventLog.open(tmp_path / "large", durability="none") as log:
        log.append("note", {"lines": "\n".join(f"l{i}" for i in range(5000))})
        log.append("note", {"text": "x" * (5 << 20)})

    async def script(pilot: Pilot[None], app: Browser) -> None:
        log = app.records.source
        assert log is not None
        assert list(log.value(app.records.line))[2:] == [
            "... `logdump dump --full --lsn 2` shows all of it"
        ]
        await press(pilot, app, "g")
        assert 2000 < len(list(log.value(app.records.line))) < 2010

    browse(tmp_path, "large", script=script)


# -- as a command


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    with Processes(RUNS) as started:
        yield started


MODES = re.compile(r"\x1b\[\?(\d+)([hl])")


@pytest.mark.parametrize(("keys", "code"), [(b"q", 0), (b"\x03", 130)])
def test_the_terminal_is_as_before(keys: bytes, code: int, processes: Processes) -> None:
    before = {path: path.stat().st_mtime_ns for path in RUNS.rglob("*")}
    done = processes.on_terminal("logdump", "browse", ".", keys=keys)
    assert done.code == code, done.shown
    modes: dict[str, str] = {}
    for mode, on in MODES.findall(done.shown):
        modes[mode] = on
    assert modes["1049"] == "l", "the other screen is left"
    assert modes.pop("25") == "h", "the cursor is shown again"
    assert set(modes.values()) <= {"l"} or modes == {**modes, "7": "h"}, modes
    assert "Traceback" not in done.shown
    assert {path: path.stat().st_mtime_ns for path in RUNS.rglob("*")} == before


def test_no_color_is_heeded(processes: Processes) -> None:
    def colours(**env: str) -> set[str]:
        done = processes.on_terminal("logdump", "browse", "finished", keys=b"q", env=env)
        found = {
            code
            for codes in re.findall(r"\x1b\[([\d;]*)m", done.shown)
            for code in codes.split(";")
        }
        return found - {"", *"0123479"} - {"39", "49"}  # the colours of the terminal

    assert colours()
    assert colours(NO_COLOR="1") == set()


def test_without_a_terminal_and_without_textual(monkeypatch: pytest.MonkeyPatch) -> None:
    done = call("logdump", "browse", "finished", cwd=RUNS)
    assert (done.code, done.out) == (64, "")
    assert done.err == "logdump: browse needs a terminal; `logdump dump` prints records anywhere\n"
    assert call("logdump", "browse", "nowhere", cwd=RUNS).code == 66
    assert call("logdump", "browse", "finished/LOCK", cwd=RUNS).code == 32

    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Screen())
    monkeypatch.setitem(sys.modules, "logdump.browse.app", None)
    options: dict[str, Any] = {"path": str(RUNS), "redact": None, "key_file": None}
    with pytest.raises(UsageError, match=r"pip install 'agent-eventlog\[browse\]'"):
        browse_module._run(Context(options, Screen()))


def test_a_store_without_runs_is_said(tmp_path: Path) -> None:
    done = call("logdump", "browse", str(tmp_path), cwd=RUNS)
    assert done.code == 64 and "no runs in it" in done.err
