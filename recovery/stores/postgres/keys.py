"""Keeps the keys of subjects in a table of one row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg

from recovery.stores.postgres.connections import Connections

# Changes wait for each other on a lock of the schema; it ends with the transaction.
_LOCK = "select pg_advisory_xact_lock(hashtext('{s}.subject_keys'))"
_TABLE = "create table if not exists {s}.subject_keys (document bytea not null)"


class PostgresKeys:
    """The document of keys of one schema. Implements KeyDocument.

    After a change the table is rewritten, so that no row of it has the former document. The
    server's write-ahead log has it until it is recycled or archived.
    """

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def head(self, size: int) -> bytes:
        """See ``KeyDocument.head``."""
        return self._read(f"substring(document from 1 for {int(size)})")

    def read(self) -> bytes:
        """See ``KeyDocument.read``."""
        return self._read("document")

    def _read(self, what: str) -> bytes:
        statement = self._sql(f"select {what} from {{s}}.subject_keys")

        def read(connection: psycopg.Connection[Any]) -> bytes:
            try:
                row = connection.execute(statement).fetchone()
            except psycopg.errors.UndefinedTable:
                return b""
            return bytes(row[0]) if row is not None else b""

        return self._connections.ask(read)

    def change(self, change: Callable[[bytes], bytes]) -> None:
        """See ``KeyDocument.change``."""

        def act(connection: psycopg.Connection[Any]) -> None:
            with connection.transaction():
                connection.execute(self._sql(_LOCK))
                connection.execute(self._sql(_TABLE))
                found = self._sql("select document from {s}.subject_keys for update")
                row = connection.execute(found).fetchone()
                new = change(bytes(row[0]) if row is not None else b"")
                verb = "insert into {s}.subject_keys values (%s)"
                if row is not None:
                    verb = "update {s}.subject_keys set document = %s"
                connection.execute(self._sql(verb), (new,))
            if row is not None:
                connection.execute(self._sql("vacuum full {s}.subject_keys"))

        self._connections.ask(act)

    def _sql(self, statement: str) -> str:
        return statement.replace("{s}", self._connections.schema)
