"""What a process says of itself every few seconds: memory, descriptors, threads, and times."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

EVERY_S = 5.0


class Vitals:
    """Appends a line of JSON to a file every ``EVERY_S``, from a thread of its own."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._times_s: list[float] = []
        self._counts: dict[str, int] = {}

    def start(self) -> None:
        """Begin; goes on until the process ends."""
        threading.Thread(target=self._run, daemon=True).start()

    def took(self, seconds: float) -> None:
        """A step took so long."""
        with self._lock:
            self._times_s.append(seconds)

    def count(self, what: str, by: int = 1) -> None:
        """Something has happened."""
        with self._lock:
            self._counts[what] = self._counts.get(what, 0) + by

    def _run(self) -> None:
        while True:
            time.sleep(EVERY_S)
            with self._lock:
                times, self._times_s = sorted(self._times_s), []
                counts = dict(self._counts)
            line = {**vitals_of("self"), "at": time.time(), "pid": os.getpid(), **counts}
            if times:
                line["p50_ms"] = times[len(times) // 2] * 1000
                line["p99_ms"] = times[len(times) * 99 // 100] * 1000
            with self._path.open("a") as file:
                file.write(json.dumps(line) + "\n")


def vitals_of(process: str) -> dict[str, Any]:
    """Memory (without what it shares with files), descriptors and threads of a process."""
    found = {}
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("RssAnon", "Threads"):
            found[name] = int(value.split()[0])
    descriptors = len(os.listdir(f"/proc/{process}/fd"))  # noqa: PTH208 - of names alone
    return {"memory_kb": found["RssAnon"], "threads": found["Threads"], "descriptors": descriptors}


def lines(path: Path) -> list[dict[str, Any]]:
    """What was written there; a line that a kill has cut off is left out."""
    made = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            made.append(json.loads(line))
        except ValueError:
            continue
    return made
