"""Saving a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ._bench import Bench, Chart
from ._result import Aim, Result, found
from ._worker import Subject, Worker, in_turns, results, size_of

TITLE = "Saving a checkpoint, of which little is new"
ABOUT = """\
A state of a hundred keys, one of which has changed, or a conversation to which a message of 1.4 KB
was added. *Save* is `CheckpointStore.save(Checkpoint(...))` by itself, which is durable when it
returns. *Step boundary* is what an agent waits for between two steps with `checkpoint_every_n=1`:
it is flushed behind the agent's back, and its message was recorded when it was added. The yardstick
packs everything with msgpack, writes it to a new file, and flushes that."""
UNIT = "ms"
YARDSTICK = "packb + write + fsync"
CHART = Chart("bars")

SAVE, BOUNDARY = "agent-eventlog, save", "agent-eventlog, step boundary"
FEW, MANY = "100 messages, one more", "10,000 messages, one more"
# Name, bytes of state, messages, whether one is added, so many saves in a turn.
CASES = (
    ("1 KB, a key changed", 1_000, 0, False, 20),
    ("100 KB, a key changed", 100_000, 0, False, 20),
    ("10 MB, a key changed", 10_000_000, 0, False, 3),
    (FEW, 1_000, 100, True, 20),
    (MANY, 1_000, 10_000, True, 3),
)
ROUNDS = 15
LIMIT_CASE, LIMIT_MS = "100 KB, a key changed", 1.0
LARGE_CASE, LARGE_LIMIT = "10 MB, a key changed", 0.25
FLAT = 2.0


def run(bench: Bench) -> list[Result]:
    """Each case."""
    made = []
    subjects = [
        Subject(SAVE, "checkpoints:Saved"),
        Subject(BOUNDARY, "checkpoints:Stepped"),
        Subject(YARDSTICK, "checkpoints:Dumped"),
    ]
    for name, size, messages, says, turn in CASES:
        case = {"size": size, "messages": messages, "says": says, "real_time": True}
        rounds = bench.times(ROUNDS, 2)
        measured = in_turns(subjects, bench.place(), case, turn=turn, rounds=rounds)
        made += [
            replace(one, size=_size(bench, subject, case))
            for one, subject in zip(results(name, measured, YARDSTICK, 1000), subjects, strict=True)
        ]
    return made


def _size(bench: Bench, subject: Subject, case: Mapping[str, Any]) -> float:
    """Bytes on disk for each save behind the first ones, one of which writes everything."""
    few, many = 5, 25
    sizes = []
    for count in (few, many):
        place = bench.place()
        with Worker(subject, place, {**case, "real_time": False}) as worker:
            worker.ask("turn", count=count)
        sizes.append(size_of(place))
    return (sizes[1] - sizes[0]) / (many - few)


def aims(results: Sequence[Result]) -> list[Aim]:
    """By the clock, and by what has changed rather than by what there is."""
    made = []
    for subject in (SAVE, BOUNDARY):
        few, many = (found(results, case, subject).median for case in (FEW, MANY))
        large = found(results, LARGE_CASE, subject).ratio
        assert large is not None
        made += [
            Aim(
                f"{subject}: {LIMIT_CASE}, ms", LIMIT_MS, found(results, LIMIT_CASE, subject).median
            ),
            Aim(f"{subject}: {LARGE_CASE}, to writing all", LARGE_LIMIT, large),
            Aim(f"{subject}: {MANY}, to {FEW}", FLAT, many / few),
        ]
    return made
