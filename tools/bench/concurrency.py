"""Many runs at once in one process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from ._bench import Bench, Chart
from ._result import Aim, Result, median, number
from ._worker import Subject, Worker

TITLE = "Many runs at once in one process: steps per second in total"
ABOUT = """\
So many runs begin, and when all have, each makes 20 steps: a side effect whose tool returns 2 KiB
of text and does nothing else, recorded durably before and after. One run is ten, one after the
other, for the first steps of a run take longer. Ours are async agents in one event loop. DBOS has a
thread for each workflow, which is its default; durabl is used in a thread for each run, with a
connection for each, for its Runtime belongs to one thread. Both keep all runs in one SQLite
database. Those with NORMAL are not safe against power loss; ours is not with
`durability="process"`. With 1,000 runs neither gets anywhere within minutes.

A step is what one run sees of it, so it takes the longer the more runs there are; where the slowest
run takes many times as long as the fastest, some are starved. Not measured under real-time
scheduling."""
UNIT = "steps/s"
YARDSTICK = "DBOS (default)"
CHART = Chart("lines", across="runs at once")

OURS, PROCESS = "agent-eventlog", "agent-eventlog, process"
PEERS = (
    (YARDSTICK, "dbos:Dbos"),
    ("DBOS, WAL FULL", "dbos:Wal"),
    ("DBOS, WAL NORMAL", "dbos:WalNormal"),
    ("durabl, FULL", "durabl:Full"),
)
STEPS = 20  # of each run, however many there are
# So many times, one after the other, by the number of runs.
TIMES = {1: 10, 10: 2, 100: 1, 1000: 1}
PEERS_MAX = 100
SIZE, ROUNDS = 2 << 10, 2
TIMES_FASTER = ((YARDSTICK, 50), ("DBOS, WAL NORMAL", 15))

Rounds = Mapping[str, list[dict[str, float]]]


def run(bench: Bench) -> list[Result]:
    """Each number of runs, up to a thousand times the scale."""
    made = []
    for runs, times in TIMES.items():
        if runs > bench.times(1000):
            continue
        subjects = [Subject(OURS, "agents:Together"), Subject(PROCESS, "agents:TogetherProcess")]
        if runs <= PEERS_MAX:
            subjects += bench.subjects([], PEERS)
        took: dict[str, list[dict[str, float]]] = {one.name: [] for one in subjects}
        with ExitStack() as held:
            workers = [
                held.enter_context(Worker(one, bench.place(), {"size": SIZE})) for one in subjects
            ]
            for worker in workers:
                worker.ask("together", runs=2, steps=3)
            for _ in range(ROUNDS):
                for worker in workers:
                    asked = {"runs": runs, "steps": bench.times(STEPS)}
                    answers = [worker.ask("together", **asked) for _ in range(times)]
                    took[worker.name].append(_pooled(answers))
        made += _results(runs, took)
    return made


def _pooled(answers: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Of several times, one after the other: steps and seconds of all, else the median."""
    both = {what: sum(one[what] for one in answers) for what in ("steps", "seconds")}
    return {what: median([one[what] for one in answers]) for what in answers[0]} | both


def _results(runs: int, took: Rounds) -> list[Result]:
    rates = {name: [one["steps"] / one["seconds"] for one in took[name]] for name in took}
    found = []
    for name, turns in took.items():
        note = _note(runs, turns)
        ratio = None
        if YARDSTICK in rates:
            ratio = median([a / b for a, b in zip(rates[name], rates[YARDSTICK], strict=True)])
        count = sum(int(one["steps"]) for one in turns)
        found.append(
            Result(
                f"{runs:,} runs" if runs > 1 else "1 run",
                name,
                median(rates[name]),
                count=count,
                ratio=ratio,
                note=note,
            )
        )
    return found


def _note(runs: int, turns: Sequence[Mapping[str, float]]) -> str:
    step = [median([one[what] * 1000 for one in turns]) for what in ("p50", "p99", "longest")]
    middle, tail, longest = map(number, step)
    note = f"a step: median {middle} ms, 99 % {tail} ms, longest {longest} ms"
    spread = median([one["slowest_run"] / one["fastest_run"] for one in turns])
    return note + (f"; slowest run {number(spread)}x the fastest" if runs > 1 else "")


def aims(results: Sequence[Result]) -> list[Aim]:
    """Against DBOS, with a hundred runs."""
    rates = {one.subject: one.median for one in results if one.case == "100 runs"}
    return [
        Aim(
            f"100 runs, times as many steps a second as {other}",
            limit,
            rates[OURS] / rates[other],
            at_least=True,
        )
        for other, limit in TIMES_FASTER
        if other in rates
    ]
