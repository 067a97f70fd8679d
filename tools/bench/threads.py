"""What a checkpointer of LangGraph costs, as the conversation gets longer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ._bench import Bench, Chart
from ._result import Aim, Result, found
from ._worker import Subject, Worker, in_turns, results, size_of

TITLE = "A super-step of a LangGraph graph"
ABOUT = """\
One thread of a graph of one node, which adds two messages to a conversation in each super-step.
LangGraph's serializer makes 3.4 KB of them. `durability="sync"`: the next step waits until the
checkpoint of this one is durable. *At 500* is measured over 20 steps or more from the 500th on. The
beginning of the conversation was given at once. Each subject has its default settings. SqliteSaver
has a write-ahead log and `synchronous=FULL`. It writes the whole conversation in each step, and we
write what is new.

LangGraph itself takes the longer, the more messages there are: it has a row of its own. *Its share*
is what a step takes more with EventLogSaver than without any checkpointer. CPU is of all threads of
the process, and the other rows are by the clock.

*To open and read* is the time to open the thread with a new saver and read its newest checkpoint.
The process has done so before. Our thread has grown step by step. Every byte that it needs is
verified. LangGraph makes all messages then, and what that takes alone is *deserialising*.
"""
UNIT = "ms"
YARDSTICK = "SqliteSaver"
CHART = Chart("bars")

OURS, SHARE, WITHOUT = "agent-eventlog", "agent-eventlog, its share", "no checkpointer"
DESERIALISE = "deserialising"
SIZES = (100, 500, 1_000, 2_000)
TURN, ROUNDS, OPENINGS = 10, 4, 5
FEW, MANY = 10, 74  # steps; the index of a thread is recorded every 64 checkpoints
BYTES, FASTER, FLAT, OPEN_MS, CONSTANT = 4_600, 0.15, 2, 50, 1.02

SUBJECTS = [
    Subject(OURS, "threads:Ours"),
    Subject("agent-eventlog, async", "threads:AsyncOurs"),
    Subject(YARDSTICK, "threads:Sqlite"),
    Subject("AsyncSqliteSaver", "threads:AsyncSqlite"),
    Subject(WITHOUT, "threads:Without"),
]
OPENED = [
    Subject(OURS, "threads:OpenOurs"),
    Subject(YARDSTICK, "threads:OpenSqlite"),
    Subject(DESERIALISE, "threads:Deserialise"),
]


def run(bench: Bench) -> list[Result]:
    """By the clock and in CPU, and opened, at each size."""
    made = []
    sizes = [bench.times(size, least=10) for size in bench.sizes or SIZES]
    for clock, what in (("steps", ""), ("cpu", ", CPU")):
        for size in sizes:
            made += _steps(bench, size, clock, f"at {size:,}{what}")
    for clock, what in (("steps", ""), ("cpu", ", CPU")):
        for size in sizes:
            rounds = bench.times(ROUNDS, least=2)
            measured = in_turns(
                OPENED, bench.place(), {"steps": size}, turn=OPENINGS, rounds=rounds, clock=clock
            )
            opened = results(f"to open and read {size:,}{what}", measured, YARDSTICK, 1000)
            made += [replace(one, size=None) for one in opened]
    return made


def _steps(bench: Bench, size: int, clock: str, name: str) -> list[Result]:
    case = {"begins_with": size}
    rounds = bench.times(ROUNDS, least=2)
    measured = in_turns(SUBJECTS, bench.place(), case, turn=TURN, rounds=rounds, clock=clock)
    made = [
        replace(one, size=_size(bench, subject, size) if clock == "steps" else None)
        for one, subject in zip(results(name, measured, YARDSTICK, 1000), SUBJECTS, strict=True)
    ]
    share = found(made, name, OURS).median - found(made, name, WITHOUT).median
    return [made[0], Result(name, SHARE, share), *made[1:]]


def _size(bench: Bench, subject: Subject, begins_with: int) -> float | None:
    """Bytes on disk for each step, of a thread that is closed."""
    if subject.name not in (OURS, YARDSTICK):
        return None
    sizes = []
    for count in (FEW, MANY):
        place = bench.place()
        with Worker(subject, place, {"begins_with": begins_with}) as worker:
            worker.ask("turn", count=count)
        sizes.append(size_of(place))
    return (sizes[1] - sizes[0]) / (MANY - FEW)


def aims(results: Sequence[Result]) -> list[Aim]:
    """Bytes and times that stay low, however long the conversation is."""
    steps = [one for one in results if one.subject == OURS and one.case.startswith("at ")]
    made = []
    for clock in ("", ", CPU"):
        ours = [one for one in steps if one.case.endswith(", CPU") == bool(clock)]
        few, some, many = ours[0], ours[-2], ours[-1]
        assert some.ratio is not None
        made.append(Aim(f"{some.case}, to {YARDSTICK}", FASTER, some.ratio))
        for subject in (OURS, SHARE):
            times = found(results, many.case, subject).median
            times /= found(results, few.case, subject).median
            made.append(Aim(f"{subject}: {many.case}, to {few.case}", FLAT, times))
    sizes = [one.size for one in steps if one.size is not None]
    opened = [one for one in results if one.subject == OURS and one.case.startswith("to open")]
    largest = opened[len(opened) // 2 - 1], opened[-1]  # by the clock, and in CPU
    return [
        *made,
        Aim("bytes a step, the most of all", BYTES, max(sizes)),
        Aim("bytes a step, the most to the least", CONSTANT, max(sizes) / min(sizes)),
        *(Aim(f"{one.case}, ms", OPEN_MS, one.median) for one in largest),
        *(
            Aim(
                f"{one.case}, ms more than deserialising",
                OPEN_MS,
                one.median - found(results, one.case, DESERIALISE).median,
            )
            for one in largest
        ),
    ]
