"""Databases: one row, or key, for each record, each committed by itself."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import msgpack

from .raw import record


class Sqlite:
    """A table of blobs, journal_mode=WAL; ``synchronous`` is FULL where a commit is to be durable.

    In its steady state: the WAL has its full size before the first step, and is written over from
    its start after each checkpoint.
    """

    def __init__(self, directory: Path, case: dict[str, Any]) -> None:
        self._connection = sqlite3.connect(directory / "db", isolation_level=None)
        execute = self._connection.execute
        execute("PRAGMA journal_mode=WAL")
        execute("PRAGMA synchronous=" + ("NORMAL" if case.get("unsynced") else "FULL"))
        execute("CREATE TABLE records (id INTEGER PRIMARY KEY, body BLOB)")
        self._record = record(case["size"])
        execute("BEGIN")
        for _ in range(6_000_000 // max(4096, case["size"])):  # the WAL is kept at 4 MB
            execute("INSERT INTO records (body) VALUES (?)", (bytes(max(4000, case["size"])),))
        execute("COMMIT")
        execute("PRAGMA wal_checkpoint(RESTART)")

    def step(self, number: int) -> None:
        packed = msgpack.packb([number, "record", self._record])
        self._connection.execute("INSERT INTO records (body) VALUES (?)", (packed,))

    def close(self) -> None:
        self._connection.close()


class Lmdb:
    """One transaction for each record; synced where a commit is to be durable."""

    def __init__(self, directory: Path, case: dict[str, Any]) -> None:
        import lmdb  # noqa: PLC0415 - in the environment of the peers

        sync = not case.get("unsynced")
        self._env = lmdb.open(str(directory / "lmdb"), map_size=8 << 30, sync=sync)
        self._record = record(case["size"])

    def step(self, number: int) -> None:
        with self._env.begin(write=True) as transaction:
            packed = msgpack.packb([number, "record", self._record])
            transaction.put(number.to_bytes(8, "big"), packed, append=True)

    def close(self) -> None:
        self._env.close()


class LevelDb:
    """Plyvel."""

    def __init__(self, directory: Path, case: dict[str, Any]) -> None:
        import plyvel  # noqa: PLC0415 - as above

        self._db = plyvel.DB(str(directory / "leveldb"), create_if_missing=True)
        self._record, self._sync = record(case["size"]), not case.get("unsynced")

    def step(self, number: int) -> None:
        packed = msgpack.packb([number, "record", self._record])
        self._db.put(number.to_bytes(8, "big"), packed, sync=self._sync)

    def close(self) -> None:
        self._db.close()


class RocksDb:
    """Rocksdict, its WAL synced where a commit is to be durable."""

    def __init__(self, directory: Path, case: dict[str, Any]) -> None:
        import rocksdict  # noqa: PLC0415 - as above

        self._db = rocksdict.Rdict(str(directory / "rocksdb"), rocksdict.Options(raw_mode=True))
        options = rocksdict.WriteOptions()
        options.sync = not case.get("unsynced")
        self._options, self._record = options, record(case["size"])

    def step(self, number: int) -> None:
        packed = msgpack.packb([number, "record", self._record])
        self._db.put(number.to_bytes(8, "big"), packed, self._options)

    def close(self) -> None:
        self._db.close()


class EventSourcing:
    """The event store of eventsourcing on SQLite, one event at a time."""

    def __init__(self, directory: Path, case: dict[str, Any]) -> None:
        from uuid import UUID  # noqa: PLC0415 - as above

        from eventsourcing.persistence import StoredEvent  # noqa: PLC0415 - as above
        from eventsourcing.sqlite import SQLiteAggregateRecorder, SQLiteDatastore  # noqa: PLC0415

        self._recorder = SQLiteAggregateRecorder(SQLiteDatastore(str(directory / "db")))
        self._recorder.create_table()
        self._event, self._id = StoredEvent, UUID(int=1)
        self._record = record(case["size"])

    def step(self, number: int) -> None:
        packed = msgpack.packb([number, "record", self._record])
        self._recorder.insert_events([self._event(self._id, number, "record", packed)])
