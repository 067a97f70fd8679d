"""(a) Durable appends: EventLog.append + commit, one record each, in its default settings."""

from __future__ import annotations

import os
import random
from pathlib import Path

from eventlog import EventLog

from ._measure import Result, in_turns, progress

TITLE = "append: a record of that size, durable"
YARDSTICK = "os.write + os.fdatasync of as many bytes on a growing file"

SIZES = (("200 B", 200, 3000), ("2 KiB", 2 << 10, 3000), ("64 KiB", 64 << 10, 600))
TURN = 10


def run(directory: Path, scale: float) -> list[Result]:
    """Measure all sizes, each with files of its own."""
    return [_size(directory, *size, scale=scale) for size in SIZES]


def _size(directory: Path, name: str, size: int, count: int, *, scale: float) -> Result:
    progress(f"append {name}")
    body = random.Random(size).randbytes(size)  # which no file system can compress
    count = max(TURN, int(count * scale) // TURN * TURN)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    raw = os.open(directory / f"raw-{size}", flags, 0o600)
    with EventLog.open(directory / f"log-{size}") as log:

        def append(_number: int) -> None:
            log.append("record", body)
            log.commit()

        def write(_number: int) -> None:
            os.write(raw, body)
            os.fdatasync(raw)

        try:
            return in_turns(name, append, write, count, turn=TURN)
        finally:
            os.close(raw)
