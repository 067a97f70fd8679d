"""The checkpoints that a run's log holds, without restoring any of them."""

from __future__ import annotations

from dataclasses import replace

from eventlog import Damage, Snapshot
from eventlog._dataclass import dataclass
from recovery._history import RunRecords
from recovery._snapshots import BrokenCheckpointError, checked_body, place_in_state
from recovery._values import ref_in


@dataclass(frozen=True, slots=True)
class Validity:
    """Whether a checkpoint is sound (its truth value), and why not."""

    sound: bool
    reason: str = ""

    def __bool__(self) -> bool:
        return self.sound

    def __str__(self) -> str:
        return "sound" if self.sound else self.reason


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """A checkpoint as it is in the log: taken at the end of ``step`` (None: it cannot be read).

    ``lsn``: its record. ``timestamp``: when, in seconds since 1970. ``size``: bytes of its record,
    which holds what was new. ``validity``: whether it and all records that it refers to are there
    and undamaged, and if not, why.
    """

    checkpoint_id: str
    step: int | None
    lsn: int
    timestamp: float
    size: int
    validity: Validity

    def __str__(self) -> str:
        step = "?" if self.step is None else self.step
        return f"step {step} (LSN {self.lsn}, {self.size} bytes): {self.validity}"


@dataclass(slots=True)
class _Parts:
    """What a checkpoint's record says of where the rest of it is."""

    found: StoredCheckpoint
    bases: list[int]
    keep: int
    messages: list[int]  # LSNs of records that hold them, 0 for this one
    others: set[int]


def stored_checkpoints(log: RunRecords) -> list[StoredCheckpoint]:
    """The checkpoints in a log, the newest first. Reads it once and restores nothing."""
    damage: list[Damage] = []
    snapshots: list[_Parts] = []
    unsound: list[StoredCheckpoint] = []
    for snapshot in log.snapshots(damage.append):
        try:
            snapshots.append(_parts(snapshot))
        except BrokenCheckpointError as exc:
            unsound.append(_unreadable(snapshot.lsn, len(snapshot.packed), str(exc)))
    unsound += [_unreadable(one.first_lsn, one.size, str(one)) for one in damage if one.snapshot]
    there = {record.lsn for record in log.records(1, on_damage=lambda damage: None)}
    read = {one.found.lsn: one for one in snapshots}
    listed = [_verified(one, read, there) for one in snapshots]
    return sorted(listed + unsound, key=lambda one: -one.lsn)


def _parts(snapshot: Snapshot) -> _Parts:
    body = checked_body(snapshot)
    found = StoredCheckpoint(
        body["checkpoint_id"], body["step"], snapshot.lsn, float(body["timestamp"]),
        len(snapshot.packed), Validity(True),
    )  # fmt: skip
    refs = [ref_in(item) for item in body["messages"]]
    messages = [ref.lsn if ref is not None else 0 for ref in refs]
    others = {place_in_state(part) for part in body["state"].values()} - {0}
    others |= set(body["prologue"])
    return _Parts(found, body["bases"], body["keep"], messages, others)


def _verified(one: _Parts, read: dict[int, _Parts], there: set[int]) -> StoredCheckpoint:
    needed = one.others | set(one.bases)
    placed: list[int] = []
    for part in [*(read[lsn] for lsn in one.bases if lsn in read), one]:
        del placed[part.keep :]
        placed += part.messages
    missing = sorted((needed | set(placed)) - there - {0})
    if not missing:
        return one.found
    what = ", ".join(map(str, missing[:5])) + (", ..." if len(missing) > 5 else "")
    reason = f"it needs LSN {what}, which is damaged or missing"
    return replace(one.found, validity=Validity(False, reason))


def _unreadable(lsn: int, size: int, reason: str) -> StoredCheckpoint:
    return StoredCheckpoint("", None, lsn, 0.0, size, Validity(False, reason))
