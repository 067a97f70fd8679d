"""Many runs in one process, on PostgreSQL."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from ._bench import Bench, Chart
from ._result import Aim, Result, median, number
from ._worker import Subject, SubjectError, Worker

TITLE = "PostgreSQL: steps per second of many runs in one process"
ABOUT = """\
One private server on this machine, with `fsync` and `synchronous_commit` on. So many runs begin,
and when all have, each makes its steps: a side effect whose tool returns 2 KiB of text. Ours are
async agents in one event loop, with one connection that commits. The yardstick inserts as many
bytes with psycopg: a row and a commit for each step, by a prepared statement. It has a thread and a
connection for each run, and no agent. DBOS has a thread for each workflow, which is its default.
All share two CPUs with the server. Three passes, in turns. CPU is that of the client's process,
while the runs make their steps and end.

*One commit* is `log.append` and `log.commit` beside one such INSERT, without agents. The last rows
count statements."""
UNIT = "steps/s"
YARDSTICK = "INSERT"
CHART = Chart("bars")

OURS, DBOS = "agent-eventlog", "DBOS"
STATEMENTS = "statements (not per second)"
ONE_COMMIT = "one commit"
CPU = "ms of CPU a step"
A_STEP, A_WAIT = "a step of one run", "a minute of each of 20 waiting runs"
# Steps of each run: of us, of the yardstick, of DBOS.
STEPS = {1: (600, 1200, 150), 10: (100, 250, 30), 100: (30, 60, 6)}
SIZE, ROUNDS, COMMITS, WATCHED_S = 2 << 10, 3, 300, 20
TO_INSERT, TIMES_DBOS, CPU_MS = 1.3, 3, 0.5
LIMITS = {
    A_STEP: 1,
    "open an ended run, with its inbox": 3,
    A_WAIT: 1,
}


@contextmanager
def server() -> Iterator[Any]:
    """A private server, as the tests start it, with settings as of a real one."""
    from tests.support.postgres import Server, binaries  # noqa: PLC0415 - of the checkout

    if binaries() is None:
        raise SubjectError("no PostgreSQL from 15 to 17 is installed, nor the wheel pgserver")
    settings = {"autovacuum": "on", "shared_buffers": "128MB", "max_connections": "300"}
    one = Server(None, **settings)
    try:
        yield one
    finally:
        one.remove()


def version() -> str:
    """Of the server."""
    from tests.support.postgres import binaries  # noqa: PLC0415 - as above

    place = binaries()
    assert place is not None
    said = subprocess.run([place / "postgres", "--version"], check=True, capture_output=True)
    return said.stdout.decode().strip().removeprefix("postgres (PostgreSQL) ")


def run(bench: Bench) -> list[Result]:
    """Each number of runs, and then what is counted."""
    with server() as one, ExitStack() as held:
        case = {"size": SIZE, "url": one.url(), "database": f"{one.root}_dbos"}
        subjects = [Subject(OURS, "servers:Ours"), Subject(YARDSTICK, "servers:Insert")]
        subjects += bench.subjects([], [(DBOS, "dbos:Dbos")])
        workers = [held.enter_context(Worker(each, bench.place(), case)) for each in subjects]
        made, counted = [], dict[str, float]()
        for runs, steps in STEPS.items():
            took: dict[str, list[dict[str, float]]] = {each.name: [] for each in subjects}
            for passes in range(ROUNDS + 1):
                for worker, count in zip(workers, steps, strict=False):
                    answer = worker.ask("together", runs=runs, steps=bench.times(count, least=2))
                    if passes:  # the first one is to warm up
                        took[worker.name].append(answer)
            made += _rates(f"{runs} runs" if runs > 1 else "1 run", took)
            counted.setdefault(A_STEP, median([each["statements"] for each in took[OURS]]))
        made += _commits(bench, workers[:2])
        watched_s = WATCHED_S if bench.scale >= 1 else 0
        counted |= workers[0].ask("statements", watched_s=watched_s)
    return made + [Result(STATEMENTS, what, count) for what, count in counted.items()]


def _rates(case: str, took: Mapping[str, list[dict[str, float]]]) -> list[Result]:
    rates = {name: [one["steps"] / one["seconds"] for one in took[name]] for name in took}
    made = []
    for name, turns in took.items():
        to = [a / b for a, b in zip(rates[name], rates[YARDSTICK], strict=True)]
        count = sum(int(one["steps"]) for one in turns)
        note = f"{number(median([one['p50'] * 1000 for one in turns]))} ms each"
        made.append(
            Result(
                case,
                name,
                median(rates[name]),
                count=count,
                ratio=median(to),
                note=note,
            )
        )
    cpu = {name: median([one["cpu"] * 1000 for one in turns]) for name, turns in took.items()}
    return made + [Result(f"{case}, {CPU}", name, value) for name, value in cpu.items()]


def _commits(bench: Bench, workers: Sequence[Worker]) -> list[Result]:
    """One log, and one row, beside each other."""
    count = bench.times(COMMITS, least=5)
    took: dict[str, list[float]] = {one.name: [] for one in workers}
    for passes in range(ROUNDS + 1):
        for worker in workers:
            times = worker.ask("steps", first=passes * count + 1, count=count)
            if passes:
                took[worker.name].append(median(times))
    return [
        Result(
            ONE_COMMIT,
            name,
            1 / median(times),
            ratio=median([b / a for a, b in zip(times, took[YARDSTICK], strict=True)]),
            note=f"PostgreSQL {version()}" if name == YARDSTICK else "",
        )
        for name, times in took.items()
    ]


def aims(results: Sequence[Result]) -> list[Aim]:
    """Beside INSERT and DBOS; CPU; statements."""
    ours = {one.case: one for one in results if one.subject == OURS}
    theirs = {one.case: one.median for one in results if one.subject == DBOS}
    made = []
    for case in (ONE_COMMIT, *(f"{runs} runs" if runs > 1 else "1 run" for runs in STEPS)):
        one = ours[case]
        assert one.ratio is not None
        made.append(Aim(f"{case}, times as long as INSERT", TO_INSERT, 1 / one.ratio))
        if case in theirs:
            what = f"{case}, times as many steps a second as DBOS"
            made.append(Aim(what, TIMES_DBOS, one.median / theirs[case], at_least=True))
        if f"{case}, {CPU}" in ours:
            made.append(Aim(f"{case}, {CPU}", CPU_MS, ours[f"{case}, {CPU}"].median))
    counted = {one.subject: one.median for one in results if one.case == STATEMENTS}
    return made + [
        Aim(f"statements: {what}", limit, round(counted[what], 1))
        for what, limit in LIMITS.items()
        if what in counted
    ]
