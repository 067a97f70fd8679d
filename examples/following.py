"""Follows the log of a run while the agent writes it, through all of the agent's lives."""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from eventlog import EventLog, LogReader, Record
from eventlog.errors import UnsupportedFormatError


@dataclass
class Progress:
    """What the records of the run say, up to the one with LSN ``lsn``."""

    lsn: int = 0
    step: int = 0
    results: int = 0
    under_way: dict[int, str] = field(default_factory=dict)  # tools by the LSN of the call

    def add(self, record: Record) -> None:
        self.lsn = record.lsn
        match record.kind:
            case "step":
                self.step = record.body["step"]
            case "call":
                self.under_way[record.lsn] = record.body["tool"]
            case "outcome" | "failure" | "resolved":
                if record.body.get("how") != "retry":
                    self.results += 1
                    self.under_way.pop(record.body["call"])


class Follower:
    """Reads the log while the agent writes it, through all of the agent's lives."""

    def __init__(self, log: Path) -> None:
        self.progress = Progress()
        self._log = log
        self._records: queue.SimpleQueue[Record | Exception] = queue.SimpleQueue()
        threading.Thread(target=self._follow, daemon=True).start()

    def catch_up(self) -> int:
        """Take in what has come; how many records that were (without the mark of a new life)."""
        count = 0
        while not self._records.empty():
            record = self._records.get()
            if isinstance(record, Exception):
                raise record
            self.progress.add(record)
            count += record.kind != "run_resumed"
        return count

    def catch_up_to_the_end(self) -> None:
        """The same up to the end of a log that nobody writes to now."""
        try:
            with EventLog.read(self._log) as reader:
                last = max((record.lsn for record in reader.records()), default=0)
        except (FileNotFoundError, UnsupportedFormatError):
            return  # killed before there was a log
        while self.progress.lsn < last:
            time.sleep(0.002)
            self.catch_up()

    def _follow(self) -> None:
        try:
            for record in self._reader().records(follow=True):
                self._records.put(record)
        except Exception as exc:  # for the thread that looks at the records
            self._records.put(exc)

    def _reader(self) -> LogReader:
        while True:
            try:
                return EventLog.read(self._log)
            except (FileNotFoundError, UnsupportedFormatError):  # not there, or not complete yet
                time.sleep(0.01)
