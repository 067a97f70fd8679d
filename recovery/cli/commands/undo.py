"""``recovery undo``: abort a run, and undo what it did."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Annotated, Any

import typer

from recovery import InDoubtError
from recovery.agent.undo_run import undo, undoing
from recovery.cli.commands.show import commands_for
from recovery.cli.event_lines import called_with
from recovery.cli.exit_codes import FOUND
from recovery.cli.store_options import (
    AsJson,
    KeyFile,
    Redact,
    RunId,
    StoreOption,
    Who,
    Why,
    Yes,
    named,
    store_of,
)
from recovery.cli.terminal import complain, confirm, ends_politely, hint, say, show_json
from recovery.cli.who import who_or_login
from recovery.declare.spec import ToolSpec
from recovery.inspect.status import status
from recovery.replay.recorded_call import RecordedCall
from recovery.values.pack import pack
from recovery.values.render import Redaction, readable

MORE = """\b
Each call whose tool names an undo= and that took effect is undone, the
newest first. The run cannot be resumed afterwards. After a crash, a failure,
or a call in doubt that was resolved, run the same command again to continue.

\b
exit codes:
  0    undone (or would be: --dry-run)
  1    refused, or not wholly undone: standard error says what is left

\b
examples:
  recovery undo run_001 --tools trips --dry-run
  recovery undo run_001 --tools trips --why "the customer has cancelled"
  recovery undo run_001 --tools trips:hold_seat --tools hotels --yes --json
"""

Tools = Annotated[
    list[str] | None,
    typer.Option(
        metavar="MODULE[:NAME]",
        help="Where the tools are that it has called, each with its undo=. Repeatable.",
        show_default=False,
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be undone.")]


def command(
    run: RunId,
    tools: Tools = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    why: Why = "",
    who: Who = None,
    store: StoreOption = None,
    key_file: KeyFile = None,
    redact: Redact = None,
    as_json: AsJson = False,
) -> None:
    """Abort a run and undo its calls. Says which, and asks."""
    with ends_politely():
        if not (tools or dry_run):
            raise ValueError("say with --tools MODULE where the tools are, or only --dry-run")
        known = [tool for name in tools or () for tool in _tools(name)]
        runs = store_of(run, store, key_file, reading=dry_run)
        redaction = Redaction(redact or ())
        todo, in_doubt = undoing(runs, run)
        if not as_json:
            _tell(todo, in_doubt, redaction)
        if dry_run:
            if as_json:
                show_json([_json(one) for one in todo])
            return
        confirm(f"Abort run {run}, and undo that?", yes)
        try:
            done = undo(runs, run, tools=list(dict.fromkeys(known)), who=who_or_login(who), why=why)
        except InDoubtError as exc:
            lines = "\n".join(f"  {call}" for call in exc.calls)
            ended = complain(
                f"it is unknown whether this took effect:\n{lines}\nFind out, resolve it, "
                "and undo the run again.",
                FOUND,
            )
            commands = commands_for(runs, run, store, key_file)
            commands.signed = status(runs, run).signed
            keys = [call.idempotency_key for call in exc.calls]
            hint([line for key in keys for line in commands.resolve(key)], err=True)
            raise ended from None
        if as_json:
            return show_json([one | {"result": _readable(one, redaction)} for one in done])
        for one in done:
            say(f"undone: {one['tool']}#{one['call']}")
        say(f"run {run}: aborted" + ("" if done else "; there was nothing to undo"))


def _tell(todo: list[RecordedCall], in_doubt: list[RecordedCall], redaction: Redaction) -> None:
    for label, calls in (("in doubt", in_doubt), ("to undo", todo)):
        for one in calls:
            intent = one.intent
            shown = called_with(intent.args, intent.size, intent.tool, redaction)
            say(f"{label}: {intent.tool}#{one.lsn}{shown}, by {intent.undo}")
    if not (todo or in_doubt):
        say("nothing to undo")


def _json(one: RecordedCall) -> dict[str, Any]:
    return {
        "call": one.lsn,
        "tool": one.intent.tool,
        "call_id": one.intent.call_id,
        "undo": one.intent.undo,
    }


def _readable(one: dict[str, Any], redaction: Redaction) -> Any:
    return redaction.shown(readable(pack(one["result"], "result")), one["tool"])


def _tools(name: str) -> list[Callable[..., Any]]:
    """The tools with an ``undo=`` in a module, or the one that is named."""
    found = named(name)
    members = vars(found).values() if isinstance(found, ModuleType) else [found]
    specs = [(one, getattr(one, "tool_spec", None)) for one in members]
    tools = [one for one, spec in specs if isinstance(spec, ToolSpec) and spec.undo]
    if not tools:
        raise ValueError(f"--tools {name}: there is no tool with undo= in it")
    return tools
