"""``logdump timeline`` as a command; and its page in a real Chromium, where there is one."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import LOGS
from tests.cli.harness import RUNS, Processes, call, raw
from tests.cli.screens import timelines
from tests.cli.screens.chromium import BINARY, Page, page

UNREADABLE = {"encrypted": 77, "unsupported": 32}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return Path(shutil.copytree(RUNS, tmp_path / "runs"))


def model_in(text: str) -> Any:
    (data,) = re.findall(r'<script type="application/json" id="model">(.*?)</script>', text)
    return json.loads(data)


# -- the command


@pytest.mark.parametrize("run", LOGS)
def test_any_log_gives_a_page_or_a_line_that_says_why_not(run: str, store: Path) -> None:
    done = call("logdump", "timeline", run, cwd=store)
    assert done.code == UNREADABLE.get(run, 0), done.err
    assert len(done.err.splitlines()) == (run in UNREADABLE) and raw(done.err) == []
    assert run in UNREADABLE or model_in(done.out)["run"]["run_id"]


def test_it_says_in_a_line_what_it_wrote_and_for_whose_eyes(store: Path, tmp_path: Path) -> None:
    out = tmp_path / "run.html"
    done = call("logdump", "timeline", "crashed_in_doubt", "-o", str(out), cwd=store)
    assert (done.code, done.err) == (0, "")
    assert re.fullmatch(r".*run\.html: 58 records, 14 calls, 1 in doubt\n", done.out)
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert out.read_text("ascii") == call("logdump", "timeline", "crashed_in_doubt", cwd=store).out


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("nowhere",), 66, "nowhere"),
        (("finished", "--last", "-1"), 64, "--last"),
        (("finished", "--value-bytes", "many"), 64, "--value-bytes"),
        (("finished", "-o", "no/such/directory.html"), 66, "no/such"),
        (("finished", "--redact"), 64, "--redact"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(
    words: tuple[str, ...], code: int, text: str, store: Path
) -> None:
    done = call("logdump", "timeline", *words, cwd=store)
    assert (done.code, done.out) == (code, "")
    assert text in done.err and "Traceback" not in done.err


def test_what_is_there_stays_until_a_page_is_whole(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, link, pipe = (tmp_path / name for name in ("run.html", "link.html", "pipe"))
    out.write_text("before")
    out.chmod(0o644)
    link.symlink_to(out)
    os.mkfifo(pipe)

    def page(model: Any) -> Iterator[str]:
        yield "x" * 100_000
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr("logdump.timeline.timeline.page", page)
        done = call("logdump", "timeline", "finished", "-o", str(link), cwd=store)
    assert done.code == 74
    assert done.err.startswith(f"logdump: {link}: No space left on device. The disk is full.")
    assert (out.read_text(), sorted(tmp_path.iterdir())) == (
        "before",
        sorted([link, out, pipe, store]),
    )
    monkeypatch.setattr("logdump.timeline.timeline.page", lambda model: iter(["new"]))
    with os.fdopen(os.open(pipe, os.O_RDWR)) as reader:  # no file that another takes the place of
        for target in (link, pipe):
            assert call("logdump", "timeline", "finished", "-o", str(target), cwd=store).code == 0
        assert reader.read(3) == out.read_text() == "new"
    assert link.is_symlink() and pipe.is_fifo() and stat.S_IMODE(out.stat().st_mode) == 0o600


def test_on_a_terminal_it_asks_where_to_write(store: Path) -> None:
    with Processes(store) as processes:
        shown = processes.on_terminal("logdump", "timeline", "finished")
        closed = processes.in_closed_pipe("logdump", "timeline", "finished")
    assert shown.code == 64 and "-o FILE" in shown.shown and "<html" not in shown.shown
    assert (closed.code, closed.err) == (141, "")


def test_what_a_repair_marked_as_lost_is_damage_at_the_time_when_it_was_lost(store: Path) -> None:
    before = model_in(call("logdump", "timeline", "missing_segment", cwd=store).out)
    assert call("logdump", "repair", "--apply", "missing_segment", cwd=store).code == 0
    after = model_in(call("logdump", "timeline", "missing_segment", cwd=store).out)
    (found,) = after["damage"]
    assert found["lost"] == before["damage"][0]["lost"] == [26, 49]
    assert (found["before"], found["i"]) == (24, 49)
    assert after["lsns"] == [[0, 1]] and after["setBack"] == []
    assert after["lives"][0] == before["lives"][0] == {"n": 0, "from": 1, "to": 25, "end": "lost"}
    assert sum(after["pauses"][:50]) == sum(before["pauses"][:26])


def test_ten_thousand_records_make_a_file_that_can_be_sent(tmp_path: Path) -> None:
    timelines.long(tmp_path / "long")
    done = call("logdump", "timeline", "long", cwd=tmp_path)
    model = model_in(done.out)
    assert model["run"]["records"] >= 10_000 and len(done.out) < 4_000_000


# -- the page

needs_chromium = pytest.mark.skipif(
    BINARY is None, reason="no chromium or google-chrome here to look at the page with"
)
Opened = Callable[..., Page]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages of the runs that are made for them, and of some golden ones."""
    folder = tmp_path_factory.mktemp("timelines")
    timelines.main(str(folder))
    for name in ("damaged_payload", "missing_segment", "foreign"):
        shutil.copytree(RUNS / name, folder / name)
    for path in list(folder.iterdir()):
        done = call("logdump", "timeline", path.name, "-o", f"{path.name}.html", cwd=folder)
        assert done.code == 0, done.err
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Page]:
    assert BINARY is not None
    with page(BINARY) as opened:
        yield opened


@pytest.fixture
def opened(browser: Page, written: Path) -> Iterator[Opened]:
    """Opens a page; in the end nothing has gone wrong in it, and it has asked nobody anything."""

    def of(name: str, anchor: str = "", width: int = 1280, height: int = 800) -> Page:
        browser.complaints.clear()
        browser.requests.clear()
        browser.size(width, height)
        browser.call("Page.navigate", url="about:blank")
        browser.open(written / f"{name}.html", anchor)
        return browser

    yield of
    assert browser.complaints == []
    assert {url.partition("#")[0] for url in browser.requests} <= {
        "about:blank",
        *(path.as_uri() for path in written.glob("*.html")),
    }


def panel(browser: Page) -> str:
    return str(browser.run("$('panel').innerText"))


@needs_chromium
@pytest.mark.parametrize(
    "name", ["day", "long", "hostile", "damaged_payload", "missing_segment", "foreign"]
)
@pytest.mark.parametrize("size", [(1280, 800), (390, 844)])
def test_it_fits_into_the_window(name: str, size: tuple[int, int], opened: Opened) -> None:
    shown = opened(name, width=size[0], height=size[1])
    assert shown.run("document.documentElement.scrollWidth") == size[0]


@needs_chromium
def test_nothing_in_a_run_is_executed(opened: Opened) -> None:
    shown = opened("hostile")
    title = shown.run("document.title")
    shown.run("for (const item of items) { select(item); reveal(item); hover(400, 200); }")
    shown.run(
        "for (const n of [0, 1, 2]) { openTab(n); list.blocks.forEach((_, i) => list.fill(i)); }"
    )
    shown.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    shown.run("$('query').value = 'onerror'; search()")
    shown.settle()
    assert shown.run("document.title") == title != "owned"
    assert shown.run("document.querySelectorAll('img, svg, iframe, object').length") == 0
    assert shown.run("document.scripts.length") == 2
    assert shown.run("state.matches.length") > 10
    assert "onerror=" in panel(shown)


@needs_chromium
def test_the_policy_stops_what_gets_in_all_the_same(opened: Opened) -> None:
    shown = opened("day")
    shown.run(
        "document.body.insertAdjacentHTML('beforeend', '<img src=x:y onerror=\"window.owned=1\">')"
    )
    shown.run(
        "document.body.append(Object.assign(document.createElement('script'), "
        "{textContent: 'window.owned = 2'}))"
    )
    shown.settle()
    assert shown.run("window.owned ?? null") is None
    assert any("Content Security Policy" in text for text in shown.complaints)
    shown.complaints.clear()
    shown.requests.clear()


@needs_chromium
def test_a_call_in_doubt_is_named_at_once_drawn_in_red_and_explained(opened: Opened) -> None:
    shown = opened("day")
    alert = shown.run("document.querySelector('#alerts .alert').innerText")
    assert "In doubt: charge_card" in alert and "idempotency key" in alert
    x, y = shown.run("[xOf(place(doubtful[0].from)) + 20, yOf(doubtful[0].call.lane) + 5]")
    red = shown.run(f"[...pen.getImageData({x}, {y}, 1, 1).data]")
    assert red[0] > 150 > 60 > max(red[1:3])
    top = shown.run("gantt.getBoundingClientRect().y")
    shown.click(x, top + y)
    text = panel(shown)
    assert "charge_card" in text and "A recovery parks the run until it is resolved" in text
    key = shown.run("doubtful[0].call.key")
    assert f"recovery resolve day {key[:16]} --outcome JSON" in text
    assert (
        "cus_881" in text and shown.run("location.hash") == f"#lsn={shown.run('doubtful[0].lsn')}"
    )


@needs_chromium
def test_search_finds_in_all_that_is_recorded_and_goes_from_match_to_match(opened: Opened) -> None:
    shown = opened("day")
    shown.press("/")
    shown.write("otter")
    count = shown.run("$('count').textContent")
    assert re.fullmatch(r"\d+ matches", count) and shown.run("state.matches.length") > 3
    kinds = set(shown.run("state.matches.map((item) => item.type)"))
    assert kinds >= {"call", "message"}
    shown.press("Enter")
    assert shown.run("$('count').textContent").startswith("1 of ")
    assert shown.run("document.querySelector('#panel mark').textContent").lower() == "otter"
    first = shown.run("state.selected.lsn")
    shown.run("$('query').blur()")
    shown.press("n")
    assert shown.run("state.selected === state.matches[1]")
    shown.press("p")
    assert shown.run("state.selected.lsn") == first
    shown.press("Escape")
    assert shown.run("[state.selected, state.matches.length]") == [None, 0]


@needs_chromium
def test_a_link_opens_the_page_at_a_record(opened: Opened) -> None:
    shown = opened("long", "#lsn=8000")
    assert abs(shown.run("state.selected.lsn") - 8000) < 4
    assert shown.run("state.from <= place(8000) && place(8000) <= state.to")


@needs_chromium
def test_keys_zoom_and_go_from_call_to_call(opened: Opened) -> None:
    shown = opened("day")
    wide = "state.to - state.from"
    before = shown.run(wide)
    shown.press("+")
    assert shown.run(wide) < before * 0.7
    shown.press("0")
    assert shown.run(wide) == pytest.approx(before)
    for _ in range(2):
        shown.press("ArrowRight")
    assert shown.run("state.selected === calls[1]")
    shown.press("ArrowDown")
    assert shown.run("state.selected.call.lane") == 1
    shown.press("t")
    assert shown.run("[state.byTime, $('by-record').ariaChecked]") == [False, "true"]


@needs_chromium
def test_the_mouse_zooms_moves_and_says_what_is_under_it(opened: Opened) -> None:
    shown = opened("day")
    top = shown.run("gantt.getBoundingClientRect().y")
    middle = "(state.from + state.to) / 2"
    at = shown.run("axisAt(640)")
    shown.mouse("mouseWheel", 640, top + 120, deltaX=0, deltaY=-600)
    shown.settle()
    assert shown.run("state.to - state.from") < shown.run("extent()") * 0.7
    assert shown.run("axisAt(640)") == pytest.approx(at)
    before = shown.run(middle)
    shown.mouse("mousePressed", 640, top + 150, button="left")
    shown.mouse("mouseMoved", 540, top + 150, button="left", buttons=1)
    shown.mouse("mouseReleased", 540, top + 150, button="left")
    shown.settle()
    assert shown.run(middle) > before and shown.run("state.selected") is None
    shown.press("0")
    x, y = shown.run("[xOf(place(calls[0].from)) + 9, yOf(0) + 9]")
    shown.mouse("mouseMoved", x, top + y)
    shown.settle()
    assert shown.run("$('tip').textContent").startswith("ask_model")


@needs_chromium
def test_a_selected_message_is_unfolded_and_leads_to_its_call(opened: Opened) -> None:
    shown = opened("day")
    shown.run("document.querySelectorAll('#list summary')[4].click()")
    shown.settle()
    assert "what ask_model returned" in shown.run("$('list').innerText")
    shown.run("document.querySelector('#panel .link').click()")
    assert shown.run("state.selected.call.tool") == "ask_model"


@needs_chromium
def test_filters_show_what_went_wrong(opened: Opened) -> None:
    shown = opened("day")
    shown.run("$('errors').click()")
    assert shown.run("list.rows.map((item) => item.call.tool)") == [
        "search",
        "fetch",
        "index_report",
    ]
    shown.run("$('errors').click(); $('doubt').click()")
    assert shown.run("list.rows.map((item) => item.call.tool)") == ["charge_card"]


@needs_chromium
def test_processes_are_told_with_where_they_ended(opened: Opened) -> None:
    shown = opened("day")
    first, second, third = shown.run("lives.map((item) => ending(item.life))")
    assert re.fullmatch(r"parked after LSN \d+", first)
    assert re.fullmatch(r"process died after LSN \d+, 2 calls cut short", second)
    assert re.fullmatch(r"process died after LSN \d+, 1 call cut short", third)
    shown.run("go(lives[2])")
    assert "3 d 4 h" in panel(shown) and second in panel(shown)
    # Three days are drawn no wider than the rest of the run.
    assert shown.run("(xOf(place(lives[2].from)) - xOf(place(lives[1].end))) / width") < 0.2


@needs_chromium
def test_damage_is_loud_and_leads_to_what_is_lost(opened: Opened) -> None:
    shown = opened("damaged_payload")
    assert "LSN 52 lost" in shown.run("$('alerts').innerText")
    shown.run("document.querySelector('#alerts .alert').click()")
    assert "records lost" in panel(shown)


@needs_chromium
def test_ten_thousand_records_are_made_into_rows_when_they_come_near(opened: Opened) -> None:
    shown = opened("long")
    assert shown.run("calls.length") > 3000
    assert shown.run("document.getElementsByTagName('*').length") < 3000
    shown.run("openTab(1); go(calls.at(-1))")
    shown.settle()
    assert shown.run("rowsOf(calls.at(-1)).length") == 1
    assert shown.run("document.getElementsByTagName('*').length") < 6000


@needs_chromium
def test_text_has_the_contrast_that_reading_needs(opened: Opened) -> None:
    shown = opened("day", "#lsn=8")
    for dark in (False, True):
        shown.size(1280, 800, dark=dark)
        assert shown.run(CONTRAST) == []


# WCAG AA: 4.5 for text. Pairs of what is written and what it is written on.
CONTRAST = """(() => {
  const style = getComputedStyle(document.documentElement);
  const light = (name) => {
    const hex = style.getPropertyValue(`--${name}`).trim();
    const parts = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16) / 255)
      .map((one) => (one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4));
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  };
  const pairs = [["ink", "paper"], ["ink", "raised"], ["ink", "sunk"], ["ink", "wait"],
    ["ink", "band"], ["soft", "paper"], ["soft", "raised"], ["soft", "sunk"], ["soft", "band"],
    ["accent", "raised"], ["red-ink", "red-paper"], ["red", "paper"], ["red", "band"],
    ["paper", "red"], ["hit-ink", "hit"], ["amber", "band"], ["green", "band"],
    ...[0, 1, 2, 3, 4, 5].map((n) => ["on-tool", `t${n}`])];
  return pairs.map(([text, on]) => {
    const [low, high] = [light(text), light(on)].sort((a, b) => a - b);
    return [text, on, (high + 0.05) / (low + 0.05)];
  }).filter((one) => one[2] < 4.5);
})()"""
