"""``logdump diff``: shows what two runs did differently."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from typing import Annotated, Any

import typer

from logdump.context import Context, LogPath, UsageError
from logdump.diff.screen import Screen
from logdump.places import beside
from logdump.show import as_line
from recovery import RecoveryError
from recovery.cli.progress import working
from recovery.cli.store_options import AsJson, KeyFile, Redact, StoreOption
from recovery.history.first_record import started_of
from recovery.inspect.compare import ComparedRun, compared, outline_both
from recovery.inspect.differences import Ended, FoundDifference, RunComparison, Side, rendered
from recovery.inspect.outline import RunOutline
from recovery.journal.encoding import decode_shallow
from recovery.journal.forked_from import ForkedFrom
from recovery.stores.protocol import check_run_id
from recovery.values.diff import ABSENT
from recovery.values.render import HIDDEN, Redaction, Term

MORE = """\
"-" is what the first run has, "+" what the second one has; in texts, what differs is between
[- -] and {+ +}. LSNs are those of the first and of the second log. What a fork began with is
compared as the state and messages of that step. Memory grows with the number of calls, not with
their values.

\b
--json prints a line each: "runs", every "difference" ("step", "what", "call",
"path", "a", "b", "lsn_a", "lsn_b"; "a" or "b" is not there where that run has
nothing), "summary" ("differences", "alike": calls that both made alike).

\b
exit code: 0 alike, 1 different; 2 is added when damage was found, which
cannot be compared (a torn tail is none); 64 and above: it could not compare

\b
examples:
  logdump diff ~/.eventlog/run_001 ~/.eventlog/run_002
  logdump diff ~/.eventlog/run_001_fork
  logdump diff --all --redact 'password' a/run_001 b/run_001
  logdump diff --json a b | jq 'select(.what == "arguments")'"""

DIFFERENT, DAMAGE = 1, 2
SHOWN = 10  # differences, unless all are asked for
PATHS_MAX = 30  # differing paths shown of two values
_NAMES = re.compile(r"[^.\[\]]+")


Other = Annotated[
    str | None,
    typer.Argument(metavar="[OTHER]", help="The other one; without it, PATH is a fork."),
]
All = Annotated[bool, typer.Option("--all", help=f"All differences, not the first {SHOWN} alone.")]


def command(
    path: LogPath,
    other: Other = None,
    every: All = False,
    redact: Redact = None,
    store: StoreOption = None,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> int:
    """Show what two runs did differently.

    The first divergence comes first, then the others. Of a fork alone: what it did differently
    than its origin.

    Calls are matched by what they are, so the order of concurrent ones is no difference, nor are
    times. Arguments, outcomes, messages and states are compared value by value; arguments that
    were recorded by digest, by digest.
    """
    return _run(Context(locals()))


def _run(context: Context) -> int:
    paths = _paths(context)
    with ExitStack() as stack:
        readers = [stack.enter_context(context.read(path)) for path in paths]
        with working("reading the runs"):
            outlines = outline_both(*zip(readers, paths, strict=True))
        comparing = RunComparison(*outlines, rendered, PATHS_MAX)
        for run in (comparing.a, comparing.b):
            _check(run)
        count = (
            _print_json(context, comparing) if context.args.as_json else _draw(context, comparing)
        )
        damage = comparing.a.damage or comparing.b.damage
    return (DIFFERENT if count else 0) | (DAMAGE if damage else 0)


def _paths(context: Context) -> list[str]:
    args = context.args
    if args.other is not None:
        return [args.path, context.found(args.other)]
    with context.read() as reader:
        origin = ForkedFrom.of(started_of(reader, decode_shallow))
    if origin is None:
        raise UsageError(f"{args.path} is no fork: name the run to compare it with")
    try:
        check_run_id(origin.run_id)  # it comes from a log, and becomes part of a path
    except ValueError as exc:
        raise RecoveryError(f"{args.path}: the run it was forked from: {exc}") from None
    return [beside(args.path, origin.run_id), args.path]


def _check(run: RunOutline) -> None:
    if not run.started_lsn and not run.steps and not run.damage:
        raise RecoveryError(f"{run.run_id}: no agent has run in this log")


def _draw(context: Context, comparing: RunComparison) -> int:
    screen = Screen(context.console, comparing)
    found = (hidden(one, context.redaction) for one in comparing.found())
    screen.head()
    for one in found if context.args.every else islice(found, SHOWN):
        screen.show(one)
    left = sum(1 for _ in found)
    screen.end(left)
    return screen.shown + left


# -- as JSON


def _print_json(context: Context, comparing: RunComparison) -> int:
    runs = {
        name: run_object(compared(run)) for name, run in (("a", comparing.a), ("b", comparing.b))
    }
    context.print(as_line({"type": "runs", **runs, "since": comparing.from_step}))
    count = 0
    for count, one in enumerate(comparing.found(), 1):  # noqa: B007 - how many there were
        context.print(as_line(difference_object(hidden(one, context.redaction))))
    context.print(as_line({"type": "summary", "differences": count, "alike": comparing.alike}))
    return count


def run_object(run: ComparedRun) -> dict[str, Any]:
    """A run that was compared."""
    link = run.forked_from
    return {
        "run": run.run_id,
        "steps": run.steps,
        "calls": run.calls,
        "end": run.end,
        "since": run.since,
        "damage": list(run.damage),
        "forked_from": None
        if link is None
        else {"run_id": link.run_id, "step": link.step, "lsn": link.lsn},
    }


def difference_object(one: FoundDifference) -> dict[str, Any]:
    """A difference."""
    found: dict[str, Any] = {
        "type": "difference",
        "step": one.step,
        "what": one.what,
        "call": one.name,
        "path": one.path,
    }
    for name, side in (("a", one.a), ("b", one.b)):
        if side is not None and side.value is not ABSENT:
            found[name] = side.value
        found[f"lsn_{name}"] = side.lsn if side is not None else 0
    return found


# -- secrets


def hidden(one: FoundDifference, redaction: Redaction) -> FoundDifference:
    """The difference without values that must not be shown."""
    names = [one.what, *_tools(one.name), *_NAMES.findall(one.path)]
    hide = any(map(redaction.hides, names))
    sides = [_hidden(side, redaction, hide) for side in (one.a, one.b)]
    return replace(one, a=sides[0], b=sides[1])


def _tools(name: str) -> Iterator[str]:
    """The tools in the name of a call, which may be inside another one."""
    for part in name.split(" > "):
        yield part.partition(" ")[0]


def _hidden(side: Side | None, redaction: Redaction, hide: bool) -> Side | None:
    if side is None or side.value is ABSENT:
        return side
    value = Term(HIDDEN) if hide else redaction.shown(side.value)
    if isinstance(side.value, Ended) and type(value) is dict:
        value = Ended(value)
    return replace(side, value=value)
