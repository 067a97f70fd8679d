"""What a run takes in each store."""

from __future__ import annotations

from collections.abc import Sequence

from ._bench import Bench, Chart
from ._result import Aim, Result
from ._worker import Subject, Worker
from .postgres import server

TITLE = "What a run takes in each store"
ABOUT = """\
*A finished run* has one step; *a step more* is measured with runs of 100. Each step is a side
effect that returns 2 KiB of text. Files are counted with their directory, in blocks of the file
system; PostgreSQL's tables with their indexes and what updates have left. *A waiting run* is what
each of many more takes in the memory of one process, of async agents that wait for a signal.
`store.runs()` lists each run with its status, the first time and again. `find`, of a store with a
queue, opens no run."""
UNIT = "as the case says"
YARDSTICK = "nothing"
CHART = Chart("bars")

STORES = ("memory", "file", "PostgreSQL")
RUNS, LONG, STEPS, FEW, MANY = 1000, 10, 100, 50, 500


def run(bench: Bench) -> list[Result]:
    """Each store."""
    made = list[Result]()
    runs, steps = bench.times(RUNS, 20), bench.times(STEPS, 10)
    with server() as started:
        for kind in STORES:
            name = f"agent-eventlog, {kind}"
            case = {"kind": kind, "size": 2 << 10, "url": started.url()}
            with Worker(Subject(name, "stores:Store"), bench.place(), case) as worker:
                short = worker.ask("finish", runs=runs, steps=1)
                listed = worker.ask("listing")
                long = worker.ask("finish", runs=LONG, steps=steps)
                few, many = bench.times(FEW, 5), bench.times(MANY, 20)
                memory = worker.ask("waiting", few=few, many=many)
            a_run = short["bytes"] / runs
            figures = {
                "bytes of a finished run": a_run,
                "bytes of a step more": (long["bytes"] / LONG - a_run) / (steps - 1),
                "files of a run": short["files"] / runs,
                "KB of memory, a waiting run": memory / 1000,
                "µs to list a run": listed["first"] * 1e6,
                "µs to list a run again": listed["again"] * 1e6,
                "µs to find a run by its state": listed["found"] * 1e6,
            }
            made += [Result(what, name, one) for what, one in figures.items() if one > 0]
    order = list(dict.fromkeys(one.case for one in made))
    return sorted(made, key=lambda one: order.index(one.case))


def aims(results: Sequence[Result]) -> list[Aim]:
    """None: constants to calculate with."""
    return []
