"""``recovery worker`` and ``recovery submit``: execute due runs, and hand in new ones."""

from __future__ import annotations

import json
import logging
import signal
from typing import Annotated, Any

import typer

from recovery import CheckpointStore, RecoverableAgent, RecoveryError
from recovery.cli.commands.resume import Verbose, logged
from recovery.cli.store_options import KeyFile, StoreOption, named, open_store
from recovery.cli.terminal import ends_politely, note, say
from recovery.control.submit import random_run_id
from recovery.declare.spec import ToolSpec
from recovery.worker.worker import Worker

WORKER_MORE = """\b
AGENTS is a dict of agents by name, a list of them, or one agent: each a
RecoverableAgent or a function of a run. A list, or one agent, has the names
of its functions. A RecoverableAgent keeps its own store, unless --store names
another. Any number of workers may share a store. One that dies loses nothing:
another one resumes its runs.

Ctrl-C, or SIGTERM, stops it: side effects in flight end, and its runs are free
for other workers at once. A second one ends it, as a crash would.

A run that dies at the same place again and again is quarantined: workers leave
it alone, and recovery runs, status and show say so.

\b
exit codes:
  0    stopped

\b
examples:
  recovery worker trips:agents --store postgresql://db.internal/agents
  recovery worker trips:agents --concurrency 50 --listen :9100
"""
SUBMIT_MORE = """\b
TASK is JSON. Submitting the same run again changes nothing, so it is safe to
repeat. recovery runs --state submitted lists what no worker has begun.

\b
exit codes:
  0    it is in the store, durably; its id is printed
  1    the id was submitted with another task or agent

\b
examples:
  recovery submit trips '{"to": "Lisbon"}'
  recovery submit trips '{"to": "Lisbon"}' --run order-17 --delay 3600
"""

Agents = Annotated[
    str, typer.Argument(metavar="MODULE:AGENTS", help="Where the agents are.", show_default=False)
]
Concurrency = Annotated[int, typer.Option(metavar="N", help="Runs at once, of this worker.")]
PerAgent = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[AGENT=]N",
        help="Runs of one agent at once, of all workers. Repeatable.",
        show_default=False,
    ),
]
PerKey = Annotated[
    int | None,
    typer.Option(metavar="N", help="Runs of one key at once, of all workers.", show_default=False),
]
MaxCrashes = Annotated[
    int, typer.Option(metavar="N", help="Deaths in a row at one place before quarantine.")
]
RetryQuarantined = Annotated[
    bool, typer.Option("--retry-quarantined", help="Resume quarantined runs once more.")
]
Listen = Annotated[
    str | None,
    typer.Option(
        metavar="[HOST]:PORT",
        help="Serve /healthz and /metrics (Prometheus) there.",
        show_default=False,
    ),
]
UntilIdle = Annotated[bool, typer.Option("--until-idle", help="End when nothing is due.")]


def worker(
    agents: Agents,
    concurrency: Concurrency = 10,
    per_agent: PerAgent = None,
    per_key: PerKey = None,
    max_crashes: MaxCrashes = 3,
    retry_quarantined: RetryQuarantined = False,
    listen: Listen = None,
    until_idle: UntilIdle = False,
    verbose: Verbose = False,
    store: StoreOption = None,
    key_file: KeyFile = None,
) -> None:
    """Begin submitted runs, and resume those whose process is gone, until stopped."""
    told = {"recovery.worker": logging.INFO}
    with ends_politely(), logged(logging.INFO if verbose else logging.WARNING, told):
        found = _agents(agents)
        made = Worker(
            found,
            _store(found, store, key_file),
            concurrency=concurrency,
            per_agent=_limits(per_agent),
            per_key=per_key,
            max_crashes=max_crashes,
            retry_quarantined=retry_quarantined,
        )
        server = _served(made, listen) if listen else None
        try:
            made.run_sync(stop_on=(signal.SIGINT, signal.SIGTERM), until_idle=until_idle)
        finally:
            if server is not None:
                server.shutdown()


def submit(
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="Its name in the workers.")],
    task: Annotated[str, typer.Argument(metavar="TASK", help="The task, as JSON.")],
    run: Annotated[
        str | None,
        typer.Option(metavar="ID", help="The id of the run (a random one).", show_default=False),
    ] = None,
    delay: Annotated[float, typer.Option(metavar="SECONDS", help="Begin it then, not now.")] = 0.0,
    priority: Annotated[int, typer.Option(metavar="N", help="A higher one goes first.")] = 0,
    key: Annotated[
        str, typer.Option(metavar="KEY", help="Workers limit how many runs of it execute at once.")
    ] = "",
    store: StoreOption = None,
    key_file: KeyFile = None,
) -> None:
    """Hand in a run, for a worker to begin it."""
    with ends_politely():
        try:
            value = json.loads(task)
        except ValueError as exc:
            raise ValueError(f"TASK is no JSON: {exc}. A text needs quotes: '\"{task}\"'") from None
        opened = open_store(store, key_file, make=True)
        run_id = run or random_run_id()
        try:
            opened.submit(agent, value, run_id, delay_s=delay, priority=priority, limit_key=key)
        except BaseException as exc:
            if run is None and not isinstance(exc, ValueError | TypeError):
                note(
                    f"run {run_id} may be in the store all the same. Repeat the command with "
                    f"--run {run_id}: it is begun once"
                )
            raise
        say(run_id)


def _agents(name: str) -> Any:
    found = named(name)
    for one in _each(found):
        is_agent = isinstance(one, RecoverableAgent) or callable(one)
        if not is_agent or isinstance(getattr(one, "tool_spec", None), ToolSpec):
            raise RecoveryError(f"{name}: {one!r:.80} is no agent. Nothing was executed.")
    return found


def _each(found: Any) -> list[Any]:
    """The agents of a dict or a list of them; or the only one."""
    if isinstance(found, dict):
        return list(found.values())
    return list(found) if isinstance(found, list | tuple) else [found]


def _store(found: Any, store: str | None, key_file: str | None) -> CheckpointStore | None:
    theirs = [one.store for one in _each(found) if isinstance(one, RecoverableAgent)]
    if store is None and theirs:
        return None
    opened = open_store(store, key_file, make=True)
    if theirs:  # the command line must not decide who may decide
        opened.approvers, opened.retention = theirs[0].approvers, theirs[0].retention
    return opened


def _limits(given: list[str] | None) -> int | dict[str, int] | None:
    """``5``, or ``trips=5`` for each agent."""
    found: dict[str, int] = {}
    for one in given or ():
        name, _, number = one.rpartition("=")
        if not number.isdigit() or (not name and len(given or ()) > 1):
            raise ValueError(f"--per-agent is N, or AGENT=N for each agent, not {one!r}")
        found[name] = int(number)
    return found.get("") or found or None


def _served(made: Worker, listen: str) -> Any:
    host, _, port = listen.rpartition(":")
    if not port.isdigit():
        raise ValueError(f"--listen is HOST:PORT or :PORT, not {listen!r}")
    try:
        from recovery.worker.health import serve  # noqa: PLC0415 - needs the extra
    except ImportError:
        raise RecoveryError(
            "--listen needs the extra: pip install 'agent-eventlog[worker]'"
        ) from None
    server = serve(made, host.strip("[]") or "127.0.0.1", int(port))
    typer.echo(f"http://{host or '127.0.0.1'}:{server.server_port}/metrics", err=True)
    return server
