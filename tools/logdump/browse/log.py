"""Reads a log for ``logdump browse``: lines around a position, values, the next problem."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from eventlog import LogError, LogReader
from eventlog.format.frame import LSN_MAX
from eventlog.read.verify import Finding
from logdump.columns import Columns
from logdump.filter import Wanted
from logdump.lines import DECODED_SIZE_MAX, Values, shown_value
from logdump.rows import Narrator, Row, rows
from recovery import RecoveryError
from recovery.cli.times import when_ns, zone_name
from recovery.inspect.status import status_of
from recovery.text import cut, printable, size
from recovery.values.render import Redaction, pretty, short

PAGE = 400  # lines read at a time, half of them before the cursor
STRETCH = 2000  # records that are read at once when searching backward
SHOWN_LINES, SHOWN_COLUMNS = 2000, 2000  # of a value

Item = Row | Finding
Test = Callable[[Item], bool]
ERRORS = (LogError, RecoveryError, OSError, ValueError)

KEYS = """\
arrows, j k, PageUp PageDown from record to record
g  G  :                      the first record, the last one, one by its LSN
n  p                         the next or previous problem: damage, a failure,
                             a failed attempt, a call in doubt
/                            search forward in kinds, tools and values
f                            follow a live run
Enter                        from a run to its records, and to the value
Tab  Shift+Tab               from pane to pane
Escape                       stop searching; back to the records
?  q                         these keys; quit"""


@dataclass(frozen=True, slots=True)
class Line:
    """A record, or a problem between records, as a line.

    ``at``: its LSN, or its position among the LSNs; ``end``: the last LSN that it is about.
    ``about``: the text above its value. ``finding``: None for a record.
    """

    at: int
    end: int
    text: str
    about: str
    finding: Finding | None = None
    kind: str = ""
    tool: str = ""

    def is_of(self, at: int, item: Item) -> bool:
        """Whether it is the line of this item."""
        return self.at == at and self.finding == (item if isinstance(item, Finding) else None)


class Log:
    """Reads one log, in one thread."""

    def __init__(self, reader: LogReader, run_id: str, redaction: Redaction) -> None:
        self.reader, self.run_id, self._redaction = reader, run_id, redaction
        self._values = Values(redaction)
        self.is_run = Narrator(reader, run_id, 1).is_run
        self.look()

    def look(self) -> None:
        """Read where the log begins and ends now."""
        try:
            tail = self.reader.tail()
            self.first, self.last = max(1, tail.oldest_lsn), tail.next_lsn - 1
        except ERRORS:  # reported in place of the records
            self.first, self.last = 1, 0

    def items(self, first: int, last: int = LSN_MAX) -> Iterator[tuple[int, int, Item]]:
        """Records and problems from LSN ``first`` to ``last``, each with the LSNs it is about."""
        after = first
        for item in rows(self.reader, Narrator(self.reader, self.run_id, first), first, last):
            if isinstance(item, Row):
                at = end = item.lsn
            elif item.first_lsn <= item.last_lsn:
                at, end = item.first_lsn, item.last_lsn
            elif item.segment or item.bit or first <= self.first:  # else reported at the beginning
                at, end = after, after - 1
            else:
                continue
            after = max(after, end + 1)
            yield at, end, item

    def around(self, at: int, width: int) -> tuple[str, list[Line]]:
        """A heading, and PAGE lines with LSN ``at`` in the middle; or a line with the error.

        Values are not kept, because some are large.
        """
        columns = Columns(width, self.is_run, colour=True)
        try:
            items = islice(self.items(max(self.first, at - PAGE // 2)), PAGE)
            lines = [self._line(*one, columns) for one in items]
        except ERRORS as exc:
            lines = [Line(1, 0, printable(str(exc)), "this log cannot be read")]
        lines = lines or [Line(1, 0, "there are no records", "the log is empty")]
        return columns.heading(), lines

    def value(self, line: Line) -> Iterator[str]:
        """The value as lines; of a large one no more than a person reads."""
        yield line.about
        yield ""
        if not line.kind:
            yield line.text if line.finding is None else printable(line.finding.text)
            yield "" if line.finding is None else "`logdump verify` says what that means."
            return
        record = self.reader.fetch({line.at}).get(line.at)
        large = record is None or len(record.packed) > DECODED_SIZE_MAX
        if record is not None and not large:
            lines = pretty(shown_value(record.packed, line.kind, line.tool, self._redaction))
            yield from (cut(text, SHOWN_COLUMNS) for text in islice(lines, SHOWN_LINES))
            large = next(lines, None) is not None
        if large:
            yield f"... `logdump dump --full --lsn {line.at}` shows all of it"

    def _line(self, at: int, end: int, item: Item, columns: Columns) -> Line:
        if isinstance(item, Finding):
            place = f"segment {item.segment}, offset {item.offset}" if item.segment else "the log"
            return Line(at, end, columns.problem(item, fold=False), place, item)
        event, record = item.event, item.record
        about = [f"LSN {at}", item.kind or "encrypted"]
        about += [f"of {item.tool}#{event.call}"] if event is not None and event.call else []
        about += [f"step {item.step}"] if item.step is not None else []
        if record is not None:
            about.append(f"{when_ns(record.time_ns)} {zone_name()}")
        about += [size(item.size), f"segment {item.segment}, offset {item.offset}"]
        return Line(
            at,
            end,
            columns.line(item, lambda width: self._values.short(item, width)),
            printable(", ".join(about)),
            None,
            item.kind,
            item.tool,
        )

    # -- searching

    def ahead(self, line: Line, test: Test) -> Iterator[tuple[int, Item | None]]:
        """Search after this line: yields the LSN reached, and at last the line that passes."""
        behind = False
        for at, _, item in self.items(line.at):
            if not behind and at <= line.at:
                behind = line.is_of(at, item)
                continue
            found = test(item)
            yield at, item if found else None
            if found:
                return

    def back(self, line: Line, test: Test) -> Iterator[tuple[int, Item | None]]:
        """Search before this line, in the same way."""
        last = line.at
        while last >= self.first:
            first = max(self.first, last - STRETCH + 1)
            newest: tuple[int, Item] | None = None
            for at, _, item in self.items(first, last):
                if at >= line.at and (at > line.at or line.is_of(at, item)):
                    break
                newest = (at, item) if test(item) else newest
            yield newest or (first, None)
            if newest is not None:
                return
            last = first - 1

    def is_problem(self) -> Test:
        """A test for failures, doubts and damage."""
        in_doubt = {call.lsn for call in status_of(self.reader, self.run_id).in_doubt}
        wanted = Wanted(errors=True, in_doubt=in_doubt)
        return lambda item: item.bit > 0 if isinstance(item, Finding) else wanted(item, self._text)

    def has(self, text: str) -> Test:
        """A test for this text in the kind, tool or value; ignores case."""
        text = text.lower()
        return lambda item: (
            text in (item.text if isinstance(item, Finding) else self._text(item)).lower()
        )

    def _text(self, row: Row) -> str:
        large = row.size > DECODED_SIZE_MAX
        return f"{row.kind} {row.tool} {'' if large else short(self._values.of(row), None)}"
