"""Decides which runs that have ended are kept, by age and number; removes the others."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from eventlog import LogError, LogLockedError
from recovery.history.find_run import Store, backend_of
from recovery.inspect.states import State
from recovery.inspect.status import RunStatus, runs
from recovery.ops.remove import COLLECTED, OVER, RemovedRun
from recovery.stores.protocol import RunStore, time_ns_of

_logger = logging.getLogger("recovery")


def gc(
    store: Store,
    *,
    older_than_s: float | None = None,
    keep: int | None = None,
    states: Sequence[State] = OVER,
    dry_run: bool = False,
) -> list[RemovedRun]:
    """See CheckpointStore.gc."""
    wanted = frozenset(states)
    if not wanted <= set(COLLECTED):
        raise ValueError(
            f"states are of {', '.join(COLLECTED)}, not {sorted(wanted - set(COLLECTED))}"
        )
    if (keep is not None and keep < 0) or (older_than_s is not None and not older_than_s >= 0):
        raise ValueError(f"keep and older_than_s are 0 or more, not {keep} and {older_than_s}")
    backend = backend_of(store)
    gone: dict[str, RemovedRun] = {}
    failed: list[tuple[str, OSError]] = []  # of one thing; the others are still removed
    if not dry_run:
        try:
            backend.sweep()
        except OSError as exc:
            failed.append((exc.strerror or str(exc), exc))
    is_chosen = keep is not None or older_than_s is not None
    known = {one.run_id: _Known.of(one) for one in runs(store)} if is_chosen else {}
    before = math.inf if older_than_s is None else time_ns_of(backend) / 1e9 - older_than_s
    for one in _in_order(_due(known, wanted, keep or 0, before)):
        above = one.needed_by(known)
        if above is not None and above.run_id not in gone:
            continue  # it must not be removed, or its child could not be
        try:
            size = backend.size(one.run_id)
            if dry_run or _remove(backend, one):
                gone[one.run_id] = RemovedRun(one.run_id, one.state, one.ended, one.records, size)
        except OSError as exc:
            failed.append((f"run {one.run_id} could not be removed: {exc.strerror or exc}", exc))
    if failed:
        said, why = failed[0]
        more = f", and {len(failed) - 1} more failures" if len(failed) > 1 else ""
        said = f"{said}{more}. Runs that were removed: {len(gone)}"
        raise OSError(why.errno, said, why.filename) from why
    return list(gone.values())


@dataclass(frozen=True, slots=True)
class _Known:
    """A run, as retention sees it. ``source``: the run whose unfinished fork this is."""

    run_id: str
    uid: str
    state: State
    ended: float
    records: int
    damaged: bool
    parent: str
    parent_uid: str
    source: str

    @classmethod
    def of(cls, found: RunStatus) -> _Known:
        parent, fork = found.parent, found.forked_from
        return cls(
            found.run_id,
            found.uid,
            found.state,
            found.last,
            found.last_lsn,
            bool(found.damage),
            parent.run_id if parent else "",
            parent.uid if parent else "",
            fork.run_id if fork and found.last_lsn < fork.until else "",
        )

    def needed_by(self, known: Mapping[str, _Known]) -> _Known | None:
        """The run that started this one, if it exists and may still be resumed."""
        above = known.get(self.parent)
        if above is None or above.uid not in ("", self.parent_uid):  # removed, or of another uid
            return None
        return None if above.state in OVER and not above.damaged else above


def _due(
    known: Mapping[str, _Known], states: frozenset[State], keep: int, before: float
) -> dict[str, _Known]:
    """The runs that may be removed by age and number. Of runs that ended at the same moment the
    first by id are kept."""
    ended = [one for one in known.values() if one.state in states and not one.damaged]
    ended.sort(key=lambda one: (-one.ended, one.run_id))
    sources = {one.source for one in known.values()}
    return {
        one.run_id: one for one in ended[keep:] if one.ended <= before and one.run_id not in sources
    }


def _in_order(due: Mapping[str, _Known]) -> Iterator[_Known]:
    """The oldest first, but each after the run that started it."""
    put: set[str] = set()

    def with_those_above(one: _Known) -> Iterable[_Known]:
        if one.run_id in put:
            return
        put.add(one.run_id)
        if one.parent in due:
            yield from with_those_above(due[one.parent])
        yield one

    for one in sorted(due.values(), key=lambda one: (one.ended, one.run_id)):
        yield from with_those_above(one)


def _remove(backend: RunStore, one: _Known) -> bool:
    try:
        backend.remove(one.run_id, one.records)
    except (FileNotFoundError, LogLockedError) as exc:  # removed, or resumed, meanwhile
        _logger.info("gc: run %s stays: %s", one.run_id, exc)
    except LogError as exc:
        _logger.warning("gc: run %s stays: %s", one.run_id, exc)
    else:
        return True
    return False
