"""``recovery export``: write a run without what is to stay in production, to be replayed."""

from __future__ import annotations

import sys
from contextlib import nullcontext

import typer

from recovery.cli.progress import working
from recovery.cli.store_options import KeyFile, Redact, RunId, StoreOption, store_of
from recovery.cli.terminal import ends_politely
from recovery.history.find_run import reader_of
from recovery.ops.redacted_export import export_redacted
from recovery.values.render import Redaction

MORE = """\b
Values of keys, keyword-only parameters and tools of these names are replaced:
texts by "[redacted]", numbers by 0, lists and maps by empty ones. Errors
and reasons lose their texts. Checkpoints, and messages to the run, are left
out. Parameters that a call may give by position have no names in a record: of
their arguments, only maps and fields of types may stay. A value that the
agent has copied to another name stays: look through the file.

The file is for recovery.testing.replay, which does not compare its arguments.
`logdump import` refuses it. `logdump export` writes a run whole.

\b
exit codes:
  0    written
  1    refused: its beginning was removed

\b
examples:
  recovery export run_001 --redact email --redact 'card*' > run_001.jsonl
  recovery export run_001 --redact '*' > shape.jsonl
"""


def command(
    run: RunId,
    redact: Redact = None,
    store: StoreOption = None,
    key_file: KeyFile = None,
) -> None:
    """Write a run as lines of JSON, redacted, for a replay in a test."""
    with ends_politely():
        if not redact:
            raise ValueError("say what to --redact; `logdump export` writes a run whole")
        found = store_of(run, store, key_file, reading=True)
        shown = nullcontext() if sys.stdout.isatty() else working(f"exporting {run}")
        with reader_of(found, run) as log, shown:
            for line in export_redacted(log, run, Redaction(redact)):
                typer.echo(line)
