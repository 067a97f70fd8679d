"""``recovery crashtest``: kill an agent repeatedly, and report what that did to its effects."""

from __future__ import annotations

import json
import secrets
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.status import Status

from recovery.cli.exit_codes import FOUND, OK, USAGE
from recovery.cli.terminal import ends_politely, progress
from recovery.testing.crash_report import CrashReport
from recovery.testing.processes.counting_proxy import Service
from recovery.testing.processes.crashtest import (
    CannotTestError,
    Kill,
    Limits,
    Subject,
    World,
    crashtest,
    module_agent,
)

MORE = """\b
exit codes:
  0    nothing ran twice, nothing was lost, the outcome was the same
  1    something was found

\b
examples:
  recovery crashtest myagent:agent --task '"write to Ann"' --tool mail:send
  recovery crashtest --tool smtplib:SMTP.send_message -- python agent.py
  recovery crashtest --proxy 8080=127.0.0.1:9000 -- ./pay localhost:8080
  recovery crashtest --proxy 0=https://api.example.com -- \\
      sh -c './agent --api $CRASHTEST_PROXY'

\b
docs/crashtest.md says more, also what such a test cannot see.
"""


Agent = Annotated[
    list[str],
    typer.Argument(
        metavar="AGENT",
        help="module:name of a RecoverableAgent or function; or, after --, any command.",
        show_default=False,
    ),
]
Tool = Annotated[
    list[str] | None,
    typer.Option(metavar="MODULE:FUNCTION", help="A function whose calls are effects. Repeatable."),
]
Proxied = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PORT=HOST:PORT",
        help="Listen on PORT, forward to a service (also https://HOST); each request is an effect. "
        "PORT 0 is any free one; $CRASHTEST_PROXY (_2, ...) tells the agent. Repeatable.",
    ),
]
MayRepeat = Annotated[
    list[str] | None,
    typer.Option(
        metavar="EFFECT", help="One of them ('search', 'POST /search') that may run twice."
    ),
]
Task = Annotated[
    str | None, typer.Option(metavar="TASK", help="The agent's task: JSON, else taken as text.")
]
Resume = Annotated[
    str | None, typer.Option(metavar="COMMAND", help="Resumes it, if not the same command.")
]
Fresh = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Each run starts in a copy of DIR; by default of the present directory.",
        exists=True,
        file_okay=False,
    ),
]
Result = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Holds a command's result; else its last line does."),
]
Points = Annotated[int, typer.Option(metavar="N", min=0, help="At most so many exact moments.")]
Kills = Annotated[int, typer.Option(metavar="N", min=0, help="And so many random moments.")]
Seed = Annotated[int | None, typer.Option(metavar="N", help="Repeats the choices of a test.")]
Restarts = Annotated[int, typer.Option(metavar="N", min=0, help="How often it may fail by itself.")]
Timeout = Annotated[float, typer.Option(metavar="S", min=0.1, help="Seconds for one life of it.")]
Strict = Annotated[bool, typer.Option("--strict", help="A call in doubt is a fault.")]
Json = Annotated[bool, typer.Option("--json", help="Print the report as JSON.")]


def command(
    agent: Agent,
    tool: Tool = None,
    proxy: Proxied = None,
    repeatable: MayRepeat = None,
    task: Task = None,
    resume: Resume = None,
    fresh: Fresh = None,
    result: Result = None,
    points: Points = 100,
    kills: Kills = 10,
    seed: Seed = None,
    restarts: Restarts = 2,
    timeout: Timeout = 60.0,
    strict: Strict = False,
    as_json: Json = False,
) -> None:
    """Kill an agent at every moment that matters, resume it, and compare.

    The agent need not use this library. It runs in a process of its own, in a copy of the
    directory, and is killed with SIGKILL before each effect, after it, at records and writes,
    and at random. Then the same command is started again, until it ends. Its effects are
    compared with those of a run that was never killed.
    """
    with ends_politely():
        subject = _subject(agent, task, resume, fresh or Path.cwd(), result)
        services = tuple(_service(text) for text in proxy or ())
        world = World(tuple(tool or ()), services, frozenset(repeatable or ()))
        seed = secrets.randbelow(1 << 32) if seed is None else seed
        limits = Limits(points, kills, seed, restarts, timeout)
        try:
            report = _run(subject, world, limits, strict)
        except (CannotTestError, OSError) as exc:
            typer.echo(f"recovery crashtest: {exc}", err=True)
            raise typer.Exit(USAGE) from None
        typer.echo(as_text(report) if as_json else str(report))
        raise typer.Exit(OK if report.ok else FOUND)


def _run(subject: Subject, world: World, limits: Limits, strict: bool) -> CrashReport:
    console = progress()
    with console.status("running it without a kill") as status:

        def tell(done: int, count: int, kill: Kill) -> None:
            _show(status, f"{done}/{count}: killing it {kill}")

        return crashtest(subject, world, limits, tell, strict=strict)


def _show(status: Status, text: str) -> None:
    status.update(text.replace("[", r"\["))


def as_text(report: CrashReport) -> str:
    """A report as one JSON object."""
    return json.dumps({"ok": report.ok, **asdict(report)}, indent=2, ensure_ascii=False)


def _subject(
    agent: list[str], task: str | None, resume: str | None, directory: Path, result: str | None
) -> Subject:
    """The agent: ``module:name`` if it is one word with a colon, else a command."""
    if len(agent) == 1 and ":" in agent[0] and "/" not in agent[0]:
        for option, value in (("--resume", resume), ("--result", result)):
            if value is not None:
                raise typer.BadParameter(f"{option} is for commands, not for {agent[0]}")
        return module_agent(agent[0], _as_json(task), directory)
    if task is not None:
        raise typer.BadParameter("--task is for module:name; a command has its own arguments")
    again = shlex.split(resume) if resume is not None else agent
    return Subject(shlex.join(agent), agent, again, directory, result)


def _as_json(task: str | None) -> str:
    if task is None:
        return "null"
    try:
        return json.dumps(json.loads(task))
    except ValueError:
        return json.dumps(task)


def _service(text: str) -> tuple[int, Service]:
    port, sign, where = text.partition("=")
    if not sign or not port.isdigit() or int(port) > 65535:
        raise typer.BadParameter(f"--proxy is PORT=HOST:PORT, not {text!r}")
    try:
        return int(port), Service.parse(where)
    except ValueError as exc:
        raise typer.BadParameter(f"--proxy: {exc}") from None
