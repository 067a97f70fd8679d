"""Memory."""

from __future__ import annotations

from collections.abc import Sequence

from ._bench import Bench, Chart
from ._result import Aim, Result, found
from ._worker import Subject, Worker

TITLE = "Memory of live runs, and of large logs"
ABOUT = """\
*A live run* is what each of 900 more runs adds to the memory (resident) of a process that has 100,
each an async agent with a few hundred bytes of state and messages, inside a call of its fourth
step. The others are the peak of a whole process that works on the record of a run with 64 KiB of
new values in each step: it reads all of it; it opens it after a crash and appends to it; it resumes
the run, up to the first new call. At any time only a segment (8 MiB) or two are in memory."""
UNIT = "MB"
YARDSTICK = "agent-eventlog, 10 MB"
CHART = Chart("bars", log=False)

LARGE, LIVE = "agent-eventlog, 1 GB", "a live run"
RUNS, FEW_RUNS = 1_000, 100
STEP_SIZE = 64 << 10
FEW_STEPS, STEPS = 160, 16_000
LIVE_LIMIT_KB, MORE_LIMIT_MB = 50, 8.4  # a segment, for logs do not end at the same place in one


def run(bench: Bench) -> list[Result]:
    """Runs, and then logs."""
    sizes = {YARDSTICK: FEW_STEPS, LARGE: bench.times(STEPS, 2 * FEW_STEPS)}
    logs = [_log(bench, name, steps) for name, steps in sizes.items()]
    by_case = [one for pair in zip(*logs, strict=True) for one in pair]
    return [_live(bench), *by_case]


def _live(bench: Bench) -> Result:
    few, many = bench.times(FEW_RUNS, 10), bench.times(RUNS, 20)
    with Worker(Subject("live runs", "footprints:LiveRuns"), bench.place(), {}) as worker:
        first, then = (worker.ask("hold", count=count) for count in (few, many))
    return Result(LIVE, "agent-eventlog", (then - first) / (many - few) / 1e6, count=many - few)


def _log(bench: Bench, name: str, steps: int) -> list[Result]:
    place = bench.place()
    case = {"place": str(place), "steps": steps, "size": STEP_SIZE}
    peaks = {}
    with Worker(Subject(name, "killed:Ours"), bench.place(), case) as worker:
        size = worker.ask("make")["bytes"]
    with Worker(Subject(name, "killed:Ours"), bench.place(), case) as worker:
        peaks["resuming"] = worker.ask("memory")
    for what in ("read", "append"):
        log = {"path": str(place / "Ours" / "run" / "run")}
        with Worker(Subject(name, "footprints:Log"), bench.place(), log) as worker:
            peaks[f"{what}ing"] = worker.ask(what)
    note = f"{size / 1e6:,.0f} MB"
    return [Result(what, name, peak / 1e6, note=note) for what, peak in peaks.items()]


def aims(results: Sequence[Result]) -> list[Aim]:
    """Little for a run, and no more for a longer record."""
    live = found(results, LIVE, "agent-eventlog").median * 1000
    made = [Aim("a live run, KB", LIVE_LIMIT_KB, live)]
    for one in results:
        if one.subject == LARGE:
            more = one.median - found(results, one.case, YARDSTICK).median
            made.append(Aim(f"{one.case}, MB more than with 10 MB", MORE_LIMIT_MB, more))
    return made
