"""Reading all that there is: of a log, and of a table that holds the same records."""

from __future__ import annotations

import os
import sqlite3
import zlib
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import msgpack
from logdump import main as logdump

from eventlog import EventLog
from eventlog.dump import verify

from .memory import forget_peak, peak
from .raw import record

PIECE = 1 << 20  # as files are read that are read from one end to the other


class _Place:
    """Where the log and the table are, of ``case["count"]`` records of ``case["size"]`` bytes."""

    def __init__(self, directory: Path, case: dict[str, Any]) -> None:
        place = Path(case["place"])
        self.log, self.table = place / "log", place / "table"
        self.count, self.size = case["count"], case["size"]


class Made(_Place):
    """What the others read."""

    def make(self) -> None:
        """A frame for each record; a row for each record."""
        body = record(self.size)
        with EventLog.open(self.log, "process") as log:
            for _ in range(self.count):
                log.append("record", body)
        with sqlite3.connect(self.table) as connection:
            connection.execute("PRAGMA synchronous=OFF")
            connection.execute("CREATE TABLE records (id INTEGER PRIMARY KEY, body BLOB)")
            packed = msgpack.packb(body)
            rows = ((packed,) for _ in range(self.count))
            connection.executemany("INSERT INTO records (body) VALUES (?)", rows)
        connection.close()


class _Scan(_Place):
    """A step is one pass over everything."""

    def step(self, number: int) -> None:
        found = self.scan()
        if found != self.count:
            raise RuntimeError(f"{found} of {self.count} records were read")

    def scan(self) -> int:
        """How many records, or something that says that all was read."""
        raise NotImplementedError

    def memory(self) -> int:
        """Bytes that a pass takes at its peak beyond what there was before."""
        before = forget_peak()
        self.step(0)
        return peak() - before


class Verified(_Scan):
    """Every byte checked, as `logdump verify` does it."""

    def scan(self) -> int:
        with EventLog.read(self.log) as reader:
            checking = verify(reader)
            while True:
                try:
                    finding = next(checking)
                except StopIteration as ended:
                    return int(ended.value.records)
                raise RuntimeError(f"the log is to be sound, and is not: {finding}")


class Dumped(_Scan):
    """Every record as a line of JSON, by the command itself."""

    def scan(self) -> int:
        with Path(os.devnull).open("w", encoding="ascii") as nowhere, redirect_stdout(nowhere):
            code = logdump(["dump", "--json", str(self.log)])
        return self.count if code == 0 else 0


class Decoded(_Scan):
    """Every record checked, and its body made into a value."""

    def scan(self) -> int:
        number = 0
        with EventLog.read(self.log) as reader:
            for found in reader.records():
                _ = found.body
                number += 1
        return number


class Summed(_Scan):
    """The yardstick: the files of the log read, and their bytes summed up."""

    def scan(self) -> int:
        piece, crc = bytearray(PIECE), 0
        view = memoryview(piece)
        for path in sorted(self.log.glob("*.seg")):
            with path.open("rb", buffering=0) as file:
                while size := file.readinto(piece):
                    crc = zlib.crc32(view[:size], crc)
        return self.count if crc else 0


class Selected(_Scan):
    """The other yardstick: a table of as many rows."""

    def scan(self) -> int:
        unpack: Callable[[bytes], Any] = msgpack.unpackb
        number = 0
        connection = sqlite3.connect(self.table)
        for (body,) in connection.execute("SELECT body FROM records"):
            unpack(body)
            number += 1
        connection.close()
        return number
