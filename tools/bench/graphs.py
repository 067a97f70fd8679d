"""What checkpoints of a graph cost, as it gets longer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from . import resume
from ._bench import Bench, Chart
from ._result import Aim, Result, found, number, ratio
from ._worker import Subject, flushes, in_turns, results

TITLE = "A chain of nodes, with a checkpoint behind each"
ABOUT = """\
A graph of so many nodes, one after the other. Each waits, as for a model (or not at all), and
writes 1 KiB under a key of its own, which stays in the memory of the graph to its end. The median
is that of a node, from its end back to the end of the one before. The mean has the beginning and
the end of the execution in it: making a log takes some flushes, and in the end everything that was
written is recorded once more, as the result. The yardstick is the same executor without a
`checkpoint_manager`; the loop awaits the same functions, without a graph. Ours are in the default
settings: `durability="power"`, a checkpoint behind each node. The flushes are made behind the
graph's back, and no node waits for one; there is one when the last one is done, so that quick nodes
share them. Bytes on disk are all there is of a finished execution, for each node.

*To go on* is the time from the start of a process that resumes a chain which was killed (SIGKILL)
in its last node, to that node, beside a process that only imports what any such program must."""
UNIT = "ms"
YARDSTICK = "no checkpoints"
CHART = Chart("bars")

ALL, LOOP = "agent-eventlog", "a loop"
KEEPING = [
    Subject("agent-eventlog, prune_old", "chains:PruneOld"),
    Subject("agent-eventlog, latest_only", "chains:LatestOnly"),
]
WAITS_MS, SIZES = (0, 1, 10, 100), (10, 100, 300, 1_000)
MOST_S = 20  # of one execution, where no sizes are asked for
TURNS_S, ROUNDS = 15, (2, 15)  # so long for each subject, in so many executions
RESUMED = (100, 1_000)
RESUME_ROUNDS = 20
WAIT_MS, COST = 10, 1.05
FLAT = 1.3  # times; of bytes, of which nobody else takes any:
CONSTANT = 1.1


def run(bench: Bench) -> list[Result]:
    """Each wait, each length; and how soon a killed one goes on."""
    made: list[Result] = []
    for wait_ms in WAITS_MS:
        for nodes in bench.sizes or SIZES:
            if bench.sizes or nodes * wait_ms <= MOST_S * 1e3 * bench.scale:
                made += _measured(bench, wait_ms, nodes)
    again = [Subject(ALL, "killed:Graph")]
    for size in RESUMED:
        nodes = bench.times(size, least=10)
        name = f"to go on behind {nodes:,} nodes"
        made += resume.measured(bench.place(), name, nodes + 1, bench, again, RESUME_ROUNDS)
    return made


def _measured(bench: Bench, wait_ms: int, nodes: int) -> list[Result]:
    ours = Subject(ALL, "chains:All")
    subjects = [ours, Subject(YARDSTICK, "chains:Off")]
    if wait_ms <= WAIT_MS:
        subjects.append(Subject(LOOP, "chains:Loop"))
    if not wait_ms:
        subjects[1:1] = KEEPING
    case = {"wait_ms": wait_ms}
    least, most = ROUNDS
    rounds = bench.times(TURNS_S / (nodes * (wait_ms + 1) / 1e3), least)
    measured = in_turns(subjects, bench.place(), case, turn=nodes, rounds=min(rounds, most))
    first = nodes == min(bench.sizes or SIZES) and wait_ms <= WAIT_MS
    counted = flushes(ours, bench.place(), case) if first else None
    whole = {name: [[sum(turn)] for turn in turns] for name, (turns, _) in measured.items()}
    made = []
    for one in results(_case(nodes, wait_ms), measured, YARDSTICK, 1000):
        times = ratio(whole[one.subject], whole[YARDSTICK])
        stored = one.size if one.subject not in (YARDSTICK, LOOP) else None
        note = "" if one.subject == YARDSTICK else f"whole executions {number(times, 'x')}"
        made.append(
            replace(one, size=stored, note=note, flushes=counted if one.subject == ALL else None)
        )
    return made


def _case(nodes: int, wait_ms: int) -> str:
    return f"{nodes:,} nodes of {wait_ms} ms"


def aims(results: Sequence[Result]) -> list[Aim]:
    """What a node's checkpoint costs, and that it costs the thousandth what it cost the tenth."""
    made = []
    for one in results:
        if one.subject == ALL and one.case.endswith(f" of {WAIT_MS} ms") and one.ratio is not None:
            made.append(Aim(f"{one.case}, to no checkpoints", COST, one.ratio))
    chains = [one for one in results if one.subject == ALL and one.case.endswith(" nodes of 0 ms")]
    few, many = chains[len(chains) > 2], chains[-1]  # of ten nodes, most are the first ones
    extra = [one.median - found(results, one.case, YARDSTICK).median for one in (few, many)]
    what = f"{many.case} to {few.case}"
    assert few.size is not None and many.size is not None
    return [
        *made,
        Aim(f"more ms a node, {what}", FLAT, extra[1] / extra[0]),
        Aim(f"bytes a node, {what}", CONSTANT, many.size / few.size),
    ]
