"""The store of runs in PostgreSQL: claims, messages, listings."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import Any

import psycopg

from eventlog import LogError, LogOwner
from eventlog.encryption import Encryption
from eventlog.errors import UnreachableError
from eventlog.remote.log import RemoteReader, ServerClock
from eventlog.remote.log_server import (
    HEAD_ALONE,
    Head,
    Loaded,
    LostConnectionError,
    LostOwner,
)
from eventlog.remote.log_url import url_of
from eventlog.remote.owner_processes import is_dead, machine
from recovery.errors import RecoveryError
from recovery.stores.postgres.connections import Connections
from recovery.stores.postgres.keys import PostgresKeys
from recovery.stores.postgres.log_server import PostgresLogServer
from recovery.stores.postgres.watch import Watch
from recovery.stores.protocol import (
    INBOX,
    KeptListing,
    LogBytes,
    ReadsRuns,
    RunEntry,
    check_run_id,
)
from recovery.stores.remote_store import RemoteStore
from recovery.stores.subject_keys import SubjectKeys

LEASE_S, PATIENCE_S = 30.0, 60.0
NEXT_AFTER_S = 0.02  # later than the server's clock has to say
DEATH_S = 1.0  # how soon the death of a process of this machine is noticed
KEYS_S = 1.0  # how soon a process sees that a subject was forgotten

# The inbox of a run that exists, and the run's end. The row of a new inbox is not in this
# statement's own snapshot, so its number is returned by itself. It is made while the run cannot be
# removed: an inbox without a run would take messages that no process reads.
_INBOX = """
with run as (select next_lsn from {s}.logs where name = %s and epoch > 0),
made as (
    insert into {s}.logs (name, log_id) select %s, %s from (
        select from {s}.logs where name = %s and epoch > 0
            and not exists (select from {s}.logs where name = %s)
        for key share
    ) as held
    on conflict (name) do nothing returning id
) select (select next_lsn - 1 from run), (select id from made)
"""
_HOLD = "select next_lsn from {s}.logs where name = any(%s) order by name desc for update"
_FIND = """
select l.name, l.shown,
    l.agent, l.priority, l.limit_key, coalesce(extract(epoch from l.due_at), 0)::float8,
    l.epoch, l.owner_pid, l.owner_host, l.owner_since, coalesce(l.lease_until > now(), false),
    l.next_lsn - 1, l.size, extract(epoch from l.changed_at)::float8
from {s}.runs l
where l.name > %(after)s
"""
# A run is in these states, of the view: written so that the planner sees how many there are.
_ENDED = "l.state = %(state{})s"
_OF_STATE = dict.fromkeys(("finished", "failed", "cancelled", "undone"), _ENDED) | {
    "running": "l.held and l.shown = %(state{})s",
    "interrupted": "l.state = 'running' and (l.lease_until is null or l.lease_until <= now())",
}
_OF_OTHERS = f"{_ENDED} and (l.lease_until is null or l.lease_until <= now())"
_BY_NAME = " order by l.name limit %(limit)s"
# Seconds until a run becomes due by itself, unless its owner renews its lease until then.
_NEXT = """
select extract(epoch from least(
    (select min(lease_until) from {s}.logs where held and lease_until > now()),
    (select min(due_at) from {s}.logs where due_at > now())
) - now())::float8
"""
# Processes of this machine that have a run; those of them that have died hold it no more.
_HERE = """
select distinct owner_pid from {s}.logs
where held and owner_machine = %s and lease_until > now()
"""
_DEAD = "l.owner_machine = %(machine)s and l.owner_pid = any(%(dead)s::int[])"
_FREE = f"(l.lease_until <= now() or ({_DEAD}))"
_DUE = f"""
    and ((l.due_at <= now() and (l.lease_until is null or {_FREE}))
        or (l.state = 'running' and {_FREE}))
order by l.priority desc, l.due_at nulls first limit %(limit)s
"""
_KEPT = """
select l.name, concat_ws(' ', l.epoch, l.next_lsn, i.id, i.next_lsn),
    coalesce(k.version, ''), coalesce(k.content, '')
from {s}.logs l
left join {s}.logs i on i.name = l.name || '/inbox'
left join {s}.listings k on k.log = l.id
where l.name = any(%s) and coalesce(l.lease_until <= now(), true)
"""
_KEEP = """
insert into {s}.listings (log, version, content)
select l.id, k.version, k.content
from unnest(%s::text[], %s::text[], %s::text[]) as k(name, version, content)
join {s}.logs l on l.name = k.name order by l.id
on conflict (log) do update set version = excluded.version, content = excluded.content
"""


_ADOPT = """
insert into {s}.logs (name, log_id, epoch, next_lsn, oldest_lsn, snapshot, first, tail, number,
    ends, size, state, due_at)
values (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s,
    case when %s > 0 then to_timestamp(%s) when %s = 'running' then now() end)
on conflict (name) do nothing returning id
"""
PIECE_SIZE = 1 << 20


class _TakenError(Exception):
    pass


class PostgresStore(RemoteStore):
    """Runs in a PostgreSQL database. The methods are those of RunStore and RunQueue.

    Args:
        url: ``postgresql://user:password@host/database``, as for psql. ``?schema=`` names the
            schema ("eventlog"), which is made and migrated when the store is first used.
        lease_s: How long a run stays its process' after that process was last heard of (30). The
            process renews it every third of that.
        patience_s: How long a commit waits for a server that does not answer (60), before the run
            ends with UnreachableError. It can be resumed.
        poll_s: How often messages to the runs of this process are looked for, in one statement for
            all, besides notifications (60).
        listen_url: A URL without a connection pooler, for notifications (the same). A pooler in
            transaction mode delivers none.
        encryption: Encrypts everything that runs record (None), except their ids.

    Raises LogError for a server that loses what it acknowledges (fsync or synchronous_commit off),
    for a newer schema; UnreachableError.
    """

    log_server: PostgresLogServer

    def __init__(
        self,
        url: str,
        *,
        lease_s: float = LEASE_S,
        patience_s: float = PATIENCE_S,
        poll_s: float = 60.0,
        listen_url: str | None = None,
        encryption: Encryption | None = None,
    ) -> None:
        clock = ServerClock()
        log_server = PostgresLogServer(Connections.to(url, patience_s), clock)
        super().__init__(
            log_server, clock, lease_s=lease_s, patience_s=patience_s, encryption=encryption
        )
        document = PostgresKeys(log_server.connections)
        self.subject_keys = SubjectKeys(document, encryption, look_every_s=KEYS_S)
        self._watch = Watch(log_server, poll_s, listen_url)
        self._seen = 0  # of the changes that the watch has heard of
        self._here: list[LostOwner] = []  # processes of this machine that had runs

    def loaded_run(self, head: Head) -> Loaded | None:
        """The run and its inbox, in one statement; the inbox is watched from now on."""
        run_id, name = head.name, f"{head.name}/{INBOX}"
        self._watch.add(run_id, head.owner)
        found = self.log_server.load_many({run_id: (0, 0), name: (0, 0)})
        self._watch.put(run_id, found.get(name))
        return found.get(run_id)

    def closed_run(self, head: Head) -> None:
        """See RemoteStore."""
        self._watch.remove(head.name, head.owner)

    def inbox(self, run_id: str) -> RemoteReader | None:
        """See ``RunStore.inbox``. Asks no server for a run that this process has."""
        watched = self._watch.get(check_run_id(run_id))
        if watched is None:
            return super().inbox(run_id)
        if watched.directory is None:
            return None
        return RemoteReader(self.clock, watched.directory, self.encryption, watched=True)

    def post(
        self,
        run_id: str,
        kind: str,
        body: Mapping[str, Any],
        key: str = "",
        time_ns: int | None = None,
    ) -> int:
        """See ``RunStore.post``."""
        lsn = super().post(run_id, kind, body, key, time_ns)
        self._watch.look([run_id])
        return lsn

    def wait(self, timeout_s: float) -> bool:
        """See ``RunQueue.wait``. Also until the next lease ends, or the next run is due."""
        ((next_s,),) = self.log_server.rows(_NEXT)
        is_soon = next_s is not None and next_s + NEXT_AFTER_S < timeout_s
        until = time.monotonic() + (next_s + NEXT_AFTER_S if is_soon else timeout_s)
        changed = False
        while not changed and (left_s := until - time.monotonic()) > 0:
            here = self._here
            changed = self._watch.wait(min(left_s, DEATH_S) if here else left_s, self._seen)
            changed = changed or any(map(is_dead, here))
        before, self._seen = self._seen, self._watch.changes  # it may have heard of one just now
        return changed or is_soon or self._seen > before

    @property
    def away_s(self) -> float:
        """For how long the server has taken no connection; 0.0: it does."""
        return self.log_server.connections.away_s

    @property
    def outages(self) -> int:
        """How often it has taken none, for the stores of this process."""
        return self.log_server.connections.outages

    def __repr__(self) -> str:
        return f"PostgresStore({self.address!r})"

    def run_ids(self) -> list[str]:
        """See ``RunStore.run_ids``."""
        rows = self.log_server.rows(
            "select name from {s}.logs where epoch > 0 and strpos(name, '/') = 0 order by name"
        )
        return [name for (name,) in rows]

    def loaded_inbox(self, run_id: str) -> tuple[int | None, Loaded]:
        """See RemoteStore."""
        name = f"{run_id}/{INBOX}"
        values = (run_id, name, os.urandom(16), run_id, name)
        ((run_lsn, _),) = self.log_server.rows(_INBOX, values)
        loaded = self.log_server.load(name)
        if run_lsn is None or loaded is None:
            return None, loaded  # type: ignore[return-value]
        return run_lsn, loaded

    def remove(self, run_id: str, at: int | None = None, inbox: int | None = None) -> None:
        """See ``RunStore.remove``. In one transaction, or one statement without ``inbox``."""
        tries, asked = 0, self.log_server.sql("select {s}.remove(%s, %s)")
        values = (check_run_id(run_id), at)

        def act(connection: psycopg.Connection[Any]) -> str:
            nonlocal tries
            tries += 1
            if inbox is None:
                ((found,),) = connection.execute(asked, values).fetchall()
                return str(found)
            with connection.transaction() as transaction:
                newest = self._held_inbox(connection, run_id)
                ((found,),) = connection.execute(asked, values).fetchall()
                if found == "removed" and newest != inbox:
                    found = "sent"
                    raise psycopg.Rollback(transaction)
            return str(found)

        found = self.log_server.connections.ask(act)
        path = url_of(self.address, run_id)
        if found == "missing" and tries > 1:  # its first answer was lost
            return
        if found == "missing":
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if found == "held":
            loaded = self.log_server.load(run_id, HEAD_ALONE)
            if loaded is not None:
                raise self._locked(loaded.head)
        if found == "sent":
            raise LogError(
                f"{path} was sent a message since it was read. Nothing was removed. Look at it "
                "again."
            )
        if found != "removed":
            raise LogError(
                f"{path} does not end at LSN {at} any more: another process has used it since it "
                "was read. Nothing was removed. Look at it again."
            )

    def _held_inbox(self, connection: psycopg.Connection[Any], run_id: str) -> int:
        """The LSN of the newest message to a run, 0 if there is none. Until the transaction ends,
        no process sends another one, and none makes the inbox."""
        inbox, sql = f"{run_id}/{INBOX}", self.log_server.sql
        # The inbox first, as senders do: else they and this could wait for each other.
        connection.execute(sql(_HOLD), ([run_id, inbox],))
        found = connection.execute(sql(_HOLD), ([inbox],)).fetchall()  # made just before
        return found[0][0] - 1 if found else 0

    def adopt(self, run_id: str, logs: Mapping[str, LogBytes]) -> None:
        """See ``AdoptsLogs.adopt``. In one transaction."""
        check_run_id(run_id)
        sql = self.log_server.sql

        def act(connection: psycopg.Connection[Any]) -> bool:
            with connection.transaction(), connection.cursor() as cursor:
                for name, log in logs.items():
                    cursor.execute(
                        sql(_ADOPT), _adopted(f"{run_id}/{name}" if name else run_id, log)
                    )
                    row = cursor.fetchone()
                    if row is None:
                        raise _TakenError
                    for number, data in log.segments.items():
                        for at in range(0, len(data), PIECE_SIZE):
                            cursor.execute(
                                sql("insert into {s}.pieces values (%s, %s, %s, %b)"),
                                (row[0], number, at, data[at : at + PIECE_SIZE]),
                            )
            return True

        try:
            self.log_server.connections.run(act)
        except _TakenError:
            raise RecoveryError(
                f"{self.address} has a run {run_id!r} already. Nothing was copied."
            ) from None
        except LostConnectionError as exc:
            raise UnreachableError(self.address, 0, exc) from exc

    def make_durable(self, run_id: str) -> None:
        """See AdoptsLogs: ``run_id`` is seen once it is durable."""

    def describe(self) -> list[tuple[str, str, str]]:
        """See DescribesServer."""
        ((version, standbys, bits),) = self.log_server.rows(
            "select current_setting('server_version'), "
            "current_setting('synchronous_standby_names'), current_setting('data_checksums')"
        )
        began = time.perf_counter()
        self.log_server.rows("select 1")
        took_ms = (time.perf_counter() - began) * 1000
        no_standby = "A failover may lose the newest records: set synchronous_standby_names."
        return [
            ("server", f"PostgreSQL {version}; page checksums {bits}", ""),
            ("standby", standbys or "no synchronous standby", "" if standbys else no_standby),
            ("round trip", f"{took_ms:.1f} ms", ""),
        ]

    # -- RunQueue

    def find(
        self,
        *,
        states: Collection[str] = (),
        due: bool = False,
        agents: Collection[str] | None = None,
        after: str = "",
        limit: int = 1000,
    ) -> list[RunEntry]:
        """See ``RunQueue.find``."""
        values: dict[str, Any] = {"after": after, "limit": limit}
        one = _FIND
        if agents is not None:
            one += " and l.agent = any(%(agents)s::text[])"
            values["agents"] = sorted(agents)
        if due:
            one += " and l.shown = any(%(states)s::text[])" if states else ""
            values |= self._dead()
            rows = self.log_server.rows(one + _DUE, values | {"states": sorted(states)})
        elif not states:
            rows = self.log_server.rows(one + _BY_NAME, values)
        else:
            # The index has the runs of each state in their order: a query for each, not for all.
            values |= {f"state{i}": state for i, state in enumerate(states)}
            parts = [
                f"({one} and {_OF_STATE.get(state, _OF_OTHERS).format(i)}{_BY_NAME})"
                for i, state in enumerate(states)
            ]
            rows = self.log_server.rows(" union all ".join(parts), values)
            rows = sorted(rows, key=itemgetter(0))[:limit]
        return [_entry(row) for row in rows]

    def _dead(self) -> dict[str, Any]:
        """The processes of this machine that have died with a run."""
        ours = machine()
        found = self.log_server.rows(_HERE, (ours,)) if ours else []
        here = [LostOwner(pid, "", ours, 0) for (pid,) in found]
        self._here = [owner for owner in here if not is_dead(owner)]
        return {"machine": ours, "dead": [owner.pid for owner in here if owner not in self._here]}

    # -- ReadsManyRuns

    def loaded(self, run_ids: Sequence[str]) -> ReadsRuns:
        """See ``ReadsManyRuns.loaded``."""
        names = (name for run_id in run_ids for name in (run_id, f"{run_id}/{INBOX}"))
        return _LoadedRuns(self, self.log_server.load_many(dict.fromkeys(names, (0, 0))))

    def kept(self, run_ids: Sequence[str]) -> dict[str, KeptListing]:
        """See ``ReadsManyRuns.kept``."""
        rows = self.log_server.rows(_KEPT, (list(run_ids),))
        return {name: KeptListing(*found) for name, *found in rows}

    def keep(self, contents: Mapping[str, tuple[str, str]]) -> None:
        """See ``ReadsManyRuns.keep``."""
        versions = [version for version, _ in contents.values()]
        values = (list(contents), versions, [content for _, content in contents.values()])
        # The role may only read; or a run was removed just now.
        with suppress(psycopg.Error):
            self.log_server.rows(_KEEP + "returning log", values)


class _LoadedRuns:
    """Runs as they were when they were loaded: see ReadsRuns."""

    def __init__(self, store: PostgresStore, found: Mapping[str, Loaded]) -> None:
        self._store, self._found = store, found
        self.time_ns = store.time_ns

    def read(self, run_id: str) -> RemoteReader | None:
        return self._store.reader_of(self._found.get(run_id), watched=True)

    def inbox(self, run_id: str) -> RemoteReader | None:
        return self.read(f"{run_id}/{INBOX}")


def _adopted(name: str, log: LogBytes) -> tuple[Any, ...]:
    numbers = sorted(log.segments)
    last = numbers[-1] if numbers else 0
    wake_at = float(log.label.wake_at or 0)
    return (
        name,
        log.log_id,
        0 if "/" in name else log.epoch,  # an inbox has no owner
        log.next_lsn,
        log.oldest_lsn,
        log.snapshot,
        numbers[0] if numbers else 1,
        log.snapshot_segment,
        last,
        len(log.segments.get(last, b"")),
        sum(map(len, log.segments.values())),
        log.label.state,
        wake_at,
        wake_at,
        log.label.state,
    )


def _entry(row: Any) -> RunEntry:
    run_id, state, agent, priority, key, due, epoch, pid, host, since, alive, last, size, when = row
    owner = None
    if epoch:
        owner = LogOwner(epoch, pid, host, since.strftime("%Y-%m-%dT%H:%M:%SZ"), alive)
    return RunEntry(
        run_id, state, agent, priority, key, int(due * 1e9), owner, last, size, int(when * 1e9)
    )
