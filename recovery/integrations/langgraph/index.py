"""Knows where the checkpoints and writes of a thread are, from the end of its log.

Every so many checkpoints a snapshot holds what was added since the snapshot before it. So opening a
thread reads the newest snapshot and what follows. Older snapshots are read when they are asked for.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

from eventlog import Record, Snapshot

THREAD, CHECKPOINT, WRITES = "langgraph.thread", "langgraph.checkpoint", "langgraph.writes"
FORMAT = 1
EVERY = 64  # checkpoints between two snapshots

BodyOf = Callable[[int], dict[str, Any]]


class Entry:
    """A checkpoint: where it is, what it comes from, and where the writes after it are.

    ``lsn`` is 0 as long as only writes of it are recorded.
    """

    __slots__ = ("id", "lsn", "ns", "parent", "run", "writes")

    def __init__(self, ns: str, id: str) -> None:
        self.ns, self.id = ns, id
        self.lsn = 0
        self.parent = self.run = ""
        self.writes: list[int] = []


class Index:
    """The checkpoints of a thread. ``read``: the body of a record, for older snapshots."""

    def __init__(self, read: BodyOf) -> None:
        self._read = read
        self.thread: str | None = None
        self.is_partial = False  # a copy of another thread that was not finished
        self._spaces: dict[str, dict[str, Entry]] = {}
        self._newest = ""  # the highest id in the root namespace
        self._older = 0  # the newest snapshot that is not read yet
        self._snapshot = 0  # the newest one
        self._rows: list[list[Any]] = []  # since then
        self.checkpoints = 0  # since then

    # -- questions

    def find(self, ns: str, id: str) -> Entry | None:
        """The checkpoint of this id."""
        while True:
            entry = self._spaces.get(ns, {}).get(id)
            if entry is not None and entry.lsn:
                return entry
            if not self._read_older():
                return None

    def latest(self, ns: str) -> Entry | None:
        """The checkpoint of the highest id."""
        if ns == "":
            return self.find(ns, self._newest) if self._newest else None
        return max(self.all(ns), key=lambda entry: entry.id, default=None)

    def all(self, ns: str | None = None) -> list[Entry]:
        """The checkpoints of a namespace, or of all."""
        while self._read_older():
            pass
        spaces = self._spaces.values() if ns is None else [self._spaces.get(ns, {})]
        return [entry for space in spaces for entry in space.values() if entry.lsn]

    def newest_lsns(self) -> dict[str, int]:
        """The LSN of the newest checkpoint of each namespace, among those that were read."""
        return {
            ns: max(entry.lsn for entry in space.values()) for ns, space in self._spaces.items()
        }

    def unrecorded(self) -> list[Entry]:
        """Checkpoints of which only writes are recorded."""
        self.all()
        return [e for space in self._spaces.values() for e in space.values() if not e.lsn]

    # -- what is recorded

    def apply(self, record: Record) -> Entry | None:
        """Take a record in; the checkpoint, if it is one."""
        if isinstance(record, Snapshot):
            self._apply_snapshot(record.lsn, record.body)
        elif record.kind == THREAD:
            self.thread, self.is_partial = record.body["thread"], "copying" in record.body
        elif record.kind == CHECKPOINT:
            body = record.body
            return self.add(record.lsn, body["ns"], body["id"], body["parent"], body["run"])
        elif record.kind == WRITES:
            self.add_writes(record.lsn, record.body["ns"], record.body["id"])
        return None

    def add(self, lsn: int, ns: str, id: str, parent: str, run: str) -> Entry:
        """A checkpoint, or a checkpoint again."""
        entry = self._entry(ns, id)
        entry.lsn, entry.parent, entry.run = lsn, parent, run
        if ns == "":
            self._newest = max(self._newest, id)
        self._rows.append([lsn, ns, id, parent, run])
        self.checkpoints += 1
        return entry

    def add_writes(self, lsn: int, ns: str, id: str) -> None:
        """Writes after a checkpoint, which may be recorded later."""
        self._entry(ns, id).writes.append(lsn)
        self._rows.append([lsn, ns, id])

    def _entry(self, ns: str, id: str) -> Entry:
        space = self._spaces.setdefault(ns, {})
        entry = space.get(id)
        if entry is None:
            entry = space[id] = Entry(ns, id)
        return entry

    # -- snapshots

    def snapshot(self, full: bool = False) -> dict[str, Any]:
        """What is to be recorded as the next snapshot; ``full``: it needs none before it."""
        rows = self._rows
        if full:
            rows = []
            for entry in self.all() + self.unrecorded():
                if entry.lsn:
                    rows.append([entry.lsn, entry.ns, entry.id, entry.parent, entry.run])
                rows += ([lsn, entry.ns, entry.id] for lsn in entry.writes)
            rows.sort()
        texts: dict[str, int] = {}
        packed = [
            [row[0], texts.setdefault(row[1], len(texts)), *_short(row, texts)] for row in rows
        ]
        return {
            "thread": self.thread,
            "format": FORMAT,
            "newest": self._newest,
            "before": 0 if full else self._snapshot,
            "full": full,
            "texts": list(texts),
            "rows": packed,
        }

    def snapshot_written(self, lsn: int) -> None:
        """The snapshot has this LSN. Rows of checkpoints that are not recorded yet stay."""
        self._snapshot, self.checkpoints = lsn, 0
        self._rows = [
            row for row in self._rows if len(row) == 3 and not self._spaces[row[1]][row[2]].lsn
        ]

    def keep(self, kept: list[Entry]) -> None:
        """Forget all other checkpoints."""
        self._spaces, self._rows, self._older = {}, [], 0
        for entry in kept:
            self._spaces.setdefault(entry.ns, {})[entry.id] = entry
        newest = (entry.id for entry in kept if entry.ns == "" and entry.lsn)
        self._newest = max(newest, default="")

    def _apply_snapshot(self, lsn: int, body: dict[str, Any]) -> None:
        known = self.thread is not None and not body["full"]
        self.thread, self.is_partial = body["thread"], False
        if not known:
            self._spaces, self._rows, self._newest = {}, [], body["newest"]
            self._older = body["before"]
            self._take(body)
        self.snapshot_written(lsn)

    def _read_older(self) -> bool:
        if not self._older:
            return False
        body = self._read(self._older)
        self._older = body["before"]
        self._take(body)
        return True

    def _take(self, body: dict[str, Any]) -> None:
        """Rows of a snapshot that is older than all that is known."""
        writes: dict[tuple[str, str], list[int]] = {}
        found: dict[tuple[str, str], list[Any]] = {}
        for row in _rows(body):
            if len(row) == 3:
                writes.setdefault((row[1], row[2]), []).append(row[0])
            else:
                found[row[1], row[2]] = row
        for (ns, id), row in found.items():
            entry = self._entry(ns, id)
            if not entry.lsn:
                entry.lsn, entry.parent, entry.run = row[0], row[3], row[4]
        for (ns, id), lsns in writes.items():
            entry = self._entry(ns, id)
            entry.writes = sorted({*lsns, *entry.writes})


def _short(row: list[Any], texts: dict[str, int]) -> list[Any]:
    short: list[Any] = [_packed_id(row[2])]
    if len(row) == 5:
        short += [_packed_id(row[3]), texts.setdefault(row[4], len(texts))]
    return short


def _rows(body: dict[str, Any]) -> Iterator[list[Any]]:
    texts = body["texts"]
    for lsn, ns, id, *more in body["rows"]:
        row = [lsn, texts[ns], _unpacked_id(id)]
        if more:
            row += [_unpacked_id(more[0]), texts[more[1]]]
        yield row


def _packed_id(id: str) -> bytes | str:
    """16 bytes for a UUID as LangGraph writes it."""
    try:
        made = uuid.UUID(id)
    except ValueError:
        return id
    return made.bytes if str(made) == id else id


def _unpacked_id(packed: bytes | str) -> str:
    return str(uuid.UUID(bytes=packed)) if isinstance(packed, bytes) else packed
