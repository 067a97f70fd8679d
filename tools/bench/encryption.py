"""What encryption at rest costs."""

from __future__ import annotations

from collections.abc import Sequence

from ._bench import Bench, Chart
from ._result import Aim, Result
from ._worker import Subject, in_turns, results

TITLE = "Encryption at rest: a record, beside one in clear"
ABOUT = """\
The same appends to an encrypted log (XAES-256-GCM) and to one in clear: durable, and without
waiting for a flush (CPU is not told from waiting here)."""
UNIT = "ms"
YARDSTICK = "agent-eventlog, in clear"
CHART = Chart("bars")

OURS = "agent-eventlog, encrypted"
SIZES = (("200 B", 200, 1000), ("2 KiB", 2 << 10, 1000), ("64 KiB", 64 << 10, 400))
TURN = 20


def run(bench: Bench) -> list[Result]:
    """Each size, with and without a flush."""
    made = []
    subjects = [Subject(OURS, "ours:Encrypted"), Subject(YARDSTICK, "ours:Append")]
    for durability in ("power", "process"):
        for name, size, count in SIZES:
            case = {"size": size, "durability": durability, "real_time": True}
            rounds = bench.times(count) // TURN + 1
            measured = in_turns(subjects, bench.place(), case, turn=TURN, rounds=rounds)
            what = "durable" if durability == "power" else "no flush"
            made += results(f"{name}, {what}", measured, YARDSTICK, 1000)
    return made


def aims(results: Sequence[Result]) -> list[Aim]:
    """None: who needs it pays for it."""
    return []
