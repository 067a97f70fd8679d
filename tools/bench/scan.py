"""Reading a whole log."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace

from ._bench import Bench, Chart
from ._result import Aim, Result, number
from ._worker import Subject, Worker, in_turns, results

TITLE = "Reading a whole log"
ABOUT = """\
A log of a gigabyte (200 B: a quarter of one), a frame for each record, in the page cache.
*Verify* is what `logdump verify` does: every frame, checksum, index and digest, and that bodies
can be decoded; its yardstick reads the same files and takes zlib's CRC-32 of all that is in them.
*Dump* is `logdump dump --json`, which checks as much and writes every record as a line of JSON, to
/dev/null; same yardstick.
*Verify and decode* is what `EventLog.read(...).records()` does when every body is looked at; its
yardstick selects as many rows from an SQLite table and unpacks them with msgpack, and checks
nothing. Memory is what a pass takes at its peak beyond what the process had before."""
UNIT = "s of CPU for each GB of records"
YARDSTICK = "its yardstick"
CHART = Chart("bars", log=False)

OURS, SUMMED, SELECTED = "agent-eventlog", "read + CRC-32", "SELECT + msgpack"
VERIFY, DUMP, DECODE = "verify", "dump", "verify and decode"
SIZES = (
    ("200 B", 200, 250_000_000, None),
    ("2 KiB", 2 << 10, 1_000_000_000, 1.8),
    ("64 KiB", 64 << 10, 1_000_000_000, 1.1),
)
ROUNDS = 5
DECODE_LIMIT, MEMORY_LIMIT_MB = 1.0, 100
PAIRS = (
    (VERIFY, "scans:Verified", SUMMED, "scans:Summed"),
    (DUMP, "scans:Dumped", SUMMED, "scans:Summed"),
    (DECODE, "scans:Decoded", SELECTED, "scans:Selected"),
)


def run(bench: Bench) -> list[Result]:
    """Each size."""
    made: list[Result] = []
    for name, size, total, _ in SIZES:
        place, count = bench.place(), bench.times(total // size, 10)
        case = {"place": str(place), "size": size, "count": count}
        with Worker(Subject("the log", "scans:Made"), bench.place(), case) as worker:
            worker.ask("make")
        for what, kind, yardstick, yardstick_kind in PAIRS:
            ours = Subject(OURS, kind)
            subjects = [ours, Subject(yardstick, yardstick_kind)]
            measured = in_turns(subjects, bench.place(), case, turn=1, rounds=ROUNDS, clock="cpu")
            with Worker(ours, bench.place(), case) as worker:
                memory = f"{number(worker.ask('memory') / 1e6)} MB of memory"
            made += [
                replace(one, size=None, note=memory if one.subject == OURS else "")
                for one in results(f"{name}, {what}", measured, yardstick, 1e9 / (count * size))
            ]
        shutil.rmtree(place)
    return made


def aims(results: Sequence[Result]) -> list[Aim]:
    """Against the yardsticks; and memory, whatever the size."""
    limits = {name: limit for name, _, _, limit in SIZES}
    made = []
    for one in results:
        size, what = one.case.split(", ")
        limit = {VERIFY: limits[size], DECODE: DECODE_LIMIT}.get(what)
        if one.subject == OURS and one.ratio is not None and limit is not None:
            made.append(Aim(one.case, limit, one.ratio))
    most = max(float(one.note.split()[0].replace(",", "")) for one in results if one.note)
    return [*made, Aim("MB of memory, the most of all", MEMORY_LIMIT_MB, most)]
