"""The process that reads: ``_reader DIRECTORY``. Follows every run and journal that there is."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from eventlog import Damage, EventLog, LogReader
from eventlog.errors import UnsupportedFormatError

from ._vitals import Vitals

DIRECTORY = Path(sys.argv[1])
LOOK_S = 0.25  # how often all of them are looked at

vitals = Vitals(DIRECTORY / "reader.vitals")


class Followed:
    """A log that is followed: each record once, in order, and none torn or damaged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reader: LogReader = EventLog.read(path)
        self._items = self._reader.arrivals()
        self._last = 0
        self._calls: set[int] = set()  # that have no outcome yet

    def look(self) -> None:
        """All that is new."""
        for item in self._items:
            if item is None:
                return
            if isinstance(item, Damage):
                wrong(f"{self.path.name}: {item}")
                return
            # A log that is cut off begins later; one that is followed from its start does not.
            if self._last and item.lsn != self._last + 1 and self.path.parent.name != "journal":
                wrong(f"{self.path.name}: LSN {item.lsn} behind {self._last}")
            if item.lsn <= self._last:
                wrong(f"{self.path.name}: LSN {item.lsn} again")
            self._last = item.lsn
            vitals.count("records")
            self._count_outcomes(item.kind, item.lsn, item.body if item.kind == "outcome" else {})

    def _count_outcomes(self, kind: str, lsn: int, body: dict[str, int]) -> None:
        if kind == "call":
            self._calls.add(lsn)
        elif kind == "outcome":
            if body["call"] not in self._calls:
                wrong(f"{self.path.name}: a second outcome of the call of LSN {body['call']}")
            self._calls.discard(body["call"])

    def close(self) -> None:
        self._reader.close()


def wrong(what: str) -> None:
    """Say so to whoever looks at the end."""
    with (DIRECTORY / "wrong").open("a") as file:
        file.write(f"reader: {what}\n")


def main() -> None:
    """Until killed: take up what is new, let go of what has been removed."""
    vitals.start()
    followed: dict[Path, Followed] = {}
    while True:
        places = {path for where in ("runs", "journal") for path in (DIRECTORY / where).glob("*")}
        for path in [path for path in followed if path not in places]:
            followed.pop(path).close()
        for path in places - followed.keys():
            try:
                followed[path] = Followed(path)
            except (FileNotFoundError, UnsupportedFormatError):  # just being made, or removed
                continue
        for path, one in list(followed.items()):
            try:
                one.look()
            except FileNotFoundError:  # removed meanwhile
                followed.pop(path).close()
        time.sleep(LOOK_S)


if __name__ == "__main__":
    main()
