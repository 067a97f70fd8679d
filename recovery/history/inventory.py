"""Lists the checkpoints that a run's log holds, without restoring any of them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

from eventlog import Damage, LogRecords, Packed, Record, Snapshot
from recovery.history.restore_checkpoint import (
    BrokenCheckpointError,
    checked_body,
    checkpoints_in,
    is_left_over,
)
from recovery.history.state_delta import folded
from recovery.journal.events import RecordsLost
from recovery.values.backrefs import CompositeMessage, parse_reference, values_in
from recovery.values.types import Ref


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
    which holds the changes. ``validity``: whether it and all records that it refers to are there
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


@dataclass(slots=True, eq=False)
class _Pieces:
    """The places of a checkpoint's other parts, from its record."""

    found: StoredCheckpoint
    bases: list[int]
    keep: int
    # References to them; None: they are in its record.
    messages: list[Ref | CompositeMessage | None]
    others: set[int]
    gone: list[str] | None
    state: dict[str, Packed]


def stored_checkpoints(log: LogRecords) -> list[StoredCheckpoint]:
    """The checkpoints in a log, the newest first. Reads it once and restores nothing."""
    damage: list[Damage] = []
    snapshots: list[_Pieces] = []
    left_over: set[int] = set()
    unsound: list[StoredCheckpoint] = []
    for snapshot in checkpoints_in(log, damage.append):
        try:
            snapshots.append(_pieces(snapshot))
            if is_left_over(snapshot, log.oldest_lsn):
                left_over.add(snapshot.lsn)
        except BrokenCheckpointError as exc:
            unsound.append(_unreadable(snapshot.lsn, len(snapshot.packed), str(exc)))
    unsound += [_unreadable(one.first_lsn, one.size, str(one)) for one in damage if one.snapshot]
    there: set[int] = set()
    lent: dict[Ref, set[int]] = {}
    for record in log.records(1, on_damage=lambda damage: None):
        if record.kind != RecordsLost.kind:
            there.add(record.lsn)
        lent |= _composite_messages(record)
    read = {one.found.lsn: one for one in snapshots}
    listed = [_verified(one, read, there, lent) for one in snapshots]
    listed = [one for one in listed if one.validity or one.lsn not in left_over]
    return sorted(listed + unsound, key=lambda one: -one.lsn)


def _composite_messages(record: Record) -> dict[Ref, set[int]]:
    """The composite messages in a record, and the LSNs of their parts."""
    with suppress(KeyError, ValueError):  # a record that makes no sense
        if record.kind == "messages":
            items = enumerate(map(parse_reference, values_in(record)))
            return {
                Ref(record.lsn, i): item.lsns
                for i, item in items
                if isinstance(item, CompositeMessage)
            }
    return {}


def _pieces(snapshot: Snapshot) -> _Pieces:
    body = checked_body(snapshot)
    found = StoredCheckpoint(
        body["checkpoint_id"],
        body["step"],
        snapshot.lsn,
        float(body["timestamp"]),
        len(snapshot.packed),
        Validity(True),
    )
    messages = [parse_reference(item) for item in body["messages"]]
    generation = body["generation"]
    others = {lsn for lsn in body["prologue"] if lsn >= generation.first}
    others |= set(generation.prologue)
    return _Pieces(
        found, body["bases"], body["keep"], messages, others, body["gone"], body["state"]
    )


def needs(log: LogRecords, snapshot: Snapshot) -> tuple[int, set[int]]:
    """The step of a checkpoint, and the LSNs of all that it needs; BrokenCheckpointError.

    Reads the messages that it restores, and the checkpoints that it is based on.
    """
    one = _pieces(snapshot)
    found = log.fetch(set(one.bases))
    bases = {lsn: _pieces(base) for lsn, base in found.items() if isinstance(base, Snapshot)}
    needed, placed = _needed(one, bases)
    refs = {item for item in placed if isinstance(item, Ref)}
    for record in log.fetch({item.lsn for item in refs}).values():
        for item, lsns in _composite_messages(record).items():
            needed |= lsns if item in refs else set()
    return one.found.step or 0, needed


def _verified(
    one: _Pieces, read: dict[int, _Pieces], there: set[int], lent: dict[Ref, set[int]]
) -> StoredCheckpoint:
    needed, placed = _needed(one, read)
    for item in placed:
        if isinstance(item, Ref):
            needed |= lent.get(item, set())
    missing = sorted(needed - there)
    if not missing:
        return one.found
    what = ", ".join(map(str, missing[:5])) + (", ..." if len(missing) > 5 else "")
    reason = f"it needs LSN {what}, which is damaged or missing"
    return replace(one.found, validity=Validity(False, reason))


def _needed(
    one: _Pieces, read: dict[int, _Pieces]
) -> tuple[set[int], list[Ref | CompositeMessage | None]]:
    """The LSNs that a checkpoint refers to, and the references to its messages."""
    needed = one.others | set(one.bases)
    placed: list[Ref | CompositeMessage | None] = []
    chain = [*(read[lsn] for lsn in one.bases if lsn in read), one]
    places, _ = folded((part.found.lsn, part.gone, part.state) for part in chain)
    needed |= {place.lsn for place in places.values()} - {one.found.lsn}
    for part in chain:
        del placed[part.keep :]
        placed += part.messages
    for item in placed:
        if item is not None:
            needed |= item.lsns
    return needed, placed


def _unreadable(lsn: int, size: int, reason: str) -> StoredCheckpoint:
    return StoredCheckpoint("", None, lsn, 0.0, size, Validity(False, reason))
