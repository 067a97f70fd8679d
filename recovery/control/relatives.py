"""Finds the relatives of a run: its children, its parent, the runs that it was forked from."""

from __future__ import annotations

from eventlog import ReadableLog
from recovery.errors import RecoveryError
from recovery.history.find_run import Store, backend_of, reader_of
from recovery.history.first_record import started_of
from recovery.history.load_shallow import ended_in
from recovery.journal.encoding import decode, decode_shallow
from recovery.journal.events import RunCancelled, RunStarted, RunUndone
from recovery.journal.forked_from import ForkedFrom
from recovery.journal.related_runs import ChildRun, ChildState, ParentRun
from recovery.replay.children import children_of


def children(store: Store, run_id: str) -> list[ChildRun]:
    """See RunHandle.children."""
    with reader_of(store, run_id) as reader:
        known = children_of((record.lsn, decode(record)) for record in reader.records(1))
        return earlier_children(store, run_id, reader) + known


def earlier_children(store: Store, run_id: str, log: ReadableLog) -> list[ChildRun]:
    """The existing runs that a run has started by calls which retention has removed.

    Those calls have their outcomes: retention keeps every call in flight.
    """
    if log.oldest_lsn == 1:
        return []
    from recovery.inspect.status import runs  # noqa: PLC0415 - only where it is needed

    started = started_of(log, decode_shallow)
    us = (run_id, started.uid if started is not None else "")
    found = []
    for child in runs(store):
        above = child.parent
        if above is None or (above.run_id, above.uid) != us or above.lsn >= log.oldest_lsn:
            continue
        agent = child.run_id.rpartition("+")[2].rpartition("-")[0]  # see child_run_id
        state: ChildState = "finished"
        match child.state:
            case "failed" | "cancelled":
                state = child.state
        found.append(ChildRun(child.run_id, agent, "", above.lsn, state))
    return sorted(found, key=lambda child: child.call)


def parent(store: Store, run_id: str) -> ParentRun | None:
    """See RunHandle.parent."""
    with reader_of(store, run_id) as reader:
        if reader.oldest_lsn > 1:
            return ParentRun.of(started_of(reader))
        events = (decode(record) for record in reader.records(1))
        return ParentRun.of(next((e for e in events if isinstance(e, RunStarted)), None))


def is_child(store: Store, run_id: str, of: str) -> bool:
    """Whether a run exists and was started by run ``of``. The log of a fork may name children of
    the run that it was forked from."""
    reader = backend_of(store).read(run_id)
    if reader is None:
        return False
    with reader:
        link = ParentRun.of(started_of(reader, decode_shallow))
    return link is not None and link.run_id == of


def check_parent(store: Store, started: RunStarted) -> None:
    """RecoveryError when the run is a child and a person has ended a run above it: cancelled or
    undone. The process that did so may have died before it ended the child. (A child whose failure
    its parent has handled may be resumed: also after the parent's own end.)"""
    link = ParentRun.of(started)
    while link is not None and (reader := backend_of(store).read(link.run_id)) is not None:
        with reader:
            above, ended = started_of(reader, decode_shallow), ended_in(reader)
        if above is None or above.uid != link.uid:  # another run of its name
            return
        if isinstance(ended, RunCancelled | RunUndone):
            raise RecoveryError(
                f"run {started.run_id!r} is a child of run {link.run_id!r}, which has ended "
                f"({ended.kind.removeprefix('run_')}). A child never works without its parent. "
                "Nothing was executed: cancel the child, too."
            )
        link = ParentRun.of(above)


def lineage(store: Store, run_id: str) -> list[ForkedFrom]:
    """See RunHandle.lineage."""
    links: list[ForkedFrom] = []
    reader: ReadableLog | None = reader_of(store, run_id)
    while reader is not None:
        with reader:
            started = started_of(reader)
        link = ForkedFrom.of(started)
        if started is None or link is None or (links and links[-1].uid != started.uid):
            break
        links.append(link)
        reader = backend_of(store).read(link.run_id)
    return links
