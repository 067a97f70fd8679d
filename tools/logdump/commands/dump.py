"""``logdump dump``: prints every record, or selected ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Annotated

import typer

from eventlog import LogReader
from eventlog.dump import TORN
from eventlog.read.verify import Finding
from logdump.commands.raw import Raw
from logdump.context import Context, LogPath, UsageError
from logdump.filter import Wanted
from logdump.follow import Pause, arrivals, opened
from logdump.lines import Lines
from logdump.rows import Narrator, Row, rows
from recovery.cli.store_options import KeyFile, Redact, StoreOption
from recovery.cli.terminal import note
from recovery.inspect.status import status_of
from recovery.text import count

OFFSET_MAX = 1 << 62  # what the system takes

MORE = """\b
--lsn and --tail find their position with the log's index; other options read
all records between.

\b
--json prints one object per line, with nothing cut (docs/format.md):
  a record: "type" ("record" or "snapshot"), "segment", "offset", "lsn",
    "kind", "time", "time_ns", "size", "body"; of a run, where it is known,
    "step", "tool", "call" (its LSN), "attempt", "duration_s"
  a problem: "type" ("damage", "torn_tail" or "note"), "bit" (see verify),
    "segment", "offset", "size", "first_lsn", "last_lsn", "next_frame", "text"
What JSON cannot hold is tagged:
  {"$bytes": "<base64>"}         {"$float": "nan" | "inf" | "-inf"}
  {"$map": [[key, value], ...]}  {"$ext": [type, "<base64>"]}
  {"$msgpack": "<base64>"}

An encrypted record, without its key, has "encrypted": the id of the key, and no "body"; "kind"
and "time" are null and "size" is that of its frame.

--follow waits for a log that does not exist yet, continues across segments, writers and the
removal of the log, and ends with Ctrl-C or a closed pipe. Without it, the last records of a
running agent may be missing, and a record that is being written may be shown as a torn tail.

\b
exit code: 0; with damage, the bits of verify for it (a torn tail is none)

\b
examples:
  logdump dump ~/.eventlog/run_001
  logdump dump --errors ~/.eventlog/run_001
  logdump dump --tail 20 --follow ~/.eventlog/run_001
  logdump dump --tool 'send_*' --step 3..7 --full ~/.eventlog/run_001
  logdump dump --since '10 min' --grep refund ~/.eventlog/run_001
  logdump dump --lsn 88 --raw ~/.eventlog/run_001
  logdump dump --json ~/.eventlog/run_001 | jq 'select(.kind == "outcome")'"""

BYTES = 256  # shown of a payload
_STRETCH = 1000  # records that --tail reads first


Full = Annotated[bool, typer.Option("--full", help="Whole values, over several lines.")]
ShowBytes = Annotated[bool, typer.Option("--raw", help="Bytes, and the fields of frames.")]
JsonLines = Annotated[bool, typer.Option("--json", help="One JSON object per line.")]
Lsn = Annotated[
    str | None, typer.Option(metavar="A..B", help="These records: 88, 80..90, 80.. or ..90.")
]
Step = Annotated[str | None, typer.Option(metavar="A..B", help="Of these steps, likewise.")]
Kind = Annotated[
    list[str] | None, typer.Option(metavar="K", help="Of this kind: outcome, run_*. Repeatable.")
]
Tool = Annotated[
    list[str] | None, typer.Option(metavar="T", help="Of calls of this tool. Repeatable.")
]
Since = Annotated[
    str | None, typer.Option(metavar="TIME", help="RFC 3339, yesterday, '10 min', 2h.")
]
Until = Annotated[str | None, typer.Option(metavar="TIME", help="The same.")]
Grep = Annotated[
    str | None, typer.Option(metavar="REGEX", help="Whose value, as shown here, has this.")
]
Errors = Annotated[
    bool,
    typer.Option("--errors", help="What failed or was abandoned, calls in doubt, damage."),
]
Tail = Annotated[
    int | None, typer.Option(metavar="N", min=1, max=10**11, help="The last N of all these.")
]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="And what comes, as it comes.")]
Headers = Annotated[bool, typer.Option("--headers", help="With --raw: of segments as well.")]
Bytes = Annotated[
    int, typer.Option("--bytes", metavar="N", min=1, help="With --raw: of each payload.")
]
At = Annotated[
    str | None, typer.Option(metavar="SEGMENT:OFFSET", help="The bytes there, as by --raw.")
]


def command(
    path: LogPath,
    full: Full = False,
    raw: ShowBytes = False,
    as_json: JsonLines = False,
    lsn: Lsn = None,
    step: Step = None,
    kind: Kind = None,
    tool: Tool = None,
    since: Since = None,
    until: Until = None,
    grep: Grep = None,
    errors: Errors = False,
    tail: Tail = None,
    follow: Follow = False,
    headers: Headers = False,
    bytes_shown: Bytes = BYTES,
    at: At = None,
    redact: Redact = None,
    store: StoreOption = None,
    key_file: KeyFile = None,
) -> int:
    """Print records, one per line.

    LSN, time, step, kind, tool, size of the value in bytes, how long the call took, the value cut
    short. The LSN of a call follows its tool. Damage is shown in its position, whatever is
    selected. Control characters are shown escaped. A narrow terminal has fewer columns; a log
    that is no run has none for step and tool.

    A record must match all options that select records; --kind and --tool take * and ? as in file
    names.
    """
    return _run(Context(locals()))


def _run(context: Context) -> int:
    args = context.args
    wanted = Wanted.of(args, context.now())
    if args.full + args.raw + args.as_json > 1:
        raise UsageError("--full, --raw and --json are three forms: give one of them")
    if args.headers and not args.raw:
        raise UsageError("--headers shows bytes, and goes with --raw")
    if args.at is not None:
        return _at(context)
    if args.follow:
        return _follow(context, wanted)
    with context.read() as reader:
        first, last = _start(context, reader, wanted), wanted.lsns[1]
        narrator = Narrator(reader, context.run_id, first)
        lines = Lines(context, reader, narrator.is_run)
        bits = _show(rows(reader, narrator, first, last), wanted, lines)
        lines.end()
        if not lines.has_said:
            end = reader.tail().next_lsn - 1
            there = f"the log ends at LSN {end}" if end else "the log has no records"
            note(f"no record to show: {there}")
    return bits


def _follow(context: Context, wanted: Wanted) -> int:
    pause, bits, again = Pause(context.out), 0, False
    while True:
        with opened(context, pause, again) as reader:
            first = wanted.lsns[0] if again else _start(context, reader, wanted)
            lines, again = Lines(context, reader, None), True
            for item in arrivals(context, reader, first, pause):
                bits |= _show([item], wanted, lines)
                context.out.flush()
                if isinstance(item, Row) and item.lsn >= wanted.lsns[1]:
                    return bits


def _show(items: Iterable[Row | Finding], wanted: Wanted, lines: Lines) -> int:
    """Print the selected records, and all problems; returns the bits of the damage."""
    unseen, bits = 0, 0
    for item in items:
        if isinstance(item, Finding):
            bits |= item.bit & ~TORN
            lines.show(item)
        elif wanted(item, lines.text):
            lines.show(item)
        else:
            unseen += item.record is None
    if unseen:
        lines.has_said = True
        note(f"{count(unseen, 'record')} not looked into: encrypted, and there is no key")
    return bits


def _start(context: Context, reader: LogReader, wanted: Wanted) -> int:
    """The LSN to begin with; ``wanted`` learns what only a pass over the whole log shows."""
    if wanted.errors:
        wanted.in_doubt = {call.lsn for call in status_of(reader, context.run_id).in_doubt}
    first = wanted.lsns[0]
    most: int | None = context.args.tail
    if most is None:
        return first
    end = min(wanted.lsns[1], reader.tail().next_lsn - 1)
    if wanted.everything:
        return max(first, end - most + 1)
    text = Lines(context, reader, None).text
    stretch = max(_STRETCH, most)
    while True:  # stretches double, so all of them cost little more than the last
        begin = max(first, end - stretch + 1)
        found: deque[int] = deque(maxlen=most)
        for item in rows(reader, Narrator(reader, context.run_id, begin), begin, end):
            if isinstance(item, Row) and wanted(item, text):
                found.append(item.lsn)
        if len(found) == most or begin <= first:
            return found[0] if found else end + 1
        stretch *= 8


def _at(context: Context) -> int:
    """The bytes at an offset."""
    words = context.args.at.split(":")
    try:
        number, offset = (int(word, 0) for word in words)
    except ValueError:
        number = offset = -1
    if number < 1 or not 0 <= offset <= OFFSET_MAX:
        raise UsageError(f"--at {context.args.at}: a segment and an offset, as in 2:0x1f40")
    with context.read() as reader:
        if number not in reader.listing.numbers():
            raise UsageError(f"--at {context.args.at}: there is no segment {number}")
        raw = Raw(reader, context.args.bytes_shown, bool(context.args.redact))
        for line in raw.at(number, offset):
            context.print(line)
    return 0
