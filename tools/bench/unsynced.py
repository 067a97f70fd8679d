"""Appends that wait for no flush: what the library itself costs."""

from __future__ import annotations

from collections.abc import Sequence

from ._bench import Bench, Chart
from ._result import Aim, Result
from ._worker import Subject, in_turns, results

TITLE = "Append without waiting: CPU for each record"
ABOUT = """\
`EventLog.append` with `durability="process"`, and `append_batch` of a hundred records: the CPU that
one record costs, system calls included. The yardstick packs as much with msgpack and hands it to
`os.write`: no frame, no checksums, no lock. Of records of 200 B and 2 KiB most turns do not come to
the end of a segment, and the median is of those; the mean has that too, and so have all turns of
64 KiB. Every 8 MB a segment is read once for its digest, and flushed, which the yardstick leaves to
the kernel; a batch of a hundred records of 64 KiB takes a segment of its own."""
UNIT = "µs of CPU"
YARDSTICK = "packb + write"
CHART = Chart("bars", log=False)

OURS, BATCHED = "agent-eventlog", "agent-eventlog, batches of 100"
SIZES = (("200 B", 200, 1.6), ("2 KiB", 2 << 10, 1.6), ("64 KiB", 64 << 10, 1.4))
TURN, ROUNDS = {"200 B": 5000, "2 KiB": 1000, "64 KiB": 100}, 40
BATCHED_LIMIT = 0.7
PEERS = (
    ("LMDB, no sync", "databases:Lmdb"),
    ("LevelDB (plyvel), no sync", "databases:LevelDb"),
    ("RocksDB (rocksdict), no sync", "databases:RocksDb"),
)


def run(bench: Bench) -> list[Result]:
    """Each size."""
    made = []
    for name, size, _ in SIZES:
        subjects = bench.subjects(
            [
                Subject(OURS, "ours:Append"),
                Subject(BATCHED, "ours:Batches"),
                Subject(YARDSTICK, "raw:Packed"),
                Subject("SQLite WAL NORMAL", "databases:Sqlite"),
            ],
            PEERS,
        )
        case = {"size": size, "durability": "process", "unsynced": True}
        turn = max(100, bench.times(TURN[name]) // 100 * 100)
        measured = in_turns(subjects, bench.place(), case, turn=turn, rounds=ROUNDS, clock="cpu")
        made += results(name, measured, YARDSTICK, 1e6)
    return made


def aims(results: Sequence[Result]) -> list[Aim]:
    """Against the yardstick, one by one and in batches."""
    limits = {name: limit for name, _, limit in SIZES}
    return [
        Aim(
            f"{one.case}, {'in batches' if one.subject == BATCHED else 'one by one'}",
            BATCHED_LIMIT if one.subject == BATCHED else limits[one.case],
            one.ratio,
        )
        for one in results
        if one.subject in (OURS, BATCHED) and one.ratio is not None
    ]
