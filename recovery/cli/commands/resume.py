"""``recovery resume``: run an agent on an existing run, until it ends or parks."""

from __future__ import annotations

import inspect
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
from recovery.agent_code.agent_name import agent_name
from recovery.cli.commands.show import commands_for, resume_command
from recovery.cli.exit_codes import FOUND, INTERRUPTED, OK, USAGE
from recovery.cli.next_steps import Commands
from recovery.cli.store_options import (
    AsJson,
    KeyFile,
    Redact,
    StoreOption,
    Yes,
    check_there,
    complete_runs,
    known,
    named,
    open_store,
    store_of,
)
from recovery.cli.streams import where_of
from recovery.cli.terminal import (
    because,
    complain,
    confirm,
    ends_politely,
    hint,
    say,
    show_json,
    their_own,
)
from recovery.declare.spec import ToolSpec
from recovery.errors import CHOICES, DivergenceError, StoppedError
from recovery.inspect.status import OPEN, status
from recovery.reports import RecoveryReport, RunStatus
from recovery.text import count, printable, printable_lines
from recovery.values.pack import pack
from recovery.values.render import Redaction, readable, short

MORE = """\b
The agent is searched in the present directory, then among installed packages:
a RecoverableAgent, an agent function (of a run), or a function without
parameters that makes one of these. Its task is the recorded one. A
RecoverableAgent keeps its own store, unless --store names another.

--due and --all-unfinished resume runs one after the other, by one agent.
They skip runs that a process has, child runs (their parents resume them) and
conversations. If other agents have runs in the store, --match chooses by id.
An agent that waits needs park_after_s=, or it holds the others.

Ctrl-C, or SIGTERM, stops it at its next safe point, where nothing gets in
doubt; a second one ends it at once, as a crash would.

\b
exit codes:
  0    finished: its result is printed, its report on standard error
  1    it failed, or is parked: why, and what to do, on standard error; of
       several, one did
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
    typer.Option("--agent", metavar="MODULE:NAME", help="The agent.", show_default=False),
]
OneRun = Annotated[
    str | None,
    typer.Argument(
        metavar="[RUN]",
        help="The id of a run.",
        autocompletion=complete_runs,
        show_default=False,
    ),
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
            raise _no_agent(run, store, key_file)
        found = agent_of(agent, store, key_file)

        def resume(one: str) -> None:
            commands = commands_for(found.store, one, store, key_file)
            commands.agent = quote(agent)
            ended = _resumed(found, one, takeover, commands)
            _show(one, ended, Redaction(redact or ()), as_json)

        if run is None:
            if takeover:
                raise ValueError("--takeover is about one RUN")
            runs = found.store.runs(state=OPEN, due=due)
            chosen = [one for one in runs if match in one.run_id and _is_of(one, found)]
            return _resume_all(chosen, resume)
        check_there(found.store, run)
        one = known(found.store, run)
        if one.state == "submitted" and not _is_of(one, found):
            raise RecoveryError(
                f"run {run} was submitted for agent {printable(one.agent)}, which {agent} is not. "
                "Nothing was executed."
            )
        if takeover:
            _ask(one, yes)
        resume(run)


def _is_of(one: RunStatus, agent: RecoverableAgent) -> bool:
    """Whether the run is of this agent, by the name of the function. Where the record does not say,
    the user knows. A run of another one is left alone: it would be executed by the wrong code."""
    ours = (agent_name(agent.agent_fn) or "").rpartition(":")[2]
    theirs = one.agent.rpartition(":")[2]
    if theirs in ("", ours) or one.kind != "agent" or one.parent is not None:
        return True
    if one.state != "submitted":
        typer.echo(f"run {one.run_id}: skipped, it is of {printable(one.agent)}", err=True)
    return False


def _no_agent(run: str | None, store: str | None, key_file: str | None) -> typer.Exit:
    """What the record says is shown, and not imported: a log must not choose what is executed."""
    if run is None:
        return complain("say --agent MODULE:NAME", USAGE)
    runs = store_of(run, store, key_file, reading=True)
    found = known(runs, run)
    by = printable(found.agent) or "an agent without a name"
    text = f"say --agent MODULE:NAME. Run {run} was begun by {by}. Nothing was executed."
    ended = complain(text, USAGE)
    hint([resume_command(runs, run, store, key_file)], err=True)
    return ended


def _resume_all(runs: list[RunStatus], resume: Callable[[str], None]) -> None:
    """Resume runs one after the other, whatever becomes of the others. Children are resumed by
    their parents, and conversations by their programs."""
    codes = []
    for one in runs:
        if one.kind != "agent" or one.parent is not None:
            continue
        typer.echo(f"run {one.run_id}:", err=True)
        try:
            resume(one.run_id)
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
    raise typer.Exit(OK if finished == len(codes) else FOUND)


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


# -- the agent


def agent_of(name: str, store: str | None, key_file: str | None) -> RecoverableAgent:
    """The agent that the user names, with the store that they name."""
    found = named(name)
    if isinstance(getattr(found, "tool_spec", None), ToolSpec):  # running it would have effects
        raise RecoveryError(f"{name} is a tool, not an agent. Nothing was executed.")
    if inspect.isroutine(found) and not inspect.signature(found).parameters:
        try:
            found = found()
        except Exception as exc:
            raise their_own(exc, f"{name} raised this") from None
    if isinstance(found, RecoverableAgent):
        if store is not None:
            other = open_store(store, key_file)
            # The agent's own approvers: the command line must not decide who may decide.
            other.approvers, other.retention = found.store.approvers, found.store.retention
            found.store = other
        return found
    if not _takes_a_run(found):
        raise RecoveryError(f"{name} is neither a RecoverableAgent nor a function of a run")
    return RecoverableAgent(found, open_store(store, key_file))


def _takes_a_run(found: Any) -> bool:
    try:
        inspect.signature(found).bind(None)
    except TypeError:  # its parameters are different, or it is not callable
        return False
    except ValueError:  # no signature
        return True
    return True


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
            ended = _store_failed(exc, agent.store) or their_own(
                exc, f"run {run}: its agent raised this. The record stays, and it can be resumed"
            )
            todo = [commands.resume()]
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

    def handle(number: int, frame: object) -> None:
        came.append(number)
        if len(came) > 1:
            # Not by an exception, which the agent may catch: the record survives a sudden death.
            os.write(2, b"recovery: ended at once\n")
            os._exit(INTERRUPTED)
        os.write(2, b"recovery: stopping at the next safe point; once more ends it at once\n")
        stop(f"{signal.Signals(number).name} received")

    before = {one: signal.signal(one, handle) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield came
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


class _Printable(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable_lines(super().format(record))


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
