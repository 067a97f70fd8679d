"""What an agent of Pydantic AI waits for in each call of a tool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ._bench import Bench, Chart
from ._result import Aim, Result, found
from ._worker import Subject, in_turns, results

TITLE = "A tool call of a Pydantic AI agent"
ABOUT = """\
Runs of an agent whose model asks for one tool 20 times. The tool returns 2 KiB of text. What is
measured is the time from one request to the next. Pydantic AI itself takes more, the longer the
conversation is. Pydantic AI alone has a row of its own. *Its share* is
what a call takes more with our integration. CPU is of all threads of the process; that of
PostgreSQL is in processes of its own, and does not count.

With ours the tool is a side effect: its intent is durable before it starts. Each request is
recorded whole, and compared on replay, which is why ours takes more bytes. With DBOS the tool is a
step, as its documentation shows. DBOS records the answers of the model and of the tool, and no
intent. It is at SQLite, its default, and at PostgreSQL in its default settings, on a socket.
"""
UNIT = "ms"
YARDSTICK = "Pydantic AI alone"
CHART = Chart("bars")

OURS, SHARE = "agent-eventlog", "agent-eventlog, its share"
PEERS = (
    ("DBOS, SQLite", "pydantic_dbos:Sqlite"),
    ("DBOS, PostgreSQL", "pydantic_dbos:Postgres"),
)
SIZE, TURN, ROUNDS = 2 << 10, 20, 15
TIMES_FASTER = 1


def run(bench: Bench) -> list[Result]:
    """By the clock, and in CPU."""
    ours = [Subject(OURS, "pydantic_ours:Ours"), Subject(YARDSTICK, "pydantic_agents:Without")]
    subjects = bench.subjects(ours, PEERS)
    made = []
    for name, clock in (("a call", "steps"), ("a call, CPU", "cpu")):
        rounds = bench.times(ROUNDS, least=2)
        case = {"size": SIZE}
        measured = in_turns(subjects, bench.place(), case, turn=TURN, rounds=rounds, clock=clock)
        counted = {OURS, "DBOS, SQLite"} if clock == "steps" else set()
        here = [
            one if one.subject in counted else replace(one, size=None)
            for one in results(name, measured, YARDSTICK, 1000)
        ]
        share = here[0].median - here[1].median
        made += [here[0], Result(name, SHARE, share), *here[1:]]
    return made


def aims(results: Sequence[Result]) -> list[Aim]:
    """Faster than the best of the others."""
    made = []
    for case in ("a call", "a call, CPU"):
        theirs = [one.median for one in results if one.case == case and one.subject in dict(PEERS)]
        if theirs:
            best = min(theirs) / found(results, case, OURS).median
            made.append(
                Aim(f"{case}, times as fast as the best other", TIMES_FASTER, best, at_least=True)
            )
    return made
