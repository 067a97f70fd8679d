"""``recovery signal``: send a signal that a run waits for."""

from __future__ import annotations

from secrets import token_hex
from typing import Annotated

import typer

from eventlog import LogError
from recovery.cli.commands.show import commands_for, resume_command
from recovery.cli.status_view import waits_for_others
from recovery.cli.store_options import (
    KeyFile,
    RunId,
    SignWith,
    StoreOption,
    Who,
    known,
    signer,
    store_of,
)
from recovery.cli.terminal import ends_politely, hint, note, say
from recovery.cli.value_arguments import VALUE, AsText, value_given
from recovery.cli.who import who_or_login
from recovery.control.send import signal

MORE = """\b
The next run.wait_for(NAME) of the run returns the value. Signals of a name
are kept in the order sent, and each is taken once, whether the run waits
already or not. A script that may try again gives the same --key: then it is
sent once. A name that the run does not wait for is sent too, because the run
may ask for it later; the output then names what it waits for.

\b
exit codes:
  0    sent, durably, now or before under this --key
  1    refused: it has ended

\b
examples:
  recovery signal run_001 go
  recovery signal run_001 answer '{"rooms": 2}' --key order-4711
  recovery signal run_001 note "call me" --text
  curl -s https://example.com/offer | recovery signal run_001 offer -
"""

Name = Annotated[str, typer.Argument(metavar="NAME", help="What run.wait_for waits for.")]
Value = Annotated[
    str, typer.Argument(metavar="[VALUE]", help=f"{VALUE} By default null.", show_default=False)
]
Key = Annotated[str, typer.Option(metavar="TEXT", help="Two signals with one key are one.")]


def command(
    run: RunId,
    name: Name,
    value: Value = "null",
    text: AsText = False,
    key: Key = "",
    who: Who = None,
    sign: SignWith = None,
    store: StoreOption = None,
    key_file: KeyFile = None,
) -> None:
    """Send a run a signal."""
    with ends_politely():
        given = value_given(value, "VALUE", as_text=text)
        runs = store_of(run, store, key_file)
        one = known(runs, run)
        by, drawn = signer(sign), key or token_hex(8)
        try:
            sent = signal(runs, run, name, given, who=who_or_login(who), key=drawn, sign=by)
        except (OSError, LogError, KeyboardInterrupt):
            if not key:
                note(
                    f"{name!r} may have been sent all the same. Repeat the command with "
                    f"--key {drawn}: it is sent once"
                )
            raise
        if not sent:
            return say(f"run {run}: {name!r} was sent before under key {drawn!r}, and is sent once")
        if other := waits_for_others(one, name):
            say(f"run {run}: sent {name!r}, which it has not asked for: {other}")
            return hint(commands_for(runs, run, store, key_file).next(one))
        say(f"run {run}: sent {name!r}")
        if one.state != "running":
            hint([resume_command(runs, run, store, key_file)])
