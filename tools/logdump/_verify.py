"""``logdump verify``: check everything, and say what is wrong."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from eventlog import LogError
from eventlog.dump import NOT_A_LOG, Finding, Totals, verify
from logdump._command import Command, Context
from logdump._show import as_line, finding_line, summary_line

TEXT = """\
Check every segment, frame, footer, snapshot and value, and say for each
problem what it means."""

MORE = """\
The exit code adds up what was found:
   0  sound
   1  torn tail: never acknowledged; the next opening cuts it off; harmless
   2  damaged record, or other bytes that have changed since they were written
   4  missing segment
   8  bad snapshot: recovery falls back to an earlier one
  16  gap in LSNs
  32  not a log, or of a version that this program does not know
  64 and above: verify could not do its work
      (64 wrong usage, 66 no such directory, 74 read error, 77 wrong key)

Of an encrypted log everything is checked without the key but what is inside
the records. With it, that too, and that they were written with it.

On the log of a running agent, a record that is just being written may be
reported as a torn tail; what comes after the start of verify is not checked.

examples:
  logdump verify ~/.eventlog/run_001
  logdump verify --json ~/.eventlog/run_001 | jq 'select(.bit > 1)'"""


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object per line")


def _run(context: Context) -> int:
    as_json = context.args.json
    try:
        with context.read() as reader:
            findings = verify(reader)
            while True:
                try:
                    finding = next(findings)
                except StopIteration as end:
                    totals: Totals = end.value
                    break
                if as_json:
                    context.print(as_line(finding.as_json()))
                else:
                    context.tell(finding_line(finding))
            if as_json:
                context.print(as_line({"type": "totals", **asdict(totals)}))
            else:
                context.tell(summary_line(reader.path, totals))
            return totals.exit_code
    except (LogError, NotADirectoryError) as exc:
        if as_json:
            context.print(as_line(Finding(NOT_A_LOG, 0, 0, 0, 1, 0, str(exc)).as_json()))
        raise


COMMAND = Command("verify", "check everything, and say what is wrong", TEXT, MORE, _arguments, _run)
