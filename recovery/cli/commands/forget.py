"""``recovery forget``: destroy the key of a subject."""

from __future__ import annotations

from typing import Annotated

import typer

from eventlog import LogError
from recovery import RecoveryError
from recovery.cli.exit_codes import FOUND, USAGE
from recovery.cli.store_options import KeyFile, StoreOption, Yes, open_store
from recovery.cli.terminal import complain, confirm, ends_politely, say
from recovery.cli.who import in_words
from recovery.text import count, printable

MORE = """\b
What runs have recorded of a subject is encrypted with the subject's own key
(@tool(subject=...), RecoverableAgent(subject=...)). Without the key no one
can read it again: not in logs, checkpoints and exports of runs, and not in
copies of them. Logs stay whole, and all checksums fit.
Not reached are backups of the keys (the directory .subjects of the store),
other stores to which `recovery copy` has taken them, and what was recorded
without a subject.

\b
exit codes:
  0    forgotten, or would be (--dry-run)
  1    refused, or no such subject: nothing was changed

\b
examples:
  recovery forget --list
  recovery forget customer-17 --dry-run
  recovery forget customer-17 --yes
"""

Subject = Annotated[
    str | None, typer.Argument(metavar="SUBJECT", help="The id of a subject.", show_default=False)
]
List = Annotated[bool, typer.Option("--list", help="Print the subjects that have a key.")]
Force = Annotated[
    bool, typer.Option("--force", help="Also if a process has a run of the subject: it stops.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say which runs are concerned.")]


def command(
    subject: Subject = None,
    store: StoreOption = None,
    list_all: List = False,
    force: Force = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    key_file: KeyFile = None,
) -> None:
    """Destroy the key of a subject: no one can read its values again."""
    with ends_politely():
        if (subject is None) != list_all:
            raise complain("give a SUBJECT, or --list", USAGE)
        runs = open_store(store, key_file)
        try:
            if subject is None:
                found = runs.subjects()
                say("\n".join(map(printable, found)) or "no subject has a key")
                return
            would = runs.forget(subject, dry_run=True)
            if would is None:
                raise complain(f"there is no key of subject {printable(subject)}", FOUND)
            say(f"{count(len(would.runs), 'run')} with values of {printable(subject)}:")
            for run_id in would.runs:
                say(f"  {printable(run_id)}")
            if would.unread:
                say(f"not read, because damaged: {', '.join(map(printable, would.unread))}")
            if dry_run:
                return
            confirm("Destroy the key? No one can read these values again.", yes)
            runs.forget(subject, force=force)
        except (RecoveryError, LogError) as exc:
            raise complain(in_words(exc).replace("force=True", "--force"), FOUND) from None
        names = ", ".join(key.hex()[:8] for key in would.keys)
        say(f"forgotten: key {names} is destroyed")
