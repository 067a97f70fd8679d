"""Finds the logs of existing runs, to read or to write them from outside the runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from eventlog import ReadableLog, WritableLog
from recovery.errors import RecoveryError
from recovery.history.checkpoint_store_base import CheckpointStoreBase
from recovery.stores.protocol import RunStore
from recovery.stores.subject_keys import SubjectKeys

if TYPE_CHECKING:
    from recovery.approvers import Approvers

# Where to search for runs: a path is that of a directory with runs in it.
Store = CheckpointStoreBase | RunStore | str | os.PathLike[str]


def store_of(store: Store) -> CheckpointStoreBase:
    """The store itself, or one at this path; TypeError for anything else."""
    return store if isinstance(store, CheckpointStoreBase) else CheckpointStoreBase(_there(store))


def backend_of(store: Store) -> RunStore:
    """The RunStore of a store."""
    return store.backend if isinstance(store, CheckpointStoreBase) else store_of(store).backend


def keys_of(store: Store) -> SubjectKeys:
    """The keys of the subjects of a store; RecoveryError where it keeps none."""
    found = getattr(backend_of(store), "subject_keys", None)
    if not isinstance(found, SubjectKeys):
        raise RecoveryError("this kind of store keeps no keys of subjects (subject_keys)")
    return found


def approvers_of(store: Store) -> Approvers | None:
    """The approvers of a store; None if messages to its runs need no signature."""
    return store.approvers if isinstance(store, CheckpointStoreBase) else None


def _there(store: Any) -> Any:
    if store is None:
        raise TypeError("store is a CheckpointStore, a RunStore or a path, not None")
    return store


def store_difference(ours: CheckpointStoreBase, its: CheckpointStoreBase) -> str:
    """How a child's store differs from ours, so that the guarantees of our runs would not hold for
    the child's; "" if it is the same."""
    if its.retention != ours.retention:
        return "has another retention="
    if its.approvers != ours.approvers:
        return "has other approvers="
    one, other = ours.backend, its.backend
    if not _is_same(one, other):
        return "is another one"
    if one.encryption != other.encryption:
        return f"has encryption={other.encryption}, not the {one.encryption} of the parent's"
    if one.durability != other.durability:
        return f"has durability={other.durability!r}, not {one.durability!r}"
    return ""


def check_one_store(stores: Sequence[CheckpointStoreBase]) -> None:
    """ValueError if agents that are executed together have stores with different runs."""
    for other in stores[1:]:
        if not _is_same(stores[0].backend, other.backend):
            where = " and ".join(one.backend.address or "memory" for one in (stores[0], other))
            raise ValueError(f"the agents have different stores ({where}): name one")


def _is_same(one: RunStore, other: RunStore) -> bool:
    """Whether two stores have the same runs; one without an address has its own."""
    return one is other or (one.address == other.address != "")


def reader_of(store: Store, run_id: str, consequence: str = "") -> ReadableLog:
    """A reader of the run's log; RecoveryError, with its ``consequence``, when there is none."""
    reader = backend_of(store).read(run_id)
    if reader is None:
        raise no_such_run(store, run_id, consequence)
    return reader


def no_such_run(store: Store, run_id: str, consequence: str = "") -> RecoveryError:
    """It names the store: most often the run is in another one."""
    address = backend_of(store).address
    where = f" in {address}" if address else ""
    return RecoveryError(f"there is no run {run_id!r}{where}{consequence}")


def claim_existing(store: Store, run_id: str) -> WritableLog:
    """Claim the run's log for this process alone; RecoveryError when there is none."""
    reader_of(store, run_id).close()  # a claim would make it
    return claim(store, run_id)


def claim(store: Store, run_id: str) -> WritableLog:
    """Claim the log of a run that may not exist yet."""
    return (store if isinstance(store, CheckpointStoreBase) else backend_of(store)).claim(run_id)
