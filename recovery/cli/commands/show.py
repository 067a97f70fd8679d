"""``recovery show``: show what a run was doing, why it is not running, and what to do about it."""

from __future__ import annotations

import time
from contextlib import suppress

import typer

from eventlog import LogError
from eventlog.remote.engine import url_of
from recovery import CheckpointStore, RecoveryError
from recovery.cli import history_view
from recovery.cli.doctor_checks import low_space
from recovery.cli.history_view import read_story
from recovery.cli.next_steps import Commands, agent_of
from recovery.cli.pager import paged
from recovery.cli.status_view import as_json_object, grid, rows
from recovery.cli.store_options import AsJson, KeyFile, Redact, RunId, StoreOption, store_of
from recovery.cli.terminal import ends_politely, output, say, show_json
from recovery.history.find_run import reader_of
from recovery.history.first_record import started_of
from recovery.history.store_url import is_url
from recovery.inspect.status import status
from recovery.journal.encoding import decode_shallow
from recovery.stores.file import FileStore
from recovery.text import printable
from recovery.values.render import Redaction

MORE = """\b
"next" are the commands to continue with; words in capitals are yours to fill
in. recovery checkpoints lists what a fork can begin with.

\b
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
    """What a run was doing, why it is not running, and what to do now."""
    with ends_politely(), paged():
        runs = store_of(run, store, key_file, reading=True)
        found = status(runs, run)
        redaction = Redaction(redact or ())
        story = read_story(runs, found)
        commands = commands_for(runs, run, store, key_file).next(found)
        if as_json:
            told = history_view.as_json_object(story, redaction)
            show_json(as_json_object(found, redaction) | told | {"next": commands})
            return
        now = time.time()
        shown = [*rows(found, now, redaction), *history_view.rows(found, story, now, redaction)]
        output().print(grid(shown))
        if low := low_space(runs):
            say(low)
        width = max(len(label) for label, *_ in shown) + 1
        for i, command in enumerate(commands):
            typer.echo(f"{'' if i else 'next':<{width}}{printable(command)}")  # not folded


def commands_for(
    store: CheckpointStore, run: str, where: str | None, key_file: str | None
) -> Commands:
    """The commands about a run in a store, which was given as ``where``."""
    address = store.backend.address
    # The agent's own store; or that of a URL, which may have a password in it.
    if address and (where is None or is_url(where)) and address != FileStore().root:
        where = address
    path = address and (url_of(address, run) if is_url(address) else f"{address}/{run}")
    return Commands(run, where, path, key_file)


def resume_command(
    store: CheckpointStore, run: str, where: str | None, key_file: str | None
) -> str:
    """The command that resumes a run, with the agent that its record names."""
    commands = commands_for(store, run, where, key_file)
    with suppress(LogError, RecoveryError, ValueError), reader_of(store, run) as reader:
        started = started_of(reader, decode_shallow)
        commands.agent = agent_of(started.agent if started and not started.parent else None)
    return commands.resume()
