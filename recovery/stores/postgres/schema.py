"""Creates and migrates the tables and functions of the store, in a schema of their own.

A commit of several logs is a call of one function, whose plans the server keeps.
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
    lost text[] not null default '{}',
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

-- What listings have read of runs, as of the version of the run that they have read.
create table {s}.listings (
    log bigint primary key references {s}.logs on delete cascade,
    version text not null,
    content text not null
);

-- Runs, each with its state as people see it: a claimed run is running before it says so.
create view {s}.runs as select
    l.*,
    case when l.state in ('finished', 'failed', 'cancelled', 'undone') then l.state
        when l.lease_until > now() then 'running'
        when l.state = 'running' then 'interrupted' else l.state end as shown
from {s}.logs l where l.name not like '%/%';

create view {s}.heads as select
    id, name, log_id, epoch, owner_pid, owner_host, owner_machine, owner_token,
    (extract(epoch from owner_since) * 1000000)::bigint * 1000 as since_ns,
    lease_until is not null as is_held,
    coalesce(lease_until > now(), false) as is_alive,
    lost, next_lsn, oldest_lsn, snapshot, first, number, ends, size,
    (extract(epoch from clock_timestamp()) * 1000000)::bigint * 1000 as now_ns,
    tail
from {s}.logs;
"""

# An owner whose lease has ended is not known to be dead: it is fenced by the epoch, which `append`
# compares in the statement that inserts. `lost` keeps it, in four texts: it may still act.
# Of more than 16, the oldest become one that is unknown.
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
        lost = case when l.lease_until is null or p_is_dead then l.lost else
            case when cardinality(l.lost) < 64 then l.lost
                else array['0', '', '', '0'] || l.lost[9:] end
            || array[l.owner_pid::text, l.owner_host, l.owner_machine,
                (extract(epoch from l.owner_since) * 1000000)::bigint::text] end
    where l.owner_token <> p_token
        and (l.lease_until is null or l.lease_until <= now() or l.epoch = p_instead_of);
    return query select * from {s}.heads where name = p_name;
end $f$;
"""

# Of each batch, p_int has 15 numbers and p_text 4 texts; p_piece has two numbers of each piece. One
# log after the other: a plan for all of them at once costs more than the few that it serves.
_APPEND = """
create function {s}.append(
    p_lease double precision, p_int bigint[], p_text text[], p_piece bigint[], p_data bytea[]
) returns bigint[] language plpgsql as $f$
declare
    accepted bigint[];
    is_news boolean := false;
    i integer := 0;
    t integer := 0;
    p integer := 0;
begin
    if current_setting('synchronous_commit') = 'off' then
        perform set_config('synchronous_commit', 'on', true);
    end if;
    while i < array_length(p_int, 1) loop
        update {s}.logs l set
            next_lsn = p_int[i + 4], oldest_lsn = p_int[i + 5], snapshot = p_int[i + 6],
            tail = p_int[i + 7], number = p_int[i + 8], ends = p_int[i + 9],
            size = l.size + p_int[i + 10], first = greatest(l.first, p_int[i + 11]),
            lease_until = case when p_int[i + 12] = 1 then null when l.lease_until is null then null
                else now() + p_lease * interval '1 second' end,
            held = l.held and p_int[i + 12] = 0,
            state = coalesce(p_text[t + 1], l.state),
            due_at = case when p_int[i + 12] = 1 and coalesce(p_text[t + 1], l.state) = 'running'
                then now()
                when p_text[t + 1] is null then l.due_at
                when p_int[i + 14] > 0 then greatest(now(), to_timestamp(p_int[i + 14] / 1e9)) end,
            agent = coalesce(p_text[t + 2], l.agent),
            priority = case when p_text[t + 2] is null then l.priority else p_int[i + 15] end,
            limit_key = case when p_text[t + 2] is null then l.limit_key else p_text[t + 3] end,
            changed_at = now()
        where l.id = p_int[i + 1] and l.epoch = p_int[i + 2] and l.next_lsn = p_int[i + 3];
        if found then
            accepted := accepted || p_int[i + 1];
            for q in p + 1 .. p + p_int[i + 13] loop
                insert into {s}.pieces (log, number, at, data)
                values (p_int[i + 1], p_piece[2 * q - 1], p_piece[2 * q], p_data[q]);
            end loop;
            if p_int[i + 11] > 0 then
                delete from {s}.pieces where log = p_int[i + 1] and number < p_int[i + 11];
                update {s}.logs l set size = (select coalesce(sum(length(data)), 0)
                    from {s}.pieces where log = l.id) where l.id = p_int[i + 1];
            end if;
            if p_text[t + 4] <> '' then
                update {s}.logs set due_at = now()
                where name = p_text[t + 4] and state in ('waiting', 'in doubt', 'parked');
                perform pg_notify('{s}', p_text[t + 4]);
            end if;
        end if;
        is_news := is_news or p_text[t + 1] is not null or p_int[i + 12] = 1;
        p := p + p_int[i + 13];
        i := i + 15;
        t := t + 4;
    end loop;
    if is_news then
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
