"""Sends a statement with arrays as the server has them, without the driver's layers.

The driver looks at each item of each array to find its type. For the statement of each commit, that
took longer than all the rest in this process. Nor does the server parse that statement each time.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from typing import Any

import psycopg
from psycopg import pq
from psycopg.errors import error_from_result
from psycopg.generators import execute
from psycopg.pq.abc import PGresult

# The types of parameters.
INTEGER, BLOB, FLOAT, INTEGERS, BLOBS, TEXTS = 20, 17, 701, 1016, 1001, 1009
_TEXT = 25
_IS_PREPARED, _IS_UNKNOWN = b"42P05", b"26000"  # SQLSTATEs
_NULL = struct.pack(">i", -1)
_EMPTY_INTEGERS, _EMPTY_BLOBS, _EMPTY_TEXTS = (
    struct.pack(">iii", 0, 0, kind) for kind in (INTEGER, BLOB, _TEXT)
)


class Prepared:
    """The statements that the server has prepared for one connection. Not thread-safe.

    A pooler may give the next statement to a server process that does not know them. Then nothing
    was executed; the statement is sent whole, as are all later ones of the connection.
    """

    def __init__(self) -> None:
        self._names: set[bytes] | None = set()  # None: the connection leads to a pooler

    def query(
        self,
        connection: psycopg.Connection[Any],
        statement: bytes,
        values: Sequence[bytes],
        types: Sequence[int],
    ) -> bytes | None:
        """The one value that the statement gives; None if it gives no row. It and ``values`` are in
        binary; ``types`` are theirs."""
        pgconn, binary = connection.pgconn, [1] * len(values)
        if self._names is not None:
            # Where a statement of this name is prepared already, it is this one.
            name = _name_of(statement)
            if name not in self._names:
                pgconn.send_prepare(name, statement, types)
                _result_of(connection, pq.ExecStatus.COMMAND_OK, _IS_PREPARED)
                self._names.add(name)
            pgconn.send_query_prepared(name, values, binary, 1)
            result = _result_of(connection, pq.ExecStatus.TUPLES_OK, _IS_UNKNOWN)
            if result is not None:
                return result.get_value(0, 0) if result.ntuples else None
            self._names = None
        pgconn.send_query_params(statement, values, types, binary, 1)
        result = _result_of(connection, pq.ExecStatus.TUPLES_OK)
        return result.get_value(0, 0) if result and result.ntuples else None


@cache
def _name_of(statement: bytes) -> bytes:
    return b"eventlog_" + sha256(statement).hexdigest()[:24].encode()


def _result_of(
    connection: psycopg.Connection[Any], expected: int, expected_error: bytes = b""
) -> PGresult | None:
    """The result of what was sent; None for the error of this SQLSTATE."""
    result: PGresult = connection.wait(execute(connection.pgconn))[-1]
    if result.status == expected:
        return result
    if expected_error and result.error_field(pq.DiagnosticField.SQLSTATE) == expected_error:
        return None
    raise error_from_result(result)


encode_integer = struct.Struct(">q").pack


def encode_float(value: float) -> bytes:
    """A double."""
    return struct.pack(">d", value)


def encode_integers(values: Sequence[int]) -> bytes:
    """An array of 64 bits each."""
    if not values:
        return _EMPTY_INTEGERS
    count = len(values)
    sized = [8] * (2 * count)
    sized[1::2] = values
    return struct.pack(">5i" + "iq" * count, 1, 0, INTEGER, count, 1, *sized)


def encode_blobs(values: Sequence[bytes]) -> bytes:
    """An array of byte strings."""
    return _array(BLOB, values) if values else _EMPTY_BLOBS


def encode_texts(values: Sequence[str | None]) -> bytes:
    """An array of texts, some of which may be null."""
    if not values:
        return _EMPTY_TEXTS
    return _array(_TEXT, [None if one is None else one.encode() for one in values])


def _array(kind: int, values: Sequence[bytes | None]) -> bytes:
    has_nulls = None in values
    parts = [struct.pack(">5i", 1, has_nulls, kind, len(values), 1)]
    for one in values:
        parts += (_NULL,) if one is None else (struct.pack(">i", len(one)), one)
    return b"".join(parts)


def decode_integers(data: bytes | None) -> list[int]:
    """The items of an array of 64 bits each; [] for null and for an empty one."""
    if data is None or len(data) < 20:
        return []
    count = int.from_bytes(data[12:16], "big")
    return list(struct.unpack_from(">" + "iq" * count, data, 20)[1::2])
