"""What an agent waits for in each step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ._bench import Bench, Chart
from ._result import Aim, Result, found
from ._worker import Subject, flushes, in_turns, results

TITLE = "A step of an agent: one call of a tool"
ABOUT = """\
One run, whose steps each make one call of a tool that returns 2 KiB of text and does nothing else:
all that an agent waits for here is its record. The call only reads (`@tool(after_crash="retry")`),
or it is a side effect (`@tool`), which starts when its intent is durable. A checkpoint is taken
every 3 steps, as by default. The yardstick writes as much and calls `os.fdatasync`, once for each
step. The figures of CPU are of all threads of the process.

The others do what their documentation shows, with the same tool, and none keeps a history besides
(LangGraph would write it anew in each step). Only durabl, call4agents and we record an intent
before a side effect; DBOS and LangGraph record the outcome alone, so that a crash repeats the
effect. LangGraph has `durability="sync"`. call4agents knows effects and, for calls that may be
repeated, `recorded`. DBOS has no option for a write-ahead log: a hook of SQLAlchemy sets it. Those
with NORMAL are not safe against power loss, for SQLite does not flush its commits then; ours is not
with `durability="process"`.

What a call that only reads has recorded is flushed behind, by another thread and for all runs of
the process together: the flushes that are counted here for it are those, and no step waits for one.
"""
UNIT = "ms"
YARDSTICK = "write + fdatasync"
CHART = Chart("bars")

OURS, PLAIN = "agent-eventlog", "agent-eventlog, plain agent"
PROCESS = "agent-eventlog, process"
CASES = (("read-only call", True), ("side effect", False))
PEERS = (
    ("durabl, FULL", "durabl:Full"),
    ("durabl, NORMAL (default)", "durabl:Durabl"),
    ("call4agents", "call4agents:Call4Agents"),
    ("DBOS (default)", "dbos:Dbos"),
    ("DBOS, WAL FULL", "dbos:Wal"),
    ("DBOS, WAL NORMAL", "dbos:WalNormal"),
    ("LangGraph SqliteSaver", "langgraph:LangGraph"),
)
SIZE, TURN, ROUNDS = 2 << 10, 50, 8
READ_CPU_MS, FLUSHES, TIMES_FASTER = 0.1, 1, 5


def run(bench: Bench) -> list[Result]:
    """Both kinds of call, and what ours cost in CPU."""
    ours = [Subject(OURS, "agents:Async"), Subject(PLAIN, "agents:Plain")]
    process = Subject(PROCESS, "agents:AsyncProcess")
    subjects = bench.subjects([*ours, process, Subject(YARDSTICK, "raw:Durable")], PEERS)
    turn, rounds = bench.times(TURN, least=5), bench.times(ROUNDS, least=2)
    made = []
    for name, read in CASES:
        case = {"size": SIZE, "read": read, "real_time": True}
        measured = in_turns(subjects, bench.place(), case, turn=turn, rounds=rounds)
        counted = {one.name: flushes(one, bench.place(), case) for one in subjects}
        made += results(name, measured, YARDSTICK, 1000, counted.get)
    for name, read in CASES:
        case = {"size": SIZE, "read": read, "real_time": True}
        used = in_turns(ours, bench.place(), case, turn=turn * 4, rounds=rounds, clock="cpu")
        made += [
            replace(one, ratio=None, size=None) for one in results(f"{name}, CPU", used, OURS, 1000)
        ]
    return made


def aims(results: Sequence[Result]) -> list[Aim]:
    """CPU and flushes of ours; and the best of those that survive power loss."""
    made = [
        Aim(
            "read-only call, ms of CPU",
            READ_CPU_MS,
            found(results, "read-only call, CPU", name).median,
        )
        for name in (OURS, PLAIN)
    ]
    counted = found(results, "side effect", OURS).flushes
    if counted is not None:
        made.append(Aim("side effect, flushes that are waited for", FLUSHES, round(counted)))
    for name, _ in CASES:
        theirs = [
            one.median
            for one in results
            if one.case == name and one.subject in dict(PEERS) and "NORMAL" not in one.subject
        ]
        if theirs:
            best = min(theirs) / found(results, name, OURS).median
            made.append(Aim(f"{name}, times as fast as the best other", TIMES_FASTER, best, True))
    return made
