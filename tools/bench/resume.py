"""From a crash to going on."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ._bench import Bench, Chart
from ._result import Aim, Result, found, number
from ._worker import Subject, Worker, in_turns, results

TITLE = "From a crash to going on"
ABOUT = """\
A run is killed (SIGKILL) inside a call, 37 steps behind a multiple of a hundred; then a new process
resumes it. What is measured is the time from the start of that process until the agent makes the
call that it was killed in: imports, opening, verifying and cutting the log, the checkpoint, replay
of what is behind it. A step is a call that returns 2 KiB; the agent's state does not grow, and
there is a checkpoint every hundred steps. The last segment, of up to 8 MiB, is verified whole, and
how much of it there is differs from length to length. Each time the same crash is resumed. The
yardstick only imports what any such program must: msgpack, xxhash, asyncio. DBOS runs each workflow
from its beginning and asks its database for each step; LangGraph loads its newest checkpoint. They
are measured at the sizes that they reach within minutes."""
UNIT = "ms"
YARDSTICK = "imports alone"
CHART = Chart("lines", across="steps before the crash")

OURS = "agent-eventlog"
STEPS = (100, 1_000, 5_000, 10_000, 100_000, 1_000_000)
TAIL = 37
PEERS = (
    ("DBOS, SQLite", "killed:Dbos", 5_000),
    ("LangGraph, SqliteSaver", "killed:LangGraph", 10_000),
)
ROUNDS, PEERS_ROUNDS = 20, 5
BYTES_A_STEP = 4_000  # more than it takes, of all of them

FLAT, MORE_MS = 1.3, 150


def run(bench: Bench) -> list[Result]:
    """Each length."""
    made: list[Result] = []
    for nominal in STEPS:
        steps = bench.times(nominal)
        name = f"{steps:,} steps"
        need, free = steps * BYTES_A_STEP, shutil.disk_usage(bench.directory).free
        if need > free:
            print(f"{name} left out: {need / 1e9:.1f} GB free are needed", file=sys.stderr)
            continue
        place = bench.place()
        made += measured(place, name, steps + TAIL, bench, [Subject(OURS, "killed:Ours")], ROUNDS)
        reaching = [(name, kind) for name, kind, most in PEERS if nominal <= most]
        peers = bench.subjects([], reaching)
        if peers:
            theirs = measured(place, name, steps + TAIL, bench, peers, PEERS_ROUNDS)
            made += [one for one in theirs if one.subject != YARDSTICK]
        shutil.rmtree(place)
    return made


def measured(
    place: Path, name: str, steps: int, bench: Bench, subjects: Sequence[Subject], rounds: int
) -> list[Result]:
    """How soon these, killed at this step, go on; beside the imports."""
    case = {"place": str(place), "steps": steps}
    notes = {}
    for subject in subjects:
        with Worker(subject, bench.place(), case) as worker:
            took = worker.ask("make")
        notes[subject.name] = f"{took['bytes'] / 1e6:,.1f} MB, made in {number(took['seconds'])} s"
    every = [*subjects, Subject(YARDSTICK, "killed:Imports")]
    rounds = bench.times(rounds, 3)
    measured = in_turns(every, bench.place(), case, turn=1, rounds=rounds)
    return [
        replace(one, size=None, note=notes.get(one.subject, ""))
        for one in results(name, measured, YARDSTICK, 1000)
    ]


def aims(results: Sequence[Result]) -> list[Aim]:
    """Flat, and little more than the imports."""
    ours = [one for one in results if one.subject == OURS]
    made = [
        Aim(
            f"{one.case}, ms more than the imports",
            MORE_MS,
            one.median - found(results, one.case, YARDSTICK).median,
        )
        for one in ours
    ]
    few, many = ours[1], ours[-1]
    assert few.ratio is not None and many.ratio is not None
    # By their ratios: the machine may have changed its speed between the two.
    return [Aim(f"{many.case} to {few.case}", FLAT, many.ratio / few.ratio), *made]
