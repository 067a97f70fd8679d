"""Durable appends: one record for each commit."""

from __future__ import annotations

from collections.abc import Sequence

from ._bench import Bench, Chart
from ._result import Aim, Result, found
from ._worker import Subject, flushes, in_turns, results

TITLE = "Durable append, one record for each commit"
ABOUT = """\
What `EventLog.append` and `commit` take together, in the default settings, for a dict.
The yardstick is the least that any log does: `os.write` of as many bytes and
`os.fdatasync`, on a file that grows. Less than that is possible because a log that has zero-filled
space ahead does not change its file's size, which costs a journal commit where there is a journal.
SQLite is measured in its steady state, in which it writes over its WAL."""
UNIT = "ms"
YARDSTICK = "write + fdatasync"
CHART = Chart("bars", log=False)

OURS = "agent-eventlog"
SIZES = (
    ("200 B", 200, 1500, (0.85, 0.45)),
    ("2 KiB", 2 << 10, 1500, (0.70, 0.45)),
    ("64 KiB", 64 << 10, 400, (0.80, 0.55)),
)
TURN = 20
PEERS = (
    ("LMDB", "databases:Lmdb"),
    ("LevelDB (plyvel)", "databases:LevelDb"),
    ("RocksDB (rocksdict)", "databases:RocksDb"),
    ("eventsourcing, SQLite", "databases:EventSourcing"),
)
FASTER_THAN_SQLITE = 1.4


def run(bench: Bench) -> list[Result]:
    """Each size, on each file system."""
    made = []
    for where, directory in bench.file_systems():
        for name, size, count, _ in SIZES:
            subjects = bench.subjects(
                [
                    Subject(OURS, "ours:Append"),
                    Subject(YARDSTICK, "raw:Durable"),
                    Subject("SQLite WAL FULL", "databases:Sqlite"),
                ],
                PEERS,
            )
            case = {"size": size, "real_time": True}
            rounds = bench.times(count) // TURN + 1
            measured = in_turns(subjects, bench.place(directory), case, turn=TURN, rounds=rounds)
            by_name = {one.name: one for one in subjects}
            made += results(
                name + where,
                measured,
                YARDSTICK,
                1000,
                lambda one, by=by_name, case=case: flushes(by[one], bench.place(), case),  # type: ignore[misc]
            )
    return made


def aims(results: Sequence[Result]) -> list[Aim]:
    """Against the yardstick, and against SQLite."""
    made = []
    for one in results:
        if one.subject != OURS:
            continue
        size, _, where = one.case.partition(",")
        limits = next(limits for name, _, _, limits in SIZES if name == size)
        assert one.ratio is not None
        made.append(Aim(f"{one.case}, to write + fdatasync", limits[bool(where)], one.ratio))
        sqlite = found(results, one.case, "SQLite WAL FULL").mean
        assert one.mean is not None and sqlite is not None
        faster = sqlite / one.mean
        what = f"{one.case}, times as many a second as SQLite WAL FULL"
        made.append(Aim(what, FASTER_THAN_SQLITE, faster, at_least=True))
    return made
