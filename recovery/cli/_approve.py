"""``recovery approve`` and ``recovery deny``: calls that ask somebody before they begin."""

from __future__ import annotations

from recovery import approve, deny
from recovery._readable import Redaction
from recovery.cli._calls import lsn_of
from recovery.cli._show import commands_for
from recovery.cli._status import arguments
from recovery.cli._store import (
    CallName,
    KeyFile,
    Redact,
    RunId,
    StoreOption,
    Who,
    Why,
    known,
    store_of,
)
from recovery.cli._terminal import ends_politely, say
from recovery.cli._who import who_or_login

MORE = """\b
The decision is about exactly this call with these arguments. Of several the
last one counts that is there when the call is about to begin. A run that no
process has goes on when it is run again; a live one by itself.

\b
exit codes:
  0    recorded, durably
  1    refused: the call does not wait for approval (any more)
  2    wrong usage

\b
examples:
  recovery approve run_001 charge#38 --why "as agreed with Ann"
  recovery deny run_001 38 --why "too expensive" --who bob
"""


def yes(
    run: RunId,
    call: CallName,
    who: Who = None,
    why: Why = "",
    store: StoreOption = None,
    key_file: KeyFile = None,
    redact: Redact = None,
) -> None:
    """Say yes to a call that waits for approval."""
    _decide(True, run, call, (who, why), (store, key_file), redact)


def no(
    run: RunId,
    call: CallName,
    who: Who = None,
    why: Why = "",
    store: StoreOption = None,
    key_file: KeyFile = None,
    redact: Redact = None,
) -> None:
    """Say no to a call that waits for approval: its agent gets an ApprovalDeniedError."""
    _decide(False, run, call, (who, why), (store, key_file), redact)


def _decide(
    is_yes: bool, run: str, name: str, said: tuple[str | None, str],
    where: tuple[str | None, str | None], redact: list[str] | None,
) -> None:  # fmt: skip
    with ends_politely():
        runs = store_of(run, *where)
        one = known(runs, run)
        asking = [call for call in one.calls if call.state == "asks"]
        lsn = lsn_of(runs, run, name, asking)
        who, why = said
        decide = approve if is_yes else deny
        decide(runs, run, lsn, who=who_or_login(who), why=why)
        shown = next((f"{call.name}{arguments(call, Redaction(redact or ()))}"
                      for call in asking if call.lsn == lsn), str(lsn))  # fmt: skip
        say(f"{shown} of run {run}: asks -> {'approved' if is_yes else 'denied'}")
        if one.state != "running":
            say("next: " + commands_for(runs, run, where[0]).resume())
