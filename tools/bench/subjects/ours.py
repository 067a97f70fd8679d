"""eventlog."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eventlog import EventLog
from eventlog.encryption import Encryption

from .raw import record

BATCH = 100


class Append:
    """EventLog.append, and commit: what that waits for is the case's durability."""

    def __init__(self, directory: Path, case: dict[str, Any]) -> None:
        key = Encryption(bytes(range(32))) if case.get("encrypted") else None
        durability = case.get("durability", "power")
        self._log = EventLog.open(directory / "log", durability, encryption=key)
        self._record, self._commits = record(case["size"]), durability == "power"

    def step(self, number: int) -> None:
        self._log.append("record", self._record)
        if self._commits:
            self._log.commit()

    def close(self) -> None:
        self._log.close()


class Encrypted(Append):
    """The same to an encrypted log."""

    def __init__(self, directory: Path, case: dict[str, Any]) -> None:
        super().__init__(directory, {**case, "encrypted": True})


class Batches(Append):
    """EventLog.append_batch of a hundred records, once in a hundred steps."""

    def step(self, number: int) -> None:
        if number % BATCH == 0:
            self._log.append_batch([("record", self._record)] * BATCH)
