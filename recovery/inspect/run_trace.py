"""Finds the trace of a run: its id, and the span of the run with its parent and links."""

from __future__ import annotations

from collections.abc import Callable

from recovery.inspect.span import Span, span_id, trace_id
from recovery.journal.events import RunStarted
from recovery.journal.forked_from import ForkedFrom
from recovery.journal.related_runs import ParentRun

DEPTH_MAX = 100  # of runs that started one another, in the search for the first

# How another run of the store began, by its run id; None when that cannot be read.
Sibling = Callable[[str], RunStarted | None]


def trace_of(uid: str, started: RunStarted | None, sibling: Sibling) -> str:
    """The trace of a run: that of the first run in its chain of parents."""
    for _ in range(DEPTH_MAX):
        parent = ParentRun.of(started)
        if parent is None:
            break
        uid, started = parent.uid, _of(parent.run_id, parent.uid, sibling)
    return trace_id(uid)


def run_span(
    run_id: str, uid: str, started: RunStarted | None, start_ns: int, sibling: Sibling
) -> Span:
    """The span of a run, which is open."""
    run = Span(span_id(uid, "run"), "", "run", "", start_ns)
    run.attributes |= {"agent_eventlog.run.id": run_id, "agent_eventlog.run.uid": uid}
    parent, origin = ParentRun.of(started), ForkedFrom.of(started)
    if parent is not None:
        run.parent = span_id(parent.uid, "call", parent.lsn)
    if origin is not None:
        begun = _of(origin.run_id, origin.uid, sibling)
        run.links.append((trace_of(origin.uid, begun, sibling), span_id(origin.uid, "run")))
    return run


def _of(run_id: str, uid: str, sibling: Sibling) -> RunStarted | None:
    started = sibling(run_id)
    return started if started is not None and started.uid == uid else None
