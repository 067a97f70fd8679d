"""``recovery show``: show what a run was doing, why it is not running, and what to do about it."""

from __future__ import annotations

import time
from contextlib import suppress

import typer

from eventlog import LogError
from eventlog.remote.log_url import url_of
from recovery import CheckpointStore, RecoveryError
from recovery.agent_code.agent_name import agent_option
from recovery.cli import history_view
from recovery.cli.doctor_checks import low_space
from recovery.cli.exit_codes import NO_KEY, USAGE
from recovery.cli.history_view import read_story
from recovery.cli.key_options import encryption_from
from recovery.cli.next_steps import Commands
from recovery.cli.pager import paged
from recovery.cli.status_view import as_json_object, grid, lines, rows
from recovery.cli.store_options import (
    AsJson,
    KeyFile,
    Redact,
    RunId,
    StoreOption,
    known,
    store_of,
)
from recovery.cli.terminal import complain, ends_politely, hint, output, say, show_json
from recovery.history.find_run import reader_of
from recovery.history.first_record import started_of
from recovery.history.store_url import is_url
from recovery.inspect.status import status
from recovery.journal.encoding import decode_shallow
from recovery.reports import RunStatus
from recovery.stores.file import FileStore
from recovery.text import count, printable
from recovery.values.render import Redaction

MORE = """\b
"next" are the commands to continue with; words in capitals are yours to fill
in. recovery checkpoints lists what a fork can begin with.

\b
exit codes:
  77   it is encrypted, and its key was not given: nothing else is known

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
    with ends_politely():
        runs = store_of(run, store, key_file, reading=True)
        found = status(runs, run)
        commands = commands_for(runs, run, store, key_file)
        with paged():
            _print(runs, found, commands, Redaction(redact or ()), as_json)
        if found.needs_key:
            raise typer.Exit(NO_KEY)


def _print(
    runs: CheckpointStore, found: RunStatus, commands: Commands, hidden: Redaction, as_json: bool
) -> None:
    story, todo = read_story(runs, found), commands.next(found)
    if as_json:
        more = history_view.as_json_object(story, hidden)
        return show_json(as_json_object(found, hidden) | more | {"next": todo})
    now = time.time()
    shown = [*rows(found, now, hidden), *history_view.rows(found, story, now, hidden)]
    output().print(grid(shown))
    if low := low_space(runs, commands.on_store):
        say(low)
    if 0 < len(story.recent) < found.last_lsn:
        records = f"{commands.logdump('dump')}   # all {count(found.last_lsn, 'record')}"
        typer.echo(next(lines(shown, "more", [records])))
    for told in lines(shown, "next", todo):
        typer.echo(told)


def commands_for(
    store: CheckpointStore, run: str, where: str | None, key_file: str | None
) -> Commands:
    """The commands about a run in a store, which was given as ``where``."""
    address = store.backend.address
    # The agent's own store; or that of a URL, which may have a password in it.
    if address and (where is None or is_url(where)) and address != FileStore().root:
        where = address
    path = address and (url_of(address, run) if is_url(address) else f"{address}/{run}")
    if key_file is None and store.backend.encryption is not None:
        given = encryption_from(None, reading=True)
        key_file = "FILE" if given is None else None
    return Commands(run, where, path, key_file)


def resume_command(
    store: CheckpointStore, run: str, where: str | None, key_file: str | None, verb: str = "resume"
) -> str:
    """The command that resumes a run, with the agent that its record names."""
    commands, note = commands_for(store, run, where, key_file), ""
    with suppress(LogError, RecoveryError, ValueError), reader_of(store, run) as reader:
        started = started_of(reader, decode_shallow)
        if started is not None and not started.parent:
            commands.agent = agent_option(started.agent_object, started.agent)
        if started is not None and started.queued and verb == "resume":
            note = "   # or leave it to a worker"
    return commands.of(verb, f"--agent {commands.agent}") + note


def no_agent(verb: str, run: str, store: str | None, key_file: str | None) -> typer.Exit:
    """What the record says is shown, and not imported: a log must not choose what is executed."""
    runs = store_of(run, store, key_file, reading=True)
    by = printable(known(runs, run).agent) or "an agent without a name"
    text = f"say --agent MODULE:NAME. Run {run} was begun by {by}. Nothing was executed."
    ended = complain(text, USAGE)
    hint([resume_command(runs, run, store, key_file, verb)], err=True)
    return ended
