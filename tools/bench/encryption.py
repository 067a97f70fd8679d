"""(d) Encryption: EventLog.append + commit to an encrypted log, beside one in clear."""

from __future__ import annotations

import random
from pathlib import Path

from eventlog import EventLog
from eventlog._log import Durability
from eventlog.encryption import Encryption

from ._measure import Result, in_turns, progress

TITLE = "encryption: a record of that size, encrypted"
YARDSTICK = "the same in clear; with durability=process there is no flush to wait for"

SIZES = (("200 B", 200, 3000), ("2 KiB", 2 << 10, 3000), ("64 KiB", 64 << 10, 600))
TURN = 10


def run(directory: Path, scale: float) -> list[Result]:
    """Measure all sizes, with and without a flush, each with files of its own."""
    durabilities: tuple[Durability, ...] = ("power", "process")
    return [
        _size(directory, name, (size, count), durability, scale)
        for durability in durabilities
        for name, size, count in SIZES
    ]


def _size(
    directory: Path, name: str, size: tuple[int, int], durability: Durability, scale: float
) -> Result:
    label = f"{name}, {durability}"
    progress(f"encryption {label}")
    body = random.Random(size[0]).randbytes(size[0])
    count = max(TURN, int(size[1] * scale) // TURN * TURN)
    paths = [directory / f"{kind}-{size[0]}-{durability}" for kind in ("encrypted", "clear")]
    key = Encryption(random.Random(0).randbytes(32))
    with (
        EventLog.open(paths[0], durability, encryption=key) as encrypted,
        EventLog.open(paths[1], durability) as clear,
    ):

        def append(log: EventLog) -> None:
            log.append("record", body)
            log.commit()

        return in_turns(
            label, lambda _: append(encrypted), lambda _: append(clear), count, turn=TURN
        )
