"""Forgets subjects: destroys the keys of all that runs have recorded of them."""

from __future__ import annotations

from dataclasses import dataclass

from eventlog import Damage, LogError, LogLockedError
from recovery.errors import RecoveryError
from recovery.history.find_run import Store, backend_of, keys_of
from recovery.stores.protocol import RunStore


@dataclass(frozen=True, slots=True)
class ForgottenSubject:
    """A subject that was forgotten, or would be.

    ``keys``: the ids of its keys: one, or more if runs of other stores were copied. ``runs``: the
    ids of the runs that hold values of it; ``unread``: of those that could not be read, wholly or
    in part.
    """

    subject: str
    keys: tuple[bytes, ...]
    runs: tuple[str, ...]
    unread: tuple[str, ...] = ()


def forget(
    store: Store, subject: str, *, force: bool = False, dry_run: bool = False
) -> ForgottenSubject | None:
    """See CheckpointStore.forget."""
    keys, backend = keys_of(store), backend_of(store)
    known = keys.ids_of(subject)
    if not known:
        return None
    runs, unread = list[str](), list[str]()
    for run_id in backend.run_ids():
        holds, is_whole = _holds(backend, run_id, known)
        runs += [run_id] * holds
        unread += [run_id] * (not is_whole)
    if not (force or dry_run):
        for run_id in runs:
            _check_not_live(backend, run_id)
    if not dry_run:
        keys.forget(subject)
    return ForgottenSubject(subject, tuple(known), tuple(runs), tuple(unread))


def _check_not_live(backend: RunStore, run_id: str) -> None:
    reader = backend.read(run_id)
    if reader is None:
        return
    with reader:
        owner = reader.owner()
    if owner is not None and owner.alive:
        raise LogLockedError(f"run {run_id!r}", owner.pid, owner.host, owner.since)


def _holds(backend: RunStore, run_id: str, keys: list[bytes]) -> tuple[bool, bool]:
    """Whether a run's log has a value under one of these keys; and whether all of it could be
    read."""
    damaged: list[Damage] = []
    try:
        reader = backend.read(run_id)
        if reader is None:
            return False, True
        with reader:
            for record in reader.records(1, on_damage=damaged.append):
                if any(key in record.packed for key in keys):
                    return True, True
    except (LogError, RecoveryError, ValueError):
        return False, False
    return False, not damaged
