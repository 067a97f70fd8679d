"""``logdump dump``: prints every record, or selected ones."""

from __future__ import annotations

import argparse
import sys
from collections import deque
from collections.abc import Iterable

from eventlog import LogReader
from eventlog.dump import TORN
from eventlog.read.verify import Finding
from logdump.command import Command, Context, UsageError
from logdump.commands.raw import Raw
from logdump.filter import Wanted
from logdump.follow import Pause, arrivals, opened
from logdump.lines import Lines
from logdump.rows import Narrator, Row, rows
from recovery.inspect.status import status_of
from recovery.text import count

OFFSET_MAX = 1 << 62  # what the system takes

TEXT = """\
Print every record, one per line: LSN, time, step, kind, tool, size of the
value in bytes, how long the call took, the value cut short. The LSN of a call
follows its tool. Damage is shown in its position, whatever is selected.
Control characters are shown escaped. A narrow terminal has fewer columns; a
log that is no run has none for step and tool.

A record must match all options that select records; --kind and --tool may be
given several times, with * and ? as in file names."""

MORE = """\
--lsn and --tail find their position with the log's index; other options read
all records between.

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

An encrypted record, without its key, has "encrypted": the id of the key, and
no "body"; "kind" and "time" are null and "size" is that of its frame.

--follow waits for a log that does not exist yet, continues across segments,
writers and the removal of the log, and ends with Ctrl-C or a closed pipe.
Without it, the last records of a running agent may be missing, and a record
that is being written may be shown as a torn tail.

exit code: 0; with damage, the bits of verify for it (a torn tail is none)

examples:
  logdump dump ~/.eventlog/run_001 | less
  logdump dump --errors ~/.eventlog/run_001
  logdump dump --tail 20 --follow ~/.eventlog/run_001
  logdump dump --tool 'send_*' --step 3..7 --full ~/.eventlog/run_001
  logdump dump --since '10 min' --grep refund ~/.eventlog/run_001
  logdump dump --lsn 88 --raw ~/.eventlog/run_001
  logdump dump --json ~/.eventlog/run_001 | jq 'select(.kind == "outcome")'"""

BYTES = 256  # shown of a payload
_STRETCH = 1000  # records that --tail reads first


def _arguments(parser: argparse.ArgumentParser) -> None:
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--full", action="store_true", help="whole values, over several lines")
    how.add_argument("--raw", action="store_true", help="bytes, and the fields of frames")
    how.add_argument("--json", action="store_true", help="one JSON object per line")
    parser.add_argument("--lsn", metavar="A..B", help="these records: 88, 80..90, 80.. or ..90")
    parser.add_argument("--step", metavar="A..B", help="of these steps, in the same way")
    parser.add_argument("--kind", metavar="K", action="append", help="of this kind: outcome, run_*")
    parser.add_argument("--tool", metavar="T", action="append", help="of calls of this tool")
    parser.add_argument("--since", metavar="TIME", help="RFC 3339, yesterday, '10 min', 2h")
    parser.add_argument("--until", metavar="TIME", help="the same")
    parser.add_argument("--grep", metavar="REGEX", help="whose value, as shown here, has this")
    parser.add_argument(
        "--errors", action="store_true", help="what failed or was abandoned, calls in doubt, damage"
    )
    parser.add_argument("--tail", metavar="N", type=_number, help="the last N of all these")
    parser.add_argument("-f", "--follow", action="store_true", help="and what comes, as it comes")
    parser.add_argument("--headers", action="store_true", help="with --raw: of segments as well")
    parser.add_argument(
        "--bytes",
        metavar="N",
        type=_number,
        default=BYTES,
        help=f"with --raw: of each payload ({BYTES})",
    )
    parser.add_argument("--at", metavar="SEGMENT:OFFSET", help="the bytes there, as by --raw")
    parser.add_argument(
        "--color", choices=("auto", "always", "never"), default="auto", help="(auto: on terminals)"
    )


def _number(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not 0 < len(text) < 12 or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text} is no number above 0")
    return int(text)


def _run(context: Context) -> int:
    args = context.args
    wanted = Wanted.of(args, context.now())
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
            print(f"logdump: no record to show: {there}", file=sys.stderr)
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
        print(
            f"logdump: {count(unseen, 'record')} not looked into: encrypted, and there is no key",
            file=sys.stderr,
        )
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
        raw = Raw(reader, context.args.bytes, bool(context.args.redact))
        for line in raw.at(number, offset):
            context.print(line)
    return 0


COMMAND = Command("dump", "print records", TEXT, MORE, _arguments, _run)
