"""How a record grows with a conversation."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ._bench import Bench, Chart
from ._result import Aim, Result, number
from ._worker import Subject, Worker, size_of

TITLE = "Bytes on disk for each step of a growing conversation"
ABOUT = """\
Each step adds the model's reply (1.4 KB) and the result of a tool (2 KB) to the conversation, which
the model is given whole; every third step ends with a checkpoint. What is shown is what a step adds
to the files, from half that many steps to all of them. The yardstick is what is new with a step,
packed with msgpack. The tool's result is put into a message by the agent, or, in the variant, is
the whole message as the tool returns it. LangGraph writes the whole conversation with each
checkpoint, so that its file grows with the square of the steps, and it is stopped at 500."""
UNIT = "bytes for each step"
YARDSTICK = "what is new"
CHART = Chart("lines", across="steps")

OURS, WHOLE = "agent-eventlog", "agent-eventlog, messages are outcomes"
LANGGRAPH = "LangGraph, SqliteSaver"
STEPS, PEERS_MOST = (100, 500, 1_000, 10_000), 500
LIMITS = {OURS: 2.2, WHOLE: 1.2}
CONSTANT = 1.05


def run(bench: Bench) -> list[Result]:
    """Each subject by itself: what is measured is no time."""
    ours = [
        Subject(OURS, "conversations:Conversation"),
        Subject(WHOLE, "conversations:WholeMessages"),
    ]
    with Worker(ours[0], bench.place(), {}) as worker:
        news = worker.ask("news")
    made = [Result(f"{_scaled(bench, steps):,} steps", YARDSTICK, news, ratio=1) for steps in STEPS]
    for subject in bench.subjects(ours, [(LANGGRAPH, "graphs:Conversation")]):
        most = max(STEPS) if subject.name in LIMITS else PEERS_MOST
        made += _grown(subject, bench, [steps for steps in STEPS if steps <= most], news)
    return sorted(made, key=lambda one: int(one.case.split()[0].replace(",", "")))


def _scaled(bench: Bench, steps: int) -> int:
    return bench.times(steps, 10 << STEPS.index(steps))  # the half of each is not before the last


def _grown(subject: Subject, bench: Bench, sizes: Sequence[int], news: int) -> list[Result]:
    made, place, took = [], bench.place(), 0.0
    with Worker(subject, place, {}) as worker:
        for steps in sizes:
            until, taken = _scaled(bench, steps), []
            for end in (until // 2, until):
                began = time.monotonic()
                worker.ask("grow", steps=end)
                took += time.monotonic() - began
                taken.append(size_of(place))
            each = (taken[1] - taken[0]) / (until - until // 2)
            note = f"{taken[1] / 1e6:,.1f} MB in all, after {number(took)} s"
            made.append(
                Result(f"{until:,} steps", subject.name, each, ratio=each / news, note=note)
            )
    return made


def aims(results: Sequence[Result]) -> list[Aim]:
    """Little more than the news, and no more as the conversation grows."""
    made = []
    for name, limit in LIMITS.items():
        ours = [one for one in results if one.subject == name]
        many, few = ours[-1], ours[-2]
        worst = max(one.ratio for one in ours if one.ratio is not None)
        made.append(Aim(f"{name}: to what is new, the most of all", limit, worst))
        made.append(Aim(f"{name}: {many.case} to {few.case}", CONSTANT, many.median / few.median))
    return made
