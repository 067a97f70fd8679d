"""``recovery resolve``: say what became of a call in doubt."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from recovery import CheckpointStore, Resolution
from recovery.cli.call_argument import meant, tool_of
from recovery.cli.commands.show import commands_for, resume_command
from recovery.cli.store_options import (
    CallName,
    KeyFile,
    RunId,
    SignWith,
    StoreOption,
    Who,
    Why,
    Yes,
    known,
    signer,
    store_of,
)
from recovery.cli.terminal import ends_politely, hint, say
from recovery.cli.value_arguments import VALUE, AsText, value_given
from recovery.cli.who import who_or_login
from recovery.control.resolve import resolve
from recovery.history.signed_resolutions import Attribution
from recovery.inspect.status import status
from recovery.reports import RunStatus
from recovery.text import cut

MORE = """\b
Exactly one of --outcome, --retry and --fail. A call is always named, also if
there is only one: your answer is taken for the truth, and never asked again.
A call can be resolved again until it has been made. Also for the failed call
that ended a run (recovery show names it). The types of the run's values need
not be there; an outcome of a type that JSON lacks is given in Python, by
RunHandle.resolve.

\b
exit codes:
  0    recorded, durably
  1    refused: nothing was written

\b
examples:
  recovery resolve run_001 charge#88 --outcome '{"receipt": "R-17"}'
  recovery resolve run_001 88 --outcome @receipt.json --why "ticket 4711"
  recovery resolve run_001 88 --outcome "250 OK" --text
  recovery resolve run_001 dad55780 --retry --why "the bank has no trace"
  recovery resolve run_001 call_6 --fail "refused by the bank"
"""

SHOWN_MAX = 60  # columns of what is said

Outcome = Annotated[
    str | None,
    typer.Option(
        metavar="JSON", help=f"It took effect, and returned this: {VALUE}", show_default=False
    ),
]
Retry = Annotated[bool, typer.Option("--retry", help="It did not take effect: make it again.")]
Force = Annotated[
    bool,
    typer.Option(
        "--force",
        help="Retry it although another process may still execute it, or the log has the outcome "
        "of a lost call, which may be this one.",
    ),
]
Fail = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT",
        help="It failed: the agent gets a ToolError with this text, also if the text names another "
        "exception.",
        show_default=False,
    ),
]


def command(
    run: RunId,
    call: CallName,
    outcome: Outcome = None,
    text: AsText = False,
    retry: Retry = False,
    force: Force = False,
    fail: Fail = None,
    yes: Yes = False,
    who: Who = None,
    why: Why = "",
    sign: SignWith = None,
    store: StoreOption = None,
    key_file: KeyFile = None,
) -> None:
    """Say what became of a call in doubt. The run continues when it is resumed."""
    del yes  # it asks nothing: scripts may say it to each command that decides
    with ends_politely():
        how, said = _resolution(outcome, text, retry, fail)
        runs = store_of(run, store, key_file)
        before = known(runs, run)
        which = meant(runs, before, call, before.calls)
        name, state = _about(runs, before, which)
        saying = Attribution(who=who_or_login(who), why=why, sign=signer(sign), force=force)
        resolve(runs, run, which, how, **saying)
        say(f"{name} of run {run}: {state} -> {said}")
        after = status(runs, run)
        commands = commands_for(runs, run, store, key_file)
        first = commands.next(after)[:1]
        if first == [commands.resume()]:
            first = [resume_command(runs, run, store, key_file)]
        hint(first)


def _resolution(
    outcome: str | None, text: bool, retry: bool, fail: str | None
) -> tuple[Resolution, str]:
    """The resolution, and its text."""
    if (outcome is not None) + retry + (fail is not None) != 1:
        raise ValueError("say exactly one of --outcome JSON, --retry and --fail TEXT")
    if text and outcome is None:
        raise ValueError("--text is about --outcome")
    if retry:
        return Resolution.retry(), "to be made again"
    if fail == "TEXT":
        raise ValueError("TEXT stands for what happened, as in --fail 'refused by the bank'")
    if fail is not None:
        return Resolution.fail(fail), f"failed: {cut(fail, SHOWN_MAX)}"
    assert outcome is not None
    value = value_given(outcome, "--outcome", as_text=text)
    return Resolution.outcome(value), f"outcome {cut(json.dumps(value), SHOWN_MAX)}"


def _about(store: CheckpointStore, one: RunStatus, which: int | str) -> tuple[str, str]:
    """The call's name, and its state."""
    found = next((call for call in one.calls if call.idempotency_key == which), None)
    if found is not None:
        return found.name, found.state
    lsn = one.failed_call if isinstance(which, str) else which
    state = "failed" if lsn == one.failed_call else "in doubt"
    state = "cancelled" if one.state == "cancelled" else state
    return f"{tool_of(store, one.run_id, lsn) or 'LSN '}#{lsn}", state
