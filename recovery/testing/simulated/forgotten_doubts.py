"""Checks that side effects in doubt are in the status of their run.

It reads the records by itself, because the runtime's own reading of them is under test.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from recovery.agent.checkpoint_store import CheckpointStore
from recovery.inspect.states import BROKEN
from recovery.inspect.status import status
from recovery.journal.encoding import decode
from recovery.journal.events import (
    AttemptFailed,
    CallAbandoned,
    CallDecided,
    CallFailed,
    CallIntended,
    CallResolved,
    CallRetried,
    CallReturned,
    Event,
)
from recovery.stores.protocol import RunStore

REPEATABLE = ("retry", "wait")


def open_effects(events: Iterable[tuple[int, Event]]) -> dict[int, CallIntended]:
    """The side effects that were begun, and have no outcome or resolution, by LSN."""
    made: dict[int, CallIntended] = {}
    found: dict[int, CallIntended] = {}
    for lsn, event in events:
        match event:
            case CallIntended(after_crash=policy) if policy not in REPEATABLE:
                made[lsn] = event
                if event.asks_until is None:
                    found[lsn] = event
            case CallDecided(approved=True) | CallRetried():
                if event.call in made:
                    found[event.call] = made[event.call]
            case CallReturned() | CallFailed() | AttemptFailed():
                found.pop(event.call, None)
            case CallResolved(undo=False):
                found.pop(event.call, None)
            case CallAbandoned() if event.went_on or not event.begun:
                found.pop(event.call, None)
    return found


def forgotten(store: RunStore) -> Iterator[tuple[str, str]]:
    """Side effects that are open in the log of a run, and not in doubt in its status: run, tool."""
    for run_id in store.run_ids():
        reader = store.read(run_id)
        if reader is None:
            continue
        with reader:
            open_here = open_effects(
                (record.lsn, event)
                for record in reader.records()
                if (event := decode(record)) is not None
            )
        if not open_here:
            continue  # as after most deaths: a status costs more than the life that it is about
        found = status(CheckpointStore(store), run_id)
        if found.state in BROKEN:
            continue
        known = {call.lsn for call in found.calls if call.state in ("in doubt", "under way")}
        for lsn, intent in open_here.items():
            if lsn not in known:
                yield run_id, intent.tool
