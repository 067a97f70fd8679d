"""``recovery resume``: run an agent on an existing run, until it ends or parks."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from shlex import quote
from typing import Annotated, Any

import typer

from eventlog import LogError, LogLockedError
from recovery import CheckpointStore, InDoubtError, RecoverableAgent, RecoveryError, RunResult
from recovery.cli.agents import Agents
from recovery.cli.commands.show import commands_for, no_agent
from recovery.cli.exit_codes import FOUND, INTERRUPTED, OK, USAGE
from recovery.cli.next_steps import Commands
from recovery.cli.store_options import (
    AsJson,
    KeyFile,
    OneRun,
    Redact,
    StoreOption,
    Yes,
    check_there,
    known,
)
from recovery.cli.streams import where_of
from recovery.cli.terminal import (
    because,
    complain,
    confirm,
    ends_politely,
    hint,
    note,
    say,
    show_json,
    their_own,
)
from recovery.errors import CHOICES, DivergenceError, StoppedError
from recovery.inspect.states import BROKEN, OPEN
from recovery.inspect.status import status
from recovery.journal.user_code import traceback_of
from recovery.reports import RecoveryReport, RunStatus
from recovery.text import count, printable, printable_lines
from recovery.values.pack import pack
from recovery.values.render import Redaction, readable, short

MORE = """\b
The agent is searched in the present directory, then among installed packages:
a RecoverableAgent, an agent function (of a run), a dict or list of these, or
a function without parameters that makes one of these. Of several, each run
has its own. Its task is the recorded one. A RecoverableAgent keeps its own
store, unless --store names another.

--due and --all-unfinished resume runs one after the other. They skip runs
that a process has, child runs (their parents resume them), conversations and
runs of other agents. A run that only waits parks after five seconds, or
after the agent's park_after_s=.

Ctrl-C, or SIGTERM, stops it at its next safe point, where nothing gets in
doubt; a second one ends it at once, as a crash would.

\b
exit codes:
  0    finished: its result is printed, its report on standard error
  1    it failed, or is parked: why, and what to do, on standard error; of
       several, one did, or its log is damaged or unreadable
  130  stopped by Ctrl-C; it can be resumed

\b
examples:
  recovery resume run_001 --agent trips:agent
  recovery resume run_001 --agent trips:book_trip --store ./runs --json
  recovery resume run_001 --agent trips:agent --takeover
  recovery resume --due --agent trips:agent            # in a cron job
"""

Agent = Annotated[
    str | None,
    typer.Option("--agent", metavar="MODULE:NAME", help="The agents.", show_default=False),
]
Due = Annotated[
    bool,
    typer.Option("--due", help="All runs that would continue: recovery runs --due lists them."),
]
AllUnfinished = Annotated[
    bool, typer.Option("--all-unfinished", help="All runs that no process has and that can end.")
]
Match = Annotated[str, typer.Option(metavar="TEXT", help="Of these, those with this in their id.")]
TakeOver = Annotated[
    bool,
    typer.Option("--takeover", help="Take the run from a process that is known to be stuck. Asks."),
]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="What the library logs, on standard error.")
]


def command(
    agent: Agent = None,
    run: OneRun = None,
    due: Due = False,
    all_unfinished: AllUnfinished = False,
    match: Match = "",
    takeover: TakeOver = False,
    yes: Yes = False,
    verbose: Verbose = False,
    store: StoreOption = None,
    key_file: KeyFile = None,
    redact: Redact = None,
    as_json: AsJson = False,
) -> None:
    """Run an agent on an existing run, from where it stopped; or on several."""
    with ends_politely(), logged(logging.INFO if verbose else logging.WARNING):
        if (run is not None) + due + all_unfinished != 1:
            raise ValueError("say RUN, or --due, or --all-unfinished")
        if agent is None:
            if run is None:
                raise complain("say --agent MODULE:NAME", USAGE)
            raise no_agent("resume", run, store, key_file)
        agents = Agents(agent, store, key_file)

        def resume(one: RunStatus, by: RecoverableAgent) -> None:
            if one.crash_loop:
                note(f"{one.crash_loop}, without an error. recovery show {one.run_id} says more")
            commands = commands_for(agents.store, one.run_id, store, key_file)
            commands.agent = quote(agent)
            ended = _resumed(by, one.run_id, takeover, commands)
            _show(one.run_id, ended, Redaction(redact or ()), as_json)

        if run is None:
            if takeover:
                raise ValueError("--takeover is about one RUN")
            runs = agents.store.runs(
                state=("submitted", *OPEN) if due else (*OPEN, *BROKEN), due=due
            )
            return _resume_all([one for one in runs if match in one.run_id], agents, resume)
        check_there(agents.store, run)
        one = known(agents.store, run)
        by = agents.get(one)
        if takeover:
            _ask(one, yes)
        resume(one, by)


def _resume_all(
    runs: list[RunStatus], agents: Agents, resume: Callable[[RunStatus, RecoverableAgent], None]
) -> None:
    """Resume runs one after the other, whatever becomes of the others. Children are resumed by
    their parents, and conversations by their programs."""
    codes = []
    broken = False
    for one in sorted(runs, key=lambda one: one.crashes):  # what kills processes comes last
        if one.kind != "agent" or one.parent is not None:
            continue
        by = agents.find(one)
        if by is None:
            if one.state != "submitted":
                typer.echo(f"run {one.run_id}: skipped, it is of {printable(one.agent)}", err=True)
            continue
        if one.state in BROKEN:
            typer.echo(
                f"run {one.run_id}: skipped, its log is {one.state}: recovery show", err=True
            )
            broken = True
            continue
        typer.echo(f"run {one.run_id}:", err=True)
        try:
            resume(one, by)
        except typer.Exit as exc:
            if exc.exit_code == INTERRUPTED:
                raise
            codes.append(exc.exit_code)
        except LogLockedError:
            pass  # a process has it since
        else:
            codes.append(OK)
    finished = codes.count(OK)
    typer.echo(f"{count(len(codes), 'run')} resumed, {finished:,} finished", err=True)
    raise typer.Exit(OK if finished == len(codes) and not broken else FOUND)


def _show(run: str, ended: RunResult, redaction: Redaction, as_json: bool) -> None:
    value = redaction.shown(readable(pack(ended["result"], "result")), "result")
    if as_json:
        return show_json(
            {
                "run_id": run,
                "result": value,
                "recovery_count": ended["recovery_count"],
                "recovered_from_step": ended["recovered_from_step"],
                "report": _report(ended["report"]),
            }
        )
    say(short(value, None))
    typer.echo(printable_lines(str(ended["report"])), err=True)


def _report(report: RecoveryReport) -> dict[str, Any]:
    """The report as JSON."""
    plain = asdict(report)
    return plain | {"damage": [str(one) for one in report.damage]}


def _ask(one: RunStatus, yes: bool) -> None:
    if one.owner is not None and one.owner.alive:
        confirm(
            f"{one.owner}, has run {one.run_id}. What it writes from now on will not count, but "
            "what its agent does in the outside world at this moment may be done once more. Is it "
            "stuck, so that the run is to be taken from it?",
            yes,
        )


# -- its going


def _resumed(agent: RecoverableAgent, run: str, takeover: bool, commands: Commands) -> RunResult:
    """The result of the agent; else an error that says why, and what to do."""
    with _stoppable(agent.stop) as asked:
        try:
            return agent.resume_sync(run, takeover=takeover)
        except LogLockedError:
            raise
        except StoppedError as exc:
            ended = complain(str(exc), INTERRUPTED if asked else FOUND)
            todo = [commands.resume()]
        except DivergenceError as exc:
            ended = complain(str(exc).partition(f"\n{CHOICES}")[0], FOUND)
            todo = commands.next(status(agent.store, run))
            todo = todo if exc.in_doubt else commands.of_divergence(exc.step)
        except (RecoveryError, LogError) as exc:
            ended = complain(_in_doubt(exc) if type(exc) is InDoubtError else str(exc), FOUND)
            todo = commands.next(status(agent.store, run))
        except Exception as exc:
            if failed := _store_failed(exc, agent.store):
                ended, todo = failed, [commands.resume()]
            else:
                ended = their_own(exc, f"run {run}: its agent raised this. The record stays")
                todo = commands.next(status(agent.store, run))
    hint(todo, err=True)
    raise ended


def _in_doubt(exc: InDoubtError) -> str:
    lines = "\n".join(f"  {call}" for call in exc.calls)
    return (
        f"run {exc.run_id!r} is parked: it is unknown whether this took effect.\n{lines}\n"
        "Nothing was executed. Find out, and resolve it; then resume the run."
    )


def _store_failed(exc: Exception, store: CheckpointStore) -> typer.Exit | None:
    """Report a failure of the store's disk, which is not the agent's."""
    root = getattr(store.backend, "root", None)
    if root is None or not isinstance(exc, OSError) or not where_of(exc).startswith(f"{root}/"):
        return None
    return complain(
        f"{because(exc)}. That was the store, not the agent: every record stays. Remove the "
        "cause (free space, check the disk, let it be written to); then resume it.",
        FOUND,
    )


@contextmanager
def _stoppable(stop: Callable[[str], None]) -> Iterator[list[int]]:
    """While the block runs, the first Ctrl-C or SIGTERM stops the agent, a second ends the process.

    Yields the list of signals that came.
    """
    came: list[int] = []
    stopping = signal.SIGINT, signal.SIGTERM

    def handle(number: int, frame: object) -> None:
        came.append(number)
        for one in stopping:
            # The second one ends the process by the system: Python would wait for code that does
            # not return, and the agent may catch an exception. The record survives a sudden death.
            signal.signal(one, signal.SIG_DFL)
        os.write(2, b"recovery: stopping at the next safe point; once more ends it at once\n")
        stop(f"{signal.Signals(number).name} received")

    before = {one: signal.signal(one, handle) for one in stopping}
    try:
        yield came
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


class _Printable(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable_lines(super().format(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802 - of logging
        return traceback_of(ei[1]).rstrip()


@contextmanager
def logged(level: int, levels: Mapping[str, int] = {}) -> Iterator[None]:
    """Shows the library's log messages on standard error. ``levels``: of some loggers."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Printable("%(levelname)s %(name)s: %(message)s"))
    wanted = {"eventlog": level, "recovery": level, **levels}
    before = {name: logging.getLogger(name).level for name in wanted}
    for name, one in wanted.items():
        logging.getLogger(name).setLevel(one)
    for name in ("eventlog", "recovery"):
        logging.getLogger(name).addHandler(handler)
    try:
        yield
    finally:
        for name, one in before.items():
            logging.getLogger(name).setLevel(one)
            logging.getLogger(name).removeHandler(handler)
