"""``recovery cancel`` and ``recovery accept``: end a run, or accept that its code diverges."""

from __future__ import annotations

from recovery import RecoveryError
from recovery.cli.commands.show import resume_command
from recovery.cli.history_view import children_known
from recovery.cli.store_options import (
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
from recovery.cli.terminal import confirm, ends_politely, hint, say
from recovery.cli.who import who_or_login
from recovery.control.cancel import cancel
from recovery.control.resolve import accept
from recovery.inspect.states import OPEN
from recovery.inspect.status import status
from recovery.ops.remove import ENDED
from recovery.text import count

CANCEL_MORE = """\b
A run that no process has is ended at once, and its child runs with it. A
live one ends at the next thing that its agent does; a tool at work is not cut
short. Nothing is undone: for that, recovery undo.

\b
exit codes:
  0    ended, or (a live one) asked to end
  1    refused: it has ended, and left no child run; or you said no

\b
examples:
  recovery cancel run_001 --why "the customer has left"
  recovery cancel run_001 --yes --who deploy
"""
ACCEPT_MORE = """\b
For a run that stops with a DivergenceError, because its code is not what it
was. From the difference on the history of the new code counts. What is
dropped stays done in the outside world: recovery show says what differs.
Refused if the run has not diverged, so run it with the new code first. Holds
for one divergence. A call in doubt has to be resolved first.

\b
exit codes:
  0    recorded, durably
  1    refused: it has ended or not diverged; or you said no

\b
examples:
  recovery accept run_001 --why "the new prompt is meant"
"""


def command(
    run: RunId,
    why: Why = "",
    who: Who = None,
    yes: Yes = False,
    sign: SignWith = None,
    store: StoreOption = None,
    key_file: KeyFile = None,
) -> None:
    """End a run, for good. Says what is in doubt, and asks."""
    with ends_politely():
        runs = store_of(run, store, key_file)
        one = known(runs, run)
        if one.in_doubt:
            names = ", ".join(call.name for call in one.in_doubt)
            say(f"in doubt, and will stay so: {names}")
        open_ones = [child for child in children_known(runs, run) if child.state == "open"]
        if open_ones and one.state not in ENDED:
            say(f"{count(len(open_ones), 'child run')} will end with it")
        confirm(f"End run {run} ({one.state}, step {one.progress.step})?", yes)
        cancel(runs, run, who=who_or_login(who), why=why, sign=signer(sign))
        after = status(runs, run)
        if one.state == "cancelled":
            say(f"run {run}: it had been cancelled before; the child runs that it had left end now")
        elif after.state == "cancelled":
            say(f"run {run}: {one.state} -> cancelled")
        else:
            say(f"run {run}: asked to end; {after.owner} has it, and ends it")


def accepted(
    run: RunId,
    why: Why = "",
    who: Who = None,
    yes: Yes = False,
    store: StoreOption = None,
    key_file: KeyFile = None,
) -> None:
    """Let a run continue though its code does not do what is recorded."""
    with ends_politely():
        runs = store_of(run, store, key_file)
        one = known(runs, run)
        is_open = one.state in OPEN
        # The error of a child run is recorded by its parent.
        if is_open and not (one.diverged or one.inbox_damage or one.parent):
            raise RecoveryError(
                f"run {run!r} did not stop by a divergence when it was last run, so there is none "
                "to accept. Nothing was written. Run it with the new code, and read what differs"
            )
        confirm(f"Let run {run} diverge from its record, once?", yes)
        accept(runs, run, who=who_or_login(who), why=why)
        say(f"run {run}: it may diverge once")
        hint([resume_command(runs, run, store, key_file)])
