"""``recovery approve`` and ``recovery deny``: decide about calls that await approval."""

from __future__ import annotations

from recovery.cli.call_argument import meant
from recovery.cli.commands.show import resume_command
from recovery.cli.status_view import arguments
from recovery.cli.store_options import (
    CallName,
    KeyFile,
    Redact,
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
from recovery.control.send import approve, deny
from recovery.values.render import Redaction

MORE = """\b
The decision is about exactly this call with these arguments, which are shown
whole. An approval is confirmed at a terminal; elsewhere it needs --yes. Of
several decisions the last one before the call begins counts. A run that no
process has continues when it is resumed; a live one by itself.

\b
exit codes:
  0    recorded, durably
  1    refused: the call does not await approval (any more); or you said no

\b
examples:
  recovery approve run_001 dad55780 --why "as agreed with Ann"
  recovery approve run_001 dad55780 --yes --who ann --sign ~/.ssh/id_ed25519
  recovery deny run_001 charge#38 --why "too expensive" --who bob
"""


def yes(
    run: RunId,
    call: CallName,
    who: Who = None,
    why: Why = "",
    yes: Yes = False,
    sign: SignWith = None,
    store: StoreOption = None,
    key_file: KeyFile = None,
    redact: Redact = None,
) -> None:
    """Approve a call that awaits approval. Shows it, and asks."""
    _decide(yes, run, call, (who, why, sign), (store, key_file), redact)


def no(
    run: RunId,
    call: CallName,
    who: Who = None,
    why: Why = "",
    yes: Yes = False,
    sign: SignWith = None,
    store: StoreOption = None,
    key_file: KeyFile = None,
    redact: Redact = None,
) -> None:
    """Deny a call that awaits approval: its agent gets an ApprovalDeniedError."""
    del yes  # it asks nothing: scripts may say it to each command that decides
    _decide(None, run, call, (who, why, sign), (store, key_file), redact)


def _decide(
    is_asked: bool | None,
    run: str,
    name: str,
    said: tuple[str | None, str, str | None],
    where: tuple[str | None, str | None],
    redact: list[str] | None,
) -> None:
    """``is_asked``: an approval, confirmed (--yes) or to be confirmed; None: a denial."""
    with ends_politely():
        runs = store_of(run, *where)
        one = known(runs, run)
        asking = [call for call in one.calls if call.state == "asks"]
        # By its key from here on: it is the shown call, also if another run gets this name.
        call = meant(runs, one, name, asking)
        found = next((other for other in asking if other.idempotency_key == call), None)
        who, why, key_file = said
        if found is not None:
            say(f"{found.name}: {found.tool}{arguments(found, Redaction(redact or ()))}")
            if is_asked is not None:
                confirm(f"Approve exactly this call of run {run}?", is_asked)
        decide = deny if is_asked is None else approve
        decide(runs, run, call, who=who_or_login(who), why=why, sign=signer(key_file))
        shown = call if found is None else found.name
        say(f"{shown} of run {run}: asks -> {'denied' if is_asked is None else 'approved'}")
        if one.state != "running":
            hint([resume_command(runs, run, *where)])
