"""Creates and migrates the tables and functions of the store, in a schema of their own.

Each commit is a call of one function, whose plans the server keeps: so no client needs prepared
statements, which a connection pooler in transaction mode does not carry over.
"""

from __future__ import annotations

VERSION = 1

# Every log, its owner and its end are one row of `logs`. `pieces` has the bytes of its segments.
# Rows up to 8 KB stay in their page, uncompressed: the frames are checked by their own CRCs.
_TABLES = """
create table {s}.version (version integer not null);
insert into {s}.version values (1);

create table {s}.logs (
    id bigint generated always as identity primary key,
    name text collate "C" not null unique,
    log_id bytea not null,
    epoch bigint not null default 0,
    owner_pid integer not null default 0,
    owner_host text not null default '',
    owner_machine text not null default '',
    owner_token text not null default '',
    owner_since timestamptz not null default now(),
    lease_until timestamptz,
    held boolean not null default false,
    unclean boolean not null default false,
    next_lsn bigint not null default 1,
    oldest_lsn bigint not null default 1,
    snapshot bigint not null default 0,
    first integer not null default 1,
    tail integer not null default 0,
    number integer not null default 0,
    ends bigint not null default 0,
    size bigint not null default 0,
    state text not null default '',
    due_at timestamptz,
    agent text not null default '',
    priority integer not null default 0,
    limit_key text not null default '',
    changed_at timestamptz not null default now()
) with (fillfactor = 60);
create index logs_by_state on {s}.logs (state, name);
create index logs_held on {s}.logs (id) where held;
create index logs_by_due on {s}.logs (due_at) where due_at is not null;

create table {s}.pieces (
    log bigint not null,
    number integer not null,
    at bigint not null,
    data bytea not null,
    primary key (log, number, at)
) with (toast_tuple_target = 8160);
alter table {s}.pieces alter column data set storage external;

-- Runs, each with its state as people see it: a claimed run is running before it says so.
create view {s}.runs as select
    l.*,
    case when l.state in ('finished', 'failed', 'cancelled', 'undone') then l.state
        when l.lease_until > now() then 'running'
        when l.state = 'running' then 'interrupted' else l.state end as shown
from {s}.logs l where strpos(l.name, '/') = 0;

create view {s}.heads as select
    id, name, log_id, epoch, owner_pid, owner_host, owner_machine, owner_token,
    (extract(epoch from owner_since) * 1000000)::bigint * 1000 as since_ns,
    lease_until is not null as is_held,
    coalesce(lease_until > now(), false) as is_alive,
    unclean, next_lsn, oldest_lsn, snapshot, first, number, ends, size,
    (extract(epoch from clock_timestamp()) * 1000000)::bigint * 1000 as now_ns,
    tail
from {s}.logs;
"""

# An owner whose lease has ended is not known to be dead: it is fenced by the epoch, which `append`
# compares in the statement that inserts. `unclean` stays: such an owner may still act elsewhere.
_CLAIM = """
create function {s}.claim(
    p_name text, p_log_id bytea, p_pid integer, p_host text, p_machine text, p_token text,
    p_lease double precision, p_instead_of bigint, p_is_dead boolean
) returns setof {s}.heads language plpgsql as $f$
begin
    insert into {s}.logs as l (name, log_id, epoch, owner_pid, owner_host, owner_machine,
        owner_token, owner_since, lease_until, held)
    values (p_name, p_log_id, 1, p_pid, p_host, p_machine, p_token, now(),
        now() + p_lease * interval '1 second', true)
    on conflict (name) do update set
        epoch = l.epoch + 1, owner_pid = p_pid, owner_host = p_host, owner_machine = p_machine,
        owner_token = p_token, owner_since = now(), held = true,
        lease_until = now() + p_lease * interval '1 second',
        unclean = l.unclean or (l.lease_until is not null and not p_is_dead)
    where l.owner_token <> p_token
        and (l.lease_until is null or l.lease_until <= now() or l.epoch = p_instead_of);
    return query select * from {s}.heads where name = p_name;
end $f$;
"""

_APPEND = """
create function {s}.append(
    p_lease double precision, p_log bigint[], p_epoch bigint[], p_expected bigint[],
    p_next bigint[], p_oldest bigint[], p_snapshot bigint[], p_tail integer[], p_number integer[],
    p_ends bigint[], p_added bigint[], p_keep_from integer[], p_state text[], p_due bigint[],
    p_agent text[], p_priority integer[], p_key text[], p_releases boolean[],
    p_wakes text[], p_piece_log bigint[], p_piece_number integer[], p_piece_at bigint[],
    p_piece_data bytea[]
) returns bigint[] language plpgsql as $f$
declare
    accepted bigint[];
begin
    if current_setting('synchronous_commit') = 'off' then
        perform set_config('synchronous_commit', 'on', true);
    end if;
    with changed as (
        update {s}.logs l set
            next_lsn = b.next_lsn, oldest_lsn = b.oldest, snapshot = b.snapshot, tail = b.tail,
            number = b.number, ends = b.ends, first = greatest(l.first, b.keep_from),
            size = l.size + b.added,
            lease_until = case when b.releases then null when l.lease_until is null then null
                else now() + p_lease * interval '1 second' end,
            held = l.held and not b.releases,
            state = coalesce(b.state, l.state),
            due_at = case when b.releases and coalesce(b.state, l.state) = 'running' then now()
                when b.state is null then l.due_at
                when b.due > 0 then greatest(now(), to_timestamp(b.due / 1e9)) end,
            agent = coalesce(b.agent, l.agent),
            priority = case when b.agent is null then l.priority else b.priority end,
            limit_key = case when b.agent is null then l.limit_key else b.limit_key end,
            changed_at = now()
        from unnest(p_log, p_epoch, p_expected, p_next, p_oldest, p_snapshot, p_tail, p_number,
            p_ends, p_added, p_keep_from, p_state, p_due, p_agent, p_priority, p_key, p_releases)
            as b(log, epoch, expected, next_lsn, oldest, snapshot, tail, number, ends, added,
                keep_from, state, due, agent, priority, limit_key, releases)
        where l.id = b.log and l.epoch = b.epoch and l.next_lsn = b.expected
        returning l.id
    ), added as (
        insert into {s}.pieces (log, number, at, data)
        select q.log, q.number, q.at, q.data
        from unnest(p_piece_log, p_piece_number, p_piece_at, p_piece_data)
            as q(log, number, at, data)
        where q.log in (select id from changed)
    ) select array_agg(id) into accepted from changed;
    if exists (select from unnest(p_keep_from) as k(n) where n > 0) then
        delete from {s}.pieces p using unnest(p_log, p_keep_from) as b(log, keep_from)
        where b.log = any(accepted) and p.log = b.log and p.number < b.keep_from;
        update {s}.logs l set size = (select coalesce(sum(length(p.data)), 0)
            from {s}.pieces p where p.log = l.id)
        from unnest(p_log, p_keep_from) as b(log, keep_from)
        where b.log = any(accepted) and l.id = b.log and b.keep_from > 0;
    end if;
    if exists (select from unnest(p_wakes) as k(w) where w <> '') then
        update {s}.logs l set due_at = now() from unnest(p_log, p_wakes) as b(log, wakes)
        where b.log = any(accepted) and l.name = b.wakes
            and l.state in ('waiting', 'in doubt', 'parked');
        perform pg_notify('{s}', w)
        from unnest(p_log, p_wakes) as b(log, w) where b.log = any(accepted) and w <> '';
    end if;
    if exists (select from unnest(p_state, p_releases) as k(s, r) where s is not null or r) then
        perform pg_notify('{s}', '');
    end if;
    return accepted;
end $f$;
"""

_REMOVE = """
create function {s}.remove(p_name text, p_at bigint) returns text language plpgsql as $f$
declare
    found record;
begin
    select * into found from {s}.logs where name = p_name for update;
    if found.id is null or (found.epoch = 0 and found.state <> 'submitted') then
        return 'missing';
    elsif found.lease_until > now() then
        return 'held';
    elsif p_at is not null and found.next_lsn <> p_at + 1 then
        return 'moved';
    end if;
    with gone as (
        delete from {s}.logs where name in (p_name, p_name || '/inbox') returning id
    ) delete from {s}.pieces where log in (select id from gone);
    return 'removed';
end $f$;
"""

CREATE = "".join((_TABLES, _CLAIM, _APPEND, _REMOVE))
