"""``logdump dump``: every record."""

from __future__ import annotations

import argparse

from eventlog.dump import dump
from logdump._command import Command, Context
from logdump._show import as_line, heading, record_line
from recovery.cli._values import readable_json

TEXT = """\
Print every record, one per line: LSN, time, kind, size of the value in bytes,
the value cut short. What is damaged is shown in its place. Control characters
are shown escaped."""

MORE = """\
--json prints one object per line, with nothing cut:
  a record: "type" ("record" or "snapshot"), "segment", "offset", "lsn",
    "kind", "time", "time_ns", "size", "body"
  a problem: "type" ("damage", "torn_tail" or "note"), "bit" (see verify),
    "segment", "offset", "size", "first_lsn", "last_lsn",
    "next_frame" (of the next sound frame in the segment), "text"
What JSON cannot hold is tagged (docs/format.md has the details):
  {"$bytes": "<base64>"}         {"$float": "nan" | "inf" | "-inf"}
  {"$map": [[key, value], ...]}  {"$ext": [type, "<base64>"]}
  {"$msgpack": "<base64>"}

An encrypted record, without its key, has "encrypted": the id of the key, and
no "body"; "kind" and "time" are null and "size" is that of its frame.

On the log of a running agent, the last records may be missing, and a record
that is just being written may be shown as a torn tail.

exit code: 0; with damage, the bits of verify for it (a torn tail is none)

examples:
  logdump dump ~/.eventlog/run_001 | less
  logdump dump --json ~/.eventlog/run_001 | jq 'select(.kind == "outcome")'"""


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object per line")


def _run(context: Context) -> int:
    width, as_json, redaction = context.width, context.args.json, context.redaction
    bits = 0
    with context.read() as reader:
        if not as_json:
            context.print(heading(width))
        for item in dump(reader):
            if as_json and context.args.redact and "body" in item:
                item["body"] = redaction.shown(readable_json(item["body"]), str(item["kind"]))
            if as_json:
                context.print(as_line(item))
            elif "lsn" in item:
                context.print(record_line(item, width, redaction))
            else:
                context.tell(record_line(item, width, redaction))
            if item["type"] == "damage":
                bits |= int(str(item["bit"]))
    return bits


COMMAND = Command("dump", "print every record", TEXT, MORE, _arguments, _run)
