"""``logdump status``: one screen that says how it stands."""

from __future__ import annotations

import argparse
from pathlib import Path

from logdump._command import Command, Context
from logdump._show import as_line
from recovery._status import status_of
from recovery._text import count, size

TEXT = """\
Show on one screen how it stands with a run: its state, who has it, the last
record, calls in doubt and what recovery will do with each, what it has used,
and whether the end of its log is sound, torn or damaged.

This is what "logdump PATH" does."""

MORE = """\
Reads from the newest checkpoint on; "logdump verify" checks the whole log.

exit code: 0; 2 when damage was found in what was read

examples:
  logdump ~/.eventlog/run_001
  logdump status --json ~/.eventlog/run_001 | jq .open_calls
  logdump status --redact '*' ~/.eventlog/run_001"""


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object")


def _run(context: Context) -> int:
    console = context.console
    from recovery.cli._next import Commands  # noqa: PLC0415
    from recovery.cli._status import as_json_object, grid, rows  # noqa: PLC0415 - needs an extra

    path = Path(context.args.path)
    with context.read() as reader:
        found = status_of(reader, path.resolve().name)
    if context.args.json:
        context.print(as_line(as_json_object(found, context.redaction)))
    else:
        there = Commands(found.run_id, str(path.parent), str(path))
        todo = [("" if i else "next", text, "bold") for i, text in enumerate(there.next(found))]
        told = rows(found, context.now(), context.redaction)
        console.print(grid([*told, _on_disk(path), *todo]))
    return 2 if found.damage else 0


def _on_disk(path: Path) -> tuple[str, str, str]:
    sizes = [file.stat().st_size for file in path.glob("*.seg")]
    return "log", f"{size(sum(sizes))} in {count(len(sizes), 'segment')}", ""


COMMAND = Command("status", "how it stands with a run, on one screen", TEXT, MORE, _arguments, _run)
