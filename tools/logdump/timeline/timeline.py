"""``logdump timeline``: writes a run as one HTML file, to look at and to send."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkstemp
from typing import Annotated, Any, TextIO

import typer

from eventlog import LogReader
from logdump.context import Context, LogPath, UsageError
from logdump.timeline.model import Timeline
from logdump.timeline.page import page
from logdump.timeline.texts import Texts
from recovery.cli.store_options import KeyFile, Redact, StoreOption
from recovery.inspect.follow import restore_tally
from recovery.inspect.run_event import EventReader
from recovery.inspect.status import status_of
from recovery.replay.progress import ProgressTally
from recovery.text import count, printable

MORE = """\
In the page: / searches, n and p go to the next and previous match, the arrow keys from call to
call, + and - zoom, 0 shows all, Escape closes. A link with #lsn=88 at its end opens the page at
that record.

Values are cut at --value-bytes characters, and the page says how much is missing; 'logdump dump
--full --lsn 88' shows all of it. The file holds what the run recorded: --redact hides what others
must not see, '--redact *' all values. Of a longer run the page has the last 20,000 records.

\b
examples:
  logdump timeline ~/.eventlog/run_001 -o run_001.html
  logdump timeline --redact '*token*' ~/.eventlog/run_001 > run_001.html"""

VALUE_SIZE, LAST = 2048, 20_000


Output = Annotated[
    str | None,
    typer.Option("--output", "-o", metavar="FILE", help="Where to write it; else standard output."),
]
ValueBytes = Annotated[
    int, typer.Option(metavar="N", min=0, help="How many characters of each value to show.")
]
Last = Annotated[
    int, typer.Option(metavar="N", min=0, help="Only the newest N records; 0 for all.")
]


def command(
    path: LogPath,
    output: Output = None,
    value_bytes: ValueBytes = VALUE_SIZE,
    last: Last = LAST,
    redact: Redact = None,
    store: StoreOption = None,
    key_file: KeyFile = None,
) -> int:
    """Write a run as one HTML file, to look at and to send.

    It needs nothing else: no server, no network, no other file. It shows steps, calls and how they
    overlap, where processes died and others resumed, calls in doubt, retries, waits, checkpoints,
    damage, and the conversation; click on anything for its arguments, result and history.
    """
    return _run(Context(locals()))


def _run(context: Context) -> int:
    args = context.args
    if args.output is None and context.out.isatty():
        raise UsageError("the page is HTML: say where to write it with -o FILE, or send it on")
    texts = Texts(context.redaction, args.value_bytes)
    with context.read() as reader:
        model = gather(reader, texts, args.last)
    if args.output is None:
        for part in page(model):
            context.out.write(part)
        return 0
    with _private(args.output) as out:
        for part in page(model):
            out.write(part)
    doubtful = sum(call["state"] == "doubt" for call in model["calls"])
    summary = f"{count(model['run']['records'], 'record')}, {count(len(model['calls']), 'call')}"
    context.print(
        f"{printable(args.output)}: {summary}{f', {doubtful} in doubt' if doubtful else ''}"
    )
    return 0


def gather(reader: LogReader, texts: Texts, last: int) -> dict[str, Any]:
    """The model of the run in a log: of its newest ``last`` records, 0 for all."""
    run_id = Path(reader.path).name
    status = status_of(reader, run_id)
    start = max(1, status.last_lsn + 1 - last) if last else 1
    tally = ProgressTally()
    read_from = restore_tally(tally, reader, start - 1)
    events = EventReader(run_id, tally, reader.fetch)
    timeline = Timeline(texts, events.packed_message)
    for item in reader.arrivals(read_from):
        if item is None:
            break
        event = events.from_log(item)
        if event.lsn >= start:
            timeline.add(event)
    return timeline.model(status, start - 1)


@contextmanager
def _private(path: str) -> Iterator[TextIO]:
    """A new file for its owner alone, as logs are: the user decides who gets it. A file that has
    its name stays until the new one is complete."""
    target = Path(path).resolve()
    try:
        if target.exists() and not target.is_file():  # a pipe, a device
            with target.open("w", encoding="ascii", newline="\n") as out:
                yield out
            return
        number, temporary = mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(number, "w", encoding="ascii", newline="\n") as out:
                yield out
            Path(temporary).replace(target)
        except BaseException:
            Path(temporary).unlink()
            raise
    except OSError as exc:
        exc.filename, exc.filename2 = path, None
        raise
