"""Removes runs for good."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace

from eventlog import LogError, LogLockedError
from recovery.control.relatives import earlier_children
from recovery.errors import RecoveryError
from recovery.history.checkpoint_store_base import CheckpointStoreBase
from recovery.history.find_run import Store, backend_of, reader_of
from recovery.inspect.states import OPEN, State
from recovery.inspect.status import RunStatus, status
from recovery.journal.encoding import decode_shallow
from recovery.journal.related_runs import ChildRun
from recovery.replay.children import children_of
from recovery.stores.protocol import KeepsRemains, RunStore

_logger = logging.getLogger("recovery")

# Runs in these states are never resumed, except a conversation that its program opens again. A
# failed run is resumed when its failed call is resolved.
OVER: tuple[State, ...] = ("finished", "cancelled", "undone")
ENDED: tuple[State, ...] = (*OVER, "failed")
GOING_ON: tuple[State, ...] = ("submitted", *OPEN, "empty", "saved")
# What gc takes when it is asked to: of saved checkpoints nothing ever says that a run has ended.
COLLECTED: tuple[State, ...] = (*ENDED, "saved")


@dataclass(frozen=True, slots=True)
class RemovedRun:
    """A run that was removed.

    ``state``: as in RunStatus. ``ended``: its last record, in seconds since 1970, 0.0 if unknown.
    ``records`` and ``size``: their number, and the bytes that the run took. ``children``: child
    runs of it that remain (for ``remove``; ``gc`` does not search for them).
    """

    run_id: str
    state: State
    ended: float
    records: int
    size: int
    children: tuple[str, ...] = ()


def remove(
    store: Store,
    run_id: str,
    *,
    force: bool = False,
    children: bool = False,
    dry_run: bool = False,
) -> list[RemovedRun]:
    """See RunHandle.remove."""
    backend = backend_of(store)
    if is_left_of(backend, run_id):
        if not dry_run:
            _sweep(backend, run_id)
            if is_left_of(backend, run_id):
                raise RecoveryError(f"another process deletes run {run_id!r}, or copies it here")
        return []
    found = status(store, run_id)
    below = list(children_below(store, found, {run_id}))
    family = [found, *(below if children else [])]
    for one in family:
        _check(one, force)
    if found.parent is not None:
        _check_parent(store, found)
    removed = [
        RemovedRun(one.run_id, one.state, one.last, one.last_lsn, backend.size(one.run_id))
        for one in family
    ]
    if not children:
        removed[0] = replace(removed[0], children=tuple(one.run_id for one in below))
    if not dry_run:
        # Each after the runs that it has started: its log names them, so after a crash `remove` of
        # the same run finds those that remain. A parent that is resumed in between, which takes
        # force, executes nothing of a child that is gone: it parks.
        for one in reversed(family):
            if isinstance(store, CheckpointStoreBase):
                store.close_run(one.run_id)
            try:
                backend.remove(one.run_id, one.last_lsn)
            except FileNotFoundError:
                if one is found:
                    raise RecoveryError(f"there is no run {run_id!r} any more") from None
        _sweep(backend, run_id)
    return removed


def is_left_of(backend: RunStore, run_id: str) -> bool:
    """Whether the run is gone, but for what an interrupted removal has left of it."""
    left = backend.unswept() if isinstance(backend, KeepsRemains) else []
    return run_id in left and run_id not in backend.run_ids()


def _sweep(backend: RunStore, run_id: str) -> None:
    """Delete what removals have left. That of other runs does not fail the removal of this one."""
    try:
        backend.sweep()
    except OSError as exc:
        if isinstance(backend, KeepsRemains) and run_id not in backend.unswept():
            _logger.warning("remove: %s", exc)
            return
        raise


def _check(found: RunStatus, force: bool) -> None:
    """Raise unless the run may be removed, whatever its parent is."""
    owner = found.owner
    if owner is not None and owner.alive:
        raise LogLockedError(f"run {found.run_id!r}", owner.pid, owner.host, owner.since)
    if force or (found.state in ENDED and not found.damage):
        return
    if found.damage or found.state not in GOING_ON:
        what = found.why or "; ".join(map(str, found.damage))
        raise RecoveryError(
            f"run {found.run_id!r} is damaged or cannot be read: {what.rstrip('.')}. So nothing "
            "says for certain whether it has ended. Nothing was removed; `logdump verify` says "
            "more. To remove it all the same: force=True."
        )
    why = f": {found.why}" if found.why else ""
    raise RecoveryError(
        f"run {found.run_id!r} has not ended: it is {found.state}{why}. Nothing was removed. Let "
        "it end, or cancel it; to remove it all the same, and with it what is known of its calls: "
        "force=True."
    )


def _check_parent(store: Store, found: RunStatus) -> None:
    """Raise when the run that started this one may still need its outcome."""
    assert found.parent is not None
    parent = found.parent.run_id
    try:
        above = status(store, parent)
    except RecoveryError:
        return  # it was removed
    if above.uid not in ("", found.parent.uid) or (above.state in OVER and not above.damage):
        return
    known = {child.run_id: child.state for child in _begun(store, parent)}
    if known.get(found.run_id) in ("finished", "cancelled") and not above.damage:
        return  # the parent's log has its outcome
    raise RecoveryError(
        f"run {found.run_id!r} is a child of run {parent!r}, which is {above.state} and needs it "
        f"to resume (LSN {found.parent.lsn} there). Nothing was removed. Remove {parent!r} "
        "first, or together with it: children=True."
    )


def children_below(store: Store, above: RunStatus, seen: set[str]) -> Iterator[RunStatus]:
    """The existing runs that this one has started, and those that they have started."""
    for child in _begun(store, above.run_id):
        if child.run_id in seen:
            continue
        try:
            found = status(store, child.run_id)
        except RecoveryError:  # never begun, or removed
            continue
        seen.add(child.run_id)
        link = found.parent
        # The log of a fork may name children of another run.
        if link is not None and (link.run_id, link.uid) == (above.run_id, above.uid):
            yield found
            yield from children_below(store, found, seen)


def _begun(store: Store, run_id: str) -> list[ChildRun]:
    """The child runs in a run's log, as far as it can be read."""
    try:
        with reader_of(store, run_id) as reader:
            read = reader.records(1, on_damage=lambda damage: None)
            known = children_of([(record.lsn, decode_shallow(record)) for record in read])
            return earlier_children(store, run_id, reader) + known
    except (LogError, RecoveryError, ValueError):
        return []
