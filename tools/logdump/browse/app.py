"""Draws the screens of ``logdump browse``. Text from a log is shown as Text, never as markup."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar

from rich.text import Text
from textual import on, work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, VerticalScroll
from textual.message import Message
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Footer, Input, OptionList, Static
from textual.worker import Worker, get_current_worker

from eventlog import LogReader
from logdump.browse.log import ERRORS, KEYS, PAGE, Item, Line, Log
from recovery.cli.exit_codes import INTERRUPTED
from recovery.cli.status_view import STYLES
from recovery.inspect.status import status_of
from recovery.text import cut, printable
from recovery.values.render import Redaction

FOLLOWED_S = 0.3  # between looks at a log that is followed
NAME_WIDTH = 22
PROGRESS_EVERY = 1000  # records between two progress messages of a search

Open = Callable[[str], LogReader]
Search = Callable[[Log], Iterator[tuple[int, Item | None]]]


class Records(Widget, can_focus=True):
    """Lines around the cursor."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown,space", "page(1)", show=False),
    ]

    class Moved(Message):
        """The cursor has moved."""

    source: Log | None = None
    _row = 0  # of the cursor, among the lines of the screen

    def show(self, source: Log, at: int, item: Item | None = None) -> None:
        """Show a log, at this LSN or this item."""
        self.source = source
        self._row = self._height // 3
        self._read(at, item)
        self.action_move(0)

    def _read(self, at: int, item: Item | None = None) -> None:
        assert self.source is not None
        self._heading, self._lines = self.source.around(at, max(1, self.size.width))
        there = [i for i, line in enumerate(self._lines) if line.at <= at <= line.end]
        there += [i for i, line in enumerate(self._lines) if item and line.is_of(at, item)]
        self._index = there[-1] if there else len(self._lines) - 1

    @property
    def line(self) -> Line:
        """The item at the cursor."""
        return self._lines[self._index]

    @property
    def _height(self) -> int:
        return max(1, self.size.height - 1)  # below the heading

    def action_move(self, by: int) -> None:
        """Move so many lines on, or back."""
        if self.source is None:
            return
        self._index = max(0, min(self._index + by, len(self._lines) - 1))
        behind = len(self._lines) - 1 - self._index
        if (self._index < self._height and self._lines[0].at > self.source.first) or (
            behind < self._height and len(self._lines) == PAGE
        ):
            self._read(self.line.at, self.line.finding)
            behind = len(self._lines) - 1 - self._index
        row = max(self._row + by, self._height - 1 - behind)  # fills the screen where possible
        self._row = max(0, min(row, self._index, self._height - 1))
        self.refresh()
        self.post_message(self.Moved())

    def action_page(self, by: int) -> None:
        """Move a screen on, or back."""
        self.action_move(by * max(1, self._height - 1))

    def on_resize(self) -> None:
        if self.source is not None:
            self.show(self.source, self.line.at, self.line.finding)

    def render(self) -> Text:
        if self.source is None:
            return Text("")
        row = min(self._row, self._height - 1)
        top = self._index - row
        shown = self._lines[top : top + self._height]
        lines = [Text.from_ansi(text) for text in (self._heading, *(line.text for line in shown))]
        for line in lines:
            line.truncate(self.size.width, pad=True)
        lines[1 + row].stylize("reverse" if self.has_focus else "underline")
        return Text("\n", no_wrap=True).join(lines)


def _run(name: str, state: str = "") -> Text:
    return Text.assemble(cut(printable(name), NAME_WIDTH), "\n  ", (state, STYLES.get(state, "")))


class Help(ModalScreen[None]):
    """The keys."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark,enter", "dismiss", show=False)
    ]

    def compose(self) -> ComposeResult:
        yield Static(f"{KEYS}\n\nEscape closes this.", markup=False, id="help")


class Browser(App[None]):
    """The runs of these names; ``opens`` gives a reader of one."""

    ENABLE_COMMAND_PALETTE = False
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (150, "-wide")]  # noqa: RUF012 - as Textual has it
    CSS = """
    #runs, #value { scrollbar-size-vertical: 1; padding: 0; height: 100%; }
    #runs { width: 25; border: none; border-right: solid $primary; }
    #runs > .option-list--option-highlighted { text-style: bold reverse; }
    #log { height: 100%; layout: horizontal; }
    #records { width: 2fr; height: 100%; }
    #value { width: 1fr; border-left: solid $primary; padding: 0 1; }
    #value:focus { border-left: heavy $accent; }
    .-narrow #log { layout: vertical; }
    .-narrow #records { width: 100%; height: 3fr; }
    .-narrow #value { width: 100%; height: 2fr; border: none; border-top: solid $primary; }
    .-narrow #value:focus { border-top: heavy $accent; }
    #main { layout: horizontal; height: 1fr; }
    #said, #ask { height: 1; text-style: bold; border: none; padding: 0; }
    Help { align: center middle; }
    #help { width: auto; height: auto; border: heavy $primary; padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "ask('/')", "search"),
        Binding("n", "problem(1)", "next problem"),
        Binding("p", "problem(-1)", "previous"),
        Binding("g", "ends(0)", show=False),
        Binding("G", "ends(1)", show=False),
        Binding("colon", "ask(':')", "to LSN"),
        Binding("f", "follow", "follow"),
        Binding("question_mark", "help", "keys"),
        Binding("enter", "focus('value')", show=False),
        Binding("escape", "stop", show=False),
        Binding("q", "quit", "quit"),
        Binding("ctrl+c", "interrupt", show=False, priority=True),
    ]

    def __init__(self, names: list[str], opens: Open, redaction: Redaction) -> None:
        super().__init__(ansi_color=True)
        self.theme = "ansi-dark"
        self._names, self._opens, self._redaction = names, opens, redaction
        self._run_id = ""
        self._following = False
        self._search: Worker[None] | None = None
        self._asked, self._sought = "", ""

    def compose(self) -> ComposeResult:
        with Container(id="main"):
            yield OptionList(*map(_run, self._names), id="runs")
            with Container(id="log"):
                yield Records(id="records")
                with VerticalScroll(id="value", can_focus=True):
                    yield Static("", markup=False, id="text")
        yield Static("", markup=False, id="said")
        yield Input(id="ask", select_on_focus=True)
        yield Footer()

    def on_mount(self) -> None:
        self.runs, self.ask = self.query_one("#runs", OptionList), self.query_one("#ask", Input)
        self.records = self.query_one(Records)
        self._asking(False)
        self.runs.display = len(self._names) > 1
        self.set_interval(FOLLOWED_S, self.look)
        self.call_after_refresh(self._begin)
        self._show_states()

    # -- what is shown

    def _begin(self) -> None:
        self._open(self._names[0])
        if self.runs.display:
            self.runs.focus()

    def _open(self, name: str) -> None:
        self.action_stop()
        self._run_id, self._following = name, False
        try:
            log = Log(self._opens(name), name, self._redaction)
        except ERRORS as exc:
            self.say(str(exc))
            return
        before = self.records.source
        self.records.show(log, log.last)
        if before is not None:
            before.reader.close()
        self.records.focus()

    @on(Records.Moved)
    def _show_value(self) -> None:
        log = self.records.source
        assert log is not None
        try:
            lines = list(log.value(self.records.line))
        except ERRORS as exc:
            lines = [printable(str(exc))]
        self.query_one("#text", Static).update(Text("\n".join(lines)))
        self.query_one("#value").scroll_home(animate=False)
        following = ", following" if self._following else ""
        self.say(f"{self._run_id}: LSN {self.records.line.at} of {log.last}{following}")

    def say(self, text: str) -> None:
        """Show a message in a line."""
        self.query_one("#said", Static).update(Text(printable(text), no_wrap=True))

    @work(thread=True, group="states")
    def _show_states(self) -> None:
        for i, name in enumerate(self._names):
            if get_current_worker().is_cancelled:
                return
            try:
                with self._opens(name) as reader:
                    state = str(status_of(reader, name).state)
            except ERRORS:
                state = "unreadable"
            line = _run(name, state)
            self.call_from_thread(self.runs.replace_option_prompt_at_index, i, line)

    @on(OptionList.OptionSelected)
    def _chosen(self, event: OptionList.OptionSelected) -> None:
        self._open(self._names[event.option_index])

    # -- going somewhere

    def action_ends(self, which: int) -> None:
        log = self.records.source
        if log is not None:
            log.look()
            self.records.show(log, log.last if which else log.first)

    def action_ask(self, what: str) -> None:
        self._asked = what
        self._asking(True)
        self.ask.value = self._sought if what == "/" else ""
        self.ask.placeholder = {"/": "search for", ":": "go to LSN"}[what]
        self.ask.focus()

    @on(Input.Submitted)
    def _answered(self, event: Input.Submitted) -> None:
        self._asking(False)
        self.records.focus()
        text, log = event.value, self.records.source
        if log is None or not text.strip():
            return
        if self._asked == ":":
            if text.strip().isdecimal() and len(text) < 20:
                self.records.show(log, max(log.first, min(int(text), log.last)))
            else:
                self.say(f"{text} is no LSN: a number from {log.first} to {log.last}")
            return
        self._sought, line = text, self.records.line
        self._search = self._find(
            self._run_id, f"{text!r}", lambda log: log.ahead(line, log.has(text))
        )

    def action_problem(self, which: int) -> None:
        if self.records.source is None:
            return
        line, ahead = self.records.line, which > 0
        self._search = self._find(
            self._run_id,
            "a problem",
            lambda log: (
                log.ahead(line, log.is_problem()) if ahead else log.back(line, log.is_problem())
            ),
        )

    def action_stop(self) -> None:
        if self.ask.display:
            self._asking(False)
        elif self._search is not None and self._search.is_running:
            self._search.cancel()
            self.say("stopped searching")
        self.records.focus()

    def action_interrupt(self) -> None:
        self.exit(return_code=INTERRUPTED)

    def action_help(self) -> None:
        self.push_screen(Help())

    def _asking(self, asking: bool) -> None:
        """Replaces the message line, so that nothing else moves."""
        self.ask.display, self.query_one("#said").display = asking, not asking

    @work(thread=True, exclusive=True, group="search")
    def _find(self, name: str, what: str, search: Search) -> None:
        worker = get_current_worker()

        def tell(text: str, at: int = 0, item: Item | None = None) -> None:
            if not worker.is_cancelled and item is not None and self.records.source is not None:
                self.records.show(self.records.source, at, item)
            elif not worker.is_cancelled:
                self.say(text)

        self.call_from_thread(tell, f"searching for {what}; Escape stops")
        try:
            with self._opens(name) as reader:
                for i, (at, item) in enumerate(search(Log(reader, name, self._redaction))):
                    if item is not None or i % PROGRESS_EVERY == PROGRESS_EVERY - 1:
                        text = f"searching for {what}: LSN {at}; Escape stops"
                        self.call_from_thread(tell, text, at, item)
                    if item is not None or worker.is_cancelled:
                        return
            said = f"{what} is not there, that way"
        except ERRORS as exc:
            said = str(exc)
        self.call_from_thread(tell, said)

    def action_follow(self) -> None:
        """Move to the end, and follow it."""
        self._following = not self._following
        self.action_ends(1)

    def look(self) -> None:
        """Show new records, when the log is followed."""
        log = self.records.source
        if self._following and log is not None:
            last = log.last
            log.look()
            if log.last != last:
                self.records.show(log, log.last)
