"""``logdump stats``: shows what a log is made of, and what its run has used."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Annotated

import typer

from eventlog import LogReader, Record
from eventlog.dump import TORN, Totals
from eventlog.read.verify import DecodedFrame, EncryptedFrame, examine
from logdump.context import Context, LogPath, UsageError
from logdump.places import segment_sizes
from logdump.show import as_line, finding_line
from logdump.stats.frames import Frames
from logdump.stats.json_output import step_object, totals_object
from logdump.stats.log_statistics import LogStatistics, StepTotals
from logdump.stats.screen import Screen
from recovery.cli.store_options import AsJson, KeyFile, Redact, StoreOption
from recovery.cli.times import when_ns
from recovery.text import size

MORE = """\
"open" are calls without an outcome: in flight, in doubt or abandoned. The time of an attempt
counts when the process that began it has ended it; waits, for approval too, are no time in tools.
"replayed" and "served" are the records and the outcomes after the checkpoints that recoveries
began with: a recorded outcome is not paid for again, if the code makes its call again.

A median over more than 4,096 calls is taken from some of them, at regular intervals, and shown
with a "~". Damage is reported, and not counted. Of an encrypted log, without its key, frames and
bytes are counted. Reads the whole log, in constant memory.

\b
--json prints one object of "type" "stats": "log", "kinds", "damage", and of a
run "run", "time", "recoveries", "checkpoints", "growth", "tools", "slowest".
With --by step a "step" in a line for each step comes before it. Sizes are
bytes of bodies, durations seconds.

\b
exit code: 0; with damage, the bits of verify for it (a torn tail is none)

\b
examples:
  logdump stats ~/.eventlog/run_001
  logdump stats --slowest 30 ~/.eventlog/run_001
  logdump stats --by step ~/.eventlog/run_001 | sort -k 7 -n | tail
  logdump stats --json ~/.eventlog/run_001 | jq '.tools[] | {name, cost}'"""

SLOWEST = 5
DAMAGE_MAX = 5  # findings that are shown; the others are counted
HEADING = (
    f"{'STEP':>7} {'BEGAN':>8} {'AT WORK':>11} {'CALLS':>5} {'IN':>8} {'OUT':>7} "
    f"{'COST':>9} {'BYTES':>8} {'CHECKP.':>8}"
)


By = Annotated[
    str | None,
    typer.Option(metavar="tool|step|kind", help="One of the tables alone, all of it."),
]
Slowest = Annotated[
    int, typer.Option(metavar="N", min=0, max=10_000, help="How many of the slowest calls.")
]


def command(
    path: LogPath,
    by: By = None,
    slowest: Slowest = SLOWEST,
    redact: Redact = None,
    store: StoreOption = None,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> int:
    """Show what a log is made of and what its run has used.

    Bytes, records, calls, time per tool, tokens and cost, checkpoints, growth per step, the
    slowest calls, and what recoveries had to replay.
    """
    return _run(Context(locals()))


def _run(context: Context) -> int:
    args = context.args
    if args.by not in (None, "tool", "step", "kind"):
        raise UsageError(f"--by {args.by}: tool, step or kind")
    args = context.args
    totals, frames = Totals(), Frames()
    steps = args.by == "step"
    on_step = functools.partial(_print_step, context) if steps else lambda step: None
    statistics = LogStatistics(args.slowest, on_step)
    with context.read() as reader:
        if steps and not args.as_json:
            context.print(HEADING)
        for record in _records(reader, totals, frames):
            statistics.observe(record)
        statistics.finish()
        _measure(reader, totals, frames)
        _show(context, reader, statistics, frames)
    return frames.bits


def _records(reader: LogReader, totals: Totals, frames: Frames) -> Iterator[Record]:
    for item in examine(reader, totals):
        if isinstance(item, DecodedFrame):
            frames.frames += 1
            frames.size += item.size
            yield from item.records
        elif isinstance(item, EncryptedFrame):
            frames.frames += 1
            frames.hidden += item.frame.count
            frames.size += item.frame.end - item.frame.offset
            frames.key_id = item.key_id
        elif item.bit == TORN:
            frames.torn += item.size
        elif item.bit:
            frames.bits |= item.bit
            frames.problems += 1
            frames.shown += [item] if len(frames.shown) < DAMAGE_MAX else []


def _measure(reader: LogReader, totals: Totals, frames: Frames) -> None:
    frames.segments = totals.segments
    frames.first_lsn, frames.last_lsn = totals.first_lsn, totals.last_lsn
    frames.on_disk = sum(segment_sizes(reader))


def _print_step(context: Context, step: StepTotals) -> None:
    if context.args.as_json:
        context.print(as_line(step_object(step)))
        return
    used = step.used
    began = when_ns(step.since_ns)[11:19] if step.step else ""
    context.print(
        f"{step.step:>7} {began:>8} {step.at_work_ns / 1e9:>10.3f}s {step.calls:>5} "
        f"{used.input_tokens:>8} {used.output_tokens:>7} {used.cost:>9.4g} {size(step.size):>8} "
        f"{size(step.checkpoint) if step.checkpoint else '-':>8}"
    )


def _show(context: Context, reader: LogReader, statistics: LogStatistics, frames: Frames) -> None:
    if context.args.as_json:
        context.print(as_line(totals_object(statistics, frames)))
    elif context.args.by == "step":
        for finding in frames.shown:
            context.print_prose(f"not counted: {finding_line(finding)}")
    else:
        Screen(context, reader, statistics, frames).show(context.args.by)
