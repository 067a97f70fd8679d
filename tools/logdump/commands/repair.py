"""``logdump repair``: keeps sound records, marks lost ones, and makes a backup first."""

from __future__ import annotations

import os
import shlex
from typing import Annotated

import typer

from eventlog import LogLockedError, LogReader
from eventlog.dump import Json
from eventlog.repair import RepairPlan, plan, repair
from logdump.context import Context, LogPath, UsageError
from logdump.show import as_line, finding_line
from logdump.verify.consequences import HOPELESS
from logdump.verify.verify import meaning_of, run_in
from recovery.cli.store_options import AsJson, KeyFile, Redact, StoreOption, Who, Why
from recovery.cli.who import who_or_login
from recovery.history.store_url import is_url
from recovery.text import count, printable, size

MORE = """\
Without --apply nothing is changed. Use it on logs of dead agents only: the end of a live
log may look damaged. With --apply the command holds the log as its writer does; it refuses while
an agent runs the log. It asks no questions. If it is interrupted, run it again: it continues.
Files of another log, files that are no log, and newer versions are refused: move them away first.

The inbox of a run is a log of its own: repair PATH/inbox. To undo a repair, put the copy back;
the command says how.

\b
--json prints one object: "type" ("repair"), "path", "needed", "applied",
"findings" (as of verify, with "consequence" and "calls"), "segments" (those
that are rewritten: "segment", "missing", "kept", "lost"), "lost" (pairs of
LSNs), "unfinished" (the same, of a repair that was interrupted), "kept",
"torn_size", "backup", "undo".

\b
exit code: 0 sound, or repaired; without --apply the bits of verify for the
damage; 32 cannot be repaired

\b
examples:
  logdump repair ~/.eventlog/run_001
  logdump repair --apply --why 'bad disk' ~/.eventlog/run_001
  logdump repair --apply --key-file keys.txt ~/.eventlog/run_001"""


Apply = Annotated[bool, typer.Option("--apply", help="Do it; else it is only said.")]


def command(
    path: LogPath,
    apply: Apply = False,
    who: Who = None,
    why: Why = "",
    redact: Redact = None,
    store: StoreOption = None,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> int:
    """Mark what is lost, so that a run can resume; makes a backup.

    Without --apply it only says what a repair would do. Sound records stay as they are. Each lost
    record is replaced by a placeholder that says so. Then the log can be read without a gap, and
    its run can be resumed: calls that may have been lost are in doubt, never taken for not made.
    First the whole directory is copied to PATH.~1~ beside it.
    """
    return _run(Context(locals()))


def _run(context: Context) -> int:
    args = context.args
    meanings: list[tuple[str, list[str]]] = []
    if is_url(args.path):
        raise UsageError(
            "a log on a server is repaired as files: recovery copy RUN --to DIRECTORY, then "
            "logdump repair there, then recovery copy it back under another id. Nothing was done"
        )
    with context.read() as reader:
        owner = reader.owner()
        if owner is not None and owner.alive:
            raise LogLockedError(args.path, owner.pid, owner.host, owner.since)
        found = plan(reader)
        if found.needed:
            meanings = _meanings(context, reader, found)
    if args.apply and found.needed:
        found = repair(
            args.path, who=who_or_login(args.who), why=args.why, encryption=context.encryption
        )
    show = _show_json if args.as_json else _show
    show(context, found, meanings)
    if found.lsn or not found.needed:
        return 0
    bits = 0
    for finding in found.findings:
        bits |= finding.bit
    return bits or 2  # an interrupted repair has left no other damage


def _meanings(
    context: Context, reader: LogReader, found: RepairPlan
) -> list[tuple[str, list[str]]]:
    """For each finding its consequence for recovery, and the calls that become in doubt."""
    path = context.args.path
    meaning = meaning_of(reader, path, found.findings, run_in(reader, path))
    if meaning is None:
        return [("", []) for _ in found.findings]
    return [
        (meaning.of(one), [call.name for call in meaning.calls_hit(one)]) for one in found.findings
    ]


def _show(context: Context, found: RepairPlan, meanings: list[tuple[str, list[str]]]) -> None:
    path, done = printable(found.path), found.lsn > 0
    if not found.needed:
        context.print_prose(f"{path}: nothing to repair")
        if found.torn_size:
            context.print_prose(
                f"a torn tail of {size(found.torn_size)}, never acknowledged, is cut off "
                "by the next opening"
            )
        return
    for finding, (consequence, _) in zip(found.findings, meanings, strict=False):
        context.print_prose(finding_line(finding))
        if consequence and finding.bit > 1 and (not done or consequence == HOPELESS):
            context.print_prose(f"  {printable(consequence)}")
    for one in found.segments:
        what = "made" if one.missing else "made anew"
        lost = f", {', '.join(map(str, one.lost))} marked as lost" if one.lost else ""
        context.print_prose(
            f"{one.segment:08d}.seg {'was' if done else 'will be'} {what}: "
            f"{count(one.kept, 'record')} kept{lost}"
        )
    if found.unfinished:
        lost = ", ".join(map(str, found.unfinished))
        context.print_prose(
            f"a repair was interrupted, which had marked {lost} as lost: "
            f"{'finished' if done else 'will be finished'}"
        )
    if found.torn_size:
        context.print_prose(
            f"{size(found.torn_size)} of torn tail, never acknowledged, "
            f"{'were' if done else 'will be'} cut off"
        )
    lost_text = f"{count(found.kept, 'record')} kept, {found.lost_count:,} lost"
    backup = printable(shlex.quote(found.backup))
    if not done:
        context.print_prose(f"{path}: {lost_text}. The log as it is will be copied to {backup}.")
        key = " and the key (--key-file)" if found.encrypted and not context.encryption else ""
        context.print_prose(f"Nothing was changed. With --apply{key} it is done.")
        if all(consequence != HOPELESS for consequence, _ in meanings):
            context.print(_next(context, f"logdump repair --apply {shlex.quote(found.path)}"))
        return
    context.print_prose(
        f"{path}: repaired, {lost_text} (said in LSN {found.lsn}). The log as it was: {backup}"
    )
    context.print_prose(f"to undo: {printable(_undo(found))}")
    if any(consequence for consequence, _ in meanings):  # of a run
        home, run = os.path.split(os.path.realpath(found.path))
        show = f"recovery show {shlex.quote(run)} --store {shlex.quote(home)}"
        context.print(_next(context, show))


def _next(context: Context, command: str) -> str:
    """The next command, not folded."""
    key = context.args.key_file
    return f"next: {printable(command)}" + (f" --key-file {shlex.quote(key)}" if key else "")


def _show_json(context: Context, found: RepairPlan, meanings: list[tuple[str, list[str]]]) -> None:
    findings: list[Json] = []
    for finding, (consequence, calls) in zip(found.findings, meanings, strict=False):
        named: list[Json] = [*calls]
        findings.append({**finding.as_json(), "consequence": consequence, "calls": named})
    segments: list[Json] = [
        {
            "segment": one.segment,
            "missing": one.missing,
            "kept": one.kept,
            "lost": [[loss.first_lsn, loss.last_lsn] for loss in one.lost],
        }
        for one in found.segments
    ]
    item: dict[str, Json] = {
        "type": "repair",
        "path": found.path,
        "needed": found.needed,
        "applied": found.lsn > 0,
        "findings": findings,
        "segments": segments,
        "lost": [[loss.first_lsn, loss.last_lsn] for loss in found.lost],
        "unfinished": [[loss.first_lsn, loss.last_lsn] for loss in found.unfinished],
        "kept": found.kept,
        "torn_size": found.torn_size,
        "backup": found.backup if found.needed else "",
        "undo": _undo(found) if found.lsn else "",
    }
    context.print(as_line(item))


def _undo(done: RepairPlan) -> str:
    """The shell command that restores the log as it was."""
    path = os.path.realpath(done.path)
    aside, words = shlex.quote(f"{path}.~repaired~"), shlex.quote(path)
    return f"mv {words} {aside} && mv {shlex.quote(done.backup)} {words}"
