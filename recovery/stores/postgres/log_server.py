"""Implements LogServer in PostgreSQL."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any

import psycopg

from eventlog.remote.log import ServerClock
from eventlog.remote.log_server import Batch, Head, Loaded, LostOwner, Owner, Piece
from recovery.stores.postgres.binary import (
    BLOB,
    BLOBS,
    FLOAT,
    INTEGER,
    INTEGERS,
    TEXTS,
    decode_integers,
    encode_blobs,
    encode_float,
    encode_integer,
    encode_integers,
    encode_texts,
)
from recovery.stores.postgres.connections import Connections

FEW = 4  # logs
LOADED_WHOLE = 1 << 20  # bytes: of a larger log, only what a recovery reads is loaded first

_HEAD = (
    "h.id, h.name, h.log_id, h.epoch, h.owner_pid, h.owner_host, h.owner_machine, h.owner_token, "
    "h.since_ns, h.is_held, h.is_alive, h.lost, h.next_lsn, h.oldest_lsn, h.snapshot, h.first, "
    "h.number, h.ends, h.size, h.now_ns"
)
_HEAD_COLUMNS = 20

# Heads, and of each segment the bytes after what is known, in order. `stop` shows a lost piece.
_LOAD = f"""
select {_HEAD}, p.number, p.start, p.stop, p.data, p.partial
from unnest(%s::text[], %s::integer[], %s::bigint[]) as k(name, number, at)
join {{s}}.heads h on h.name = k.name
left join lateral (
    select number, min(at) as start, max(at + length(data)) as stop,
        string_agg(data, ''::bytea order by at) as data, false as partial
    from {{s}}.pieces
    where log = h.id and (number, at) >= (k.number, k.at)
        and (k.number > 0 or h.size <= {LOADED_WHOLE} or number >= h.tail)
    group by number
    union all
    select number, 0, 64, substring(data from 1 for 64), true from {{s}}.pieces
    where log = h.id and at = 0 and k.number = 0 and h.size > {LOADED_WHOLE} and number < h.tail
) p on true
order by h.id, p.number
"""
_APPEND = "select {s}.append($1, $2, $3, $4, $5)"
_APPEND_TYPES = (FLOAT, INTEGERS, TEXTS, INTEGERS, BLOBS)
# What most commits are: one piece of one log, and nothing else. `append` takes longer for it.
_APPEND_PIECE = """
with head as (
    update {s}.logs set next_lsn = $4, oldest_lsn = $5, snapshot = $6, tail = $7, number = $8,
        ends = $9, size = size + length($12), changed_at = now(),
        lease_until = case when lease_until is not null then now() + $11 * interval '1 second' end
    where id = $1 and epoch = $2 and next_lsn = $3
        and current_setting('synchronous_commit') <> 'off'
    returning id
)
insert into {s}.pieces (log, number, at, data) select id, $8, $10, $12 from head returning log
"""
_APPEND_PIECE_TYPES = (*[INTEGER] * 10, FLOAT, BLOB)
_CLAIM = f"select {_HEAD} from {{s}}.claim(%s, %s, %s, %s, %s, %s, %s, %s, %s) h"
_RESOLVE = (
    "select l.id, l.epoch, l.next_lsn, p.data from unnest(%s::bigint[], %s::integer[], "
    "%s::bigint[]) as b(log, number, at) join {s}.logs l on l.id = b.log "
    "left join {s}.pieces p on p.log = b.log and p.number = b.number and p.at = b.at"
)


class PostgresLogServer:
    """Logs in the tables of one schema."""

    def __init__(self, connections: Connections, clock: ServerClock) -> None:
        self.connections, self.clock = connections, clock
        self.address = connections.address
        self._sql: dict[str, bytes] = {}

    def sql(self, statement: str) -> bytes:
        """The statement, in this store's schema."""
        found = self._sql.get(statement)
        if found is None:
            found = statement.replace("{s}", self.connections.schema).encode()
            self._sql[statement] = found
        return found

    def rows(self, statement: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> list[Any]:
        """The rows of a statement that may be repeated."""
        asked = self.sql(statement)
        return self.connections.ask(lambda one: one.execute(asked, values, binary=True).fetchall())

    def claim(
        self, name: str, log_id: bytes, owner: Owner, lease_s: float, instead_of: int | None = None
    ) -> Head:
        """See LogServer."""
        return self._claimed(name, log_id, owner, lease_s, instead_of, False)

    def claim_from_dead(
        self, name: str, log_id: bytes, owner: Owner, lease_s: float, instead_of: int
    ) -> Head:
        """See LogServer."""
        return self._claimed(name, log_id, owner, lease_s, instead_of, True)

    def _claimed(
        self,
        name: str,
        log_id: bytes,
        owner: Owner,
        lease_s: float,
        instead_of: int | None,
        is_dead: bool,
    ) -> Head:
        asked_at = time.monotonic_ns()
        who = (owner.pid, owner.host, owner.machine, owner.start)
        (row,) = self.rows(_CLAIM, (name, log_id, *who, lease_s, instead_of, is_dead))
        return self._head(row, asked_at)

    def load(self, name: str, after: tuple[int, int] = (0, 0)) -> Loaded | None:
        """See LogServer."""
        return self.load_many({name: after}).get(name)

    def load_many(self, after: dict[str, tuple[int, int]]) -> dict[str, Loaded]:
        """``load`` of several logs, in one statement."""
        asked_at = time.monotonic_ns()
        known = list(after.values())
        values = (list(after), [one[0] for one in known], [one[1] for one in known])
        asked = self.sql(_LOAD)

        def without_jit(connection: psycopg.Connection[Any]) -> list[Any]:
            # Without statistics of the tables, the server compiles the plan, for 0.3 s.
            with connection.transaction():
                connection.execute("set local jit = off")
                return connection.execute(asked, values, binary=True).fetchall()

        is_few = len(known) <= FEW
        rows = self.rows(_LOAD, values) if is_few else self.connections.ask(without_jit)
        found: dict[str, Loaded] = {}
        for row in rows:
            name = row[1]
            if name not in found:
                found[name] = Loaded(self._head(row, asked_at), [], frozenset())
            number, start, stop, data, partial = row[_HEAD_COLUMNS:]
            if number is None:
                continue
            loaded = found[name]
            if not partial and stop - start != len(data):  # a piece is lost: the others keep
                pieces = self.segment(loaded.head.key, number)  # their places
                loaded.pieces.extend(one for one in pieces if one.at >= start)
            else:
                loaded.pieces.append(Piece(number, start, data))
            if partial:
                found[name] = loaded._replace(partial=loaded.partial | {number})
        return found

    def segment(self, key: int, number: int) -> list[Piece]:
        """See LogServer."""
        rows = self.rows(
            "select number, at, data from {s}.pieces where log = %s and number = %s order by at",
            (key, number),
        )
        return [Piece(*row) for row in rows]

    def append(self, batches: Sequence[Batch], lease_s: float) -> set[int]:
        """See LogServer."""
        if len(batches) == 1 and self._append_piece(batches[0], lease_s):
            return {batches[0].key}
        # In one order, so that statements of two processes never wait for each other in a circle.
        ordered = sorted(batches, key=attrgetter("key"))
        pieces = [piece for one in ordered for piece in one.pieces]
        values = (
            encode_float(lease_s),
            encode_integers([number for one in ordered for number in _numbers(one)]),
            encode_texts([text for one in ordered for text in _texts(one)]),
            encode_integers([number for piece in pieces for number in piece[:2]]),
            encode_blobs([piece.data for piece in pieces]),
        )
        answer = self.connections.query(self.sql(_APPEND), values, _APPEND_TYPES)
        return set(decode_integers(answer))

    def _append_piece(self, batch: Batch, lease_s: float) -> bool:
        """Append a batch that is one piece. False: `append` does it, or decides why it cannot."""
        more = batch.keep_from or batch.label or batch.releases or batch.wakes
        if more or len(batch.pieces) != 1:
            return False
        (piece,) = batch.pieces
        ends = batch.key, batch.epoch, batch.expected, batch.next_lsn, batch.oldest_lsn
        numbers = *ends, batch.snapshot, batch.tail, piece.number, batch.end, piece.at
        values = [*map(encode_integer, numbers), encode_float(lease_s), piece.data]
        asked = self.sql(_APPEND_PIECE)
        return self.connections.query(asked, values, _APPEND_PIECE_TYPES) is not None

    def resolve(self, batches: Sequence[Batch]) -> dict[int, tuple[int, bool]]:
        """See LogServer."""
        last = [one.pieces[-1] if one.pieces else Piece(0, 0, b"") for one in batches]
        asked = self.sql(_RESOLVE)
        values = (
            [one.key for one in batches],
            [piece.number for piece in last],
            [piece.at for piece in last],
        )
        rows = self.connections.run(lambda one: one.execute(asked, values, binary=True).fetchall())
        found = {key: (epoch, next_lsn, data) for key, epoch, next_lsn, data in rows}
        return {
            one.key: _outcome(one, piece, *found[one.key])
            for one, piece in zip(batches, last, strict=True)
            if one.key in found
        }

    def _head(self, row: Sequence[Any], asked_at: int) -> Head:
        key, name, log_id, epoch, pid, host, machine, token, *rest = row[:_HEAD_COLUMNS]
        rest[3] = tuple(_lost(rest[3][i : i + 4]) for i in range(0, len(rest[3]), 4))
        head = Head(key, name, log_id, epoch, Owner(pid, host, machine, token), *rest)
        self.clock.learn(head.now_ns, asked_at)
        return head


def _lost(texts: Sequence[str]) -> LostOwner:
    pid, host, machine, since_us = texts
    return LostOwner(int(pid), host, machine, int(since_us) * 1000)


def _outcome(
    batch: Batch, piece: Piece, epoch: int, next_lsn: int, data: bytes | None
) -> tuple[int, bool]:
    is_there = bool(batch.pieces) and data == piece.data and next_lsn >= batch.next_lsn
    return (next_lsn if epoch == batch.epoch else 0), is_there


def _numbers(batch: Batch) -> tuple[int, ...]:
    """Those of the function `append`, in its order."""
    label = batch.label
    return (
        batch.key,
        batch.epoch,
        batch.expected,
        batch.next_lsn,
        batch.oldest_lsn,
        batch.snapshot,
        batch.tail,
        batch.number,
        batch.end,
        sum(len(piece.data) for piece in batch.pieces),
        batch.keep_from,
        batch.releases,
        len(batch.pieces),
        label.due_ns if label else 0,
        label.priority if label else 0,
    )


def _texts(batch: Batch) -> tuple[str | None, ...]:
    label = batch.label
    if label is None:
        return None, None, "", batch.wakes
    return label.state, label.agent, label.limit_key, batch.wakes


assert len(fields(Head)) == _HEAD_COLUMNS - 3
