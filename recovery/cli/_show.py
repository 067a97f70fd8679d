"""``recovery show``: what a run was doing, and why it is not running."""

from __future__ import annotations

import time

from recovery import status
from recovery.cli._status import as_json_object, grid, rows
from recovery.cli._store import AsJson, KeyFile, Redact, RunId, StoreOption, open_store
from recovery.cli._terminal import ends_politely, output, show_json
from recovery.cli._values import Redaction

MORE = """\b
examples:
  recovery show run_001
  recovery show run_001 --json | jq .open_calls
  recovery show run_001 --redact '*'
"""


def command(
    run: RunId,
    store: StoreOption = None,
    key_file: KeyFile = None,
    redact: Redact = None,
    as_json: AsJson = False,
) -> None:
    """What a run was doing, its calls in doubt, and why it is not running."""
    with ends_politely():
        found = status(open_store(store, key_file, reading=True), run)
        redaction = Redaction(redact or ())
        if as_json:
            show_json(as_json_object(found, redaction))
            return
        output().print(grid(rows(found, time.time(), redaction)))
