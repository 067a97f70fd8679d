"""Reads and verifies checkpoints: snapshot records that hold what changed.

A snapshot holds how the state and the messages differ from those of an earlier one, its base, and
where in the log the unchanged values are. The base of the i-th snapshot of a run is the
(i & (i - 1))-th. So a snapshot is restored from at most log2(i) others, and a message is named in
at most log2(i) snapshots, each time by a reference of a few bytes. Bytes per step stay constant
however long the conversation is. The checksum covers all that is restored, not just the changes.

Fields of the body: ``state`` has, by key, a value in a list of one, or the LSN of the checkpoint
that has it. ``gone``: keys of the base that no longer exist, or that moved to the end; ``state``
then holds only what changed. Without ``gone``, and in version 1, it names all keys. ``removed``:
keys that existed when a loop began and no longer exist; nil if a user has set the state.
``prologue``: LSNs of records from before the loop, without changes of messages.

Before retention removes the beginning of a log, a generation begins. It consists of portions, which
are snapshot records that hold all values, and a snapshot without bases. It and all later snapshots
refer to no record before the portions. See write_full_checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from eventlog import Damage, LogRecords, Packed, Record, Snapshot
from eventlog.light_dataclass import light_dataclass
from recovery.errors import UnreadableValueError
from recovery.history.state_delta import Base, checksum, folded
from recovery.journal.events import RecordsLost
from recovery.journal.messages import digest_of_all
from recovery.replay.running_totals import Accumulators
from recovery.values.backrefs import (
    Fetch,
    LostValueError,
    RecordedValues,
    is_chunk,
    parse_reference,
    resolve,
)
from recovery.values.fields import declared
from recovery.values.pack import PACKED_NONE, split_list, unpack, unpack_map
from recovery.values.sealed import sealed_data
from recovery.values.types import Ref, digest

VERSION = 2
# In version 1 a snapshot named all values of the state, unchanged ones by reference. Now it names
# only those that differ from the base.
_VERSIONS = (1, VERSION)

# The i-th snapshot has as many bases as i has bits.
BASES_MAX = 64
INDEX_MAX = 1 << 48  # checkpoints of a run: one a microsecond for nine years
# The number of the first one of a generation: a base of all that follow, so that none of them
# names its messages again.
INDEX_WHOLE = 1 << 40

_DECLARED = declared(
    {
        "checkpoint_id": "str",
        "run_id": "str",
        "step": "int",
        "timestamp": "int | float",
        "recoveries": "int",
        "prologue": "list[Any]",
        "index": "int",
        "bases": "list[Any]",
        "keep": "int",
        "messages": "list[Any]",
        "state": "dict[str, Any]",
        "checksum": "str",
        "carried": "dict[str, Any]",
        "removed": "list[Any] | None",
        "gone": "list[Any] | None",
        "timestamp_text": "str | None",
    }.items()
)


_SPLIT: dict[str, Callable[[Packed], Any]] = {
    "messages": split_list,
    "state": unpack_map,
    "tool_results": lambda packed: packed,
}


@light_dataclass
class Generation:
    """Checkpoints of one generation need no record before LSN ``first``, whatever else is lost.

    ``size``: bytes recorded since then. ``prologue``: the portions that hold the older ones of
    the records that the code before the first step needs.
    """

    first: int = 1
    size: int = 0
    prologue: tuple[int, ...] = ()

    def with_more(self, size: int) -> Generation:
        """The same after ``size`` more bytes; a generation that is not measured stays as it is."""
        return replace(self, size=self.size + size) if self != Generation() else self

    @classmethod
    def of(cls, body: Any, lsn: int) -> Generation:
        """The generation of the snapshot at ``lsn``, from its body."""
        match body:
            case None:
                return cls()
            case [int(first), int(size), list(prologue)] if 0 < first <= lsn and size >= 0:
                if all(type(one) is int and first <= one < lsn for one in prologue):
                    return cls(first, size, tuple(prologue))
        raise BrokenCheckpointError("its generation makes no sense")


@dataclass(slots=True, eq=False)
class Restored:
    """The state and messages that a snapshot restores, verified."""

    lsn: int
    checkpoint_id: str
    run_id: str
    step: int
    timestamp: float
    recoveries: int
    state: dict[str, Any]
    messages: list[bytes]
    refs: list[Ref | None]
    prologue: list[int]
    tool_results: Any
    checksum: str
    carried: dict[str, Any] = field(default_factory=dict)
    state_at: dict[str, tuple[bytes, int, int, int]] = field(default_factory=dict)
    bases: list[Base] = field(default_factory=list)
    generation: Generation = field(default_factory=Generation)

    referenced_size: int = (
        0  # bytes of the messages that are elsewhere in the log (see values.backrefs)
    )
    timestamp_text: str | None = None  # as it was given, where that was text
    removed: tuple[str, ...] | None = ()
    sealed: dict[str, Packed] = field(default_factory=dict)  # values of the state that are sealed

    @property
    def holds_sealed(self) -> bool:
        """Whether messages or values of the state are sealed."""
        return bool(self.sealed) or any(sealed_data(one) is not None for one in self.messages)

    def release(self) -> None:
        """Free the restored state and messages, which the run owns and changes now."""
        self.state, self.messages, self.refs = {}, [], []


class BrokenCheckpointError(ValueError):
    """A snapshot that cannot be restored, and why."""


def checkpoints_in(
    log: LogRecords, on_damage: Callable[[Damage], None] | None = None
) -> Iterator[Snapshot]:
    """The checkpoints in a log, the newest first, none of them verified as a whole."""
    return (snapshot for snapshot in log.snapshots(on_damage) if not is_chunk(snapshot))


def prologue_in(fetch: Fetch, lsns: Iterable[int], generation: Generation) -> dict[int, Record]:
    """Records of the code before the first step, by LSN, from the portions of a checkpoint.

    BrokenCheckpointError when a portion makes no sense; those that are lost are left out.
    """
    wanted = set(lsns)
    found = fetch({lsn for lsn in wanted if lsn >= generation.first})
    for portion in fetch(set(generation.prologue)).values():
        for record in _carried_in(portion):
            found[record.lsn] = record
    return {lsn: record for lsn, record in found.items() if lsn in wanted}


def whole_prologue(
    fetch: Fetch, at: int, lsns: Collection[int], generation: Generation
) -> list[Record]:
    """The same of the checkpoint at LSN ``at``, in their order, and none may be missing."""
    found = prologue_in(fetch, lsns, generation)
    if len(found) < len(lsns) or any(one.kind == RecordsLost.kind for one in found.values()):
        raise BrokenCheckpointError(
            f"checkpoint at LSN {at}: records of the code before the first step are damaged"
        )
    return [found[lsn] for lsn in sorted(found)]


def _carried_in(portion: Record) -> Iterator[Record]:
    try:
        items = list(unpack(unpack_map(portion.packed)["prologue"]))
    except (KeyError, TypeError, ValueError):
        raise BrokenCheckpointError(f"LSN {portion.lsn} is no portion of a checkpoint") from None
    for item in items:
        match item:
            case [int(lsn), str(kind), int(time_ns), bytes(packed)] if 0 < lsn < portion.lsn:
                yield Record(lsn, kind, time_ns, packed)
            case _:
                raise BrokenCheckpointError(f"LSN {portion.lsn} carries what is no record")


def restore(fetch: Fetch, snapshot: Snapshot, read: Callable[[Packed], Any] = unpack) -> Restored:
    """Restore and verify a snapshot; BrokenCheckpointError if that is impossible.

    ``read`` decodes the values of the state.
    """
    with _named(snapshot):
        return _restore(fetch, snapshot, read)


def checked_body(snapshot: Snapshot) -> dict[str, Any]:
    """The body of a snapshot's record, its fields checked; BrokenCheckpointError.

    Messages and the values of the state are packed, as they are.
    """
    with _named(snapshot):
        return _body(snapshot)


def is_left_over(snapshot: Snapshot, oldest_lsn: int) -> bool:
    """Whether retention has removed records that a checkpoint may need, but not its segment."""
    try:
        generation: Generation = checked_body(snapshot)["generation"]
    except BrokenCheckpointError:
        return False
    return generation.first < oldest_lsn


@contextmanager
def _named(snapshot: Snapshot) -> Iterator[None]:
    try:
        yield
    except UnreadableValueError as exc:
        raise exc.at(snapshot.lsn) from exc.__cause__
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError) as exc:
        ours = isinstance(exc, BrokenCheckpointError | LostValueError)
        reason = exc if ours else f"{type(exc).__name__}: {exc}"
        raise BrokenCheckpointError(f"checkpoint at LSN {snapshot.lsn}: {reason}") from None


def _restore(fetch: Fetch, snapshot: Snapshot, read: Callable[[Packed], Any]) -> Restored:
    body = _body(snapshot)
    if (
        len(body["bases"]) > BASES_MAX
        or body["bases"] != sorted({*body["bases"], snapshot.lsn})[:-1]
    ):
        raise BrokenCheckpointError("its bases are not earlier checkpoints, the oldest first")
    found = fetch(set(body["bases"]))
    chain = [(lsn, _body(_get(found, lsn))) for lsn in body["bases"]] + [(snapshot.lsn, body)]
    placed, bases = _placed(chain)
    packed, borrowed = resolve(RecordedValues(fetch), (item for item, _ in placed))
    state_at, gone = _state(fetch, chain)
    for base, lost in zip(bases, gone, strict=True):
        base.gone = lost
    # Digests of the recorded bytes, because the types of values may have changed since.
    digests = {id(one): digest(one) for one in packed}
    results = body["tool_results"]
    actual = checksum(
        body["run_id"],
        body["step"],
        {key: digest(value) for key, (value, *_) in state_at.items()},
        (
            digest_of_all(digests[id(one)] for one in packed),
            b"" if results == PACKED_NONE else digest(results),
        ),
    )
    if actual != body["checksum"]:
        raise BrokenCheckpointError(f"checksum is {actual}, recorded {body['checksum']!r:.50}")
    for one in {id(one): one for one in packed}.values():
        read(Packed(one))  # raises if it cannot be restored
    Accumulators(body["carried"])  # raises if it makes no sense
    refs: list[Ref | None] = [ref for _, ref in placed]
    state = {key: read(value) for key, (value, *_) in state_at.items()}
    return Restored(
        snapshot.lsn,
        body["checkpoint_id"],
        body["run_id"],
        body["step"],
        body["timestamp"],
        body["recoveries"],
        state,
        packed,
        refs,
        body["prologue"],
        read(results),
        actual,
        body["carried"],
        {key: (digest(one), at, len(one), since) for key, (one, at, since) in state_at.items()},
        bases,
        body["generation"].with_more(len(snapshot.packed)),
        borrowed,
        body["timestamp_text"],
        None if body["removed"] is None else tuple(body["removed"]),
        {key: one for key, (one, *_) in state_at.items() if sealed_data(one) is not None},
    )


def _placed(
    chain: list[tuple[int, dict[str, Any]]],
) -> tuple[list[tuple[Packed, Ref]], list[Base]]:
    """The messages of a chain of checkpoints, and the place of each; and those of each
    checkpoint."""
    placed: list[tuple[Packed, Ref]] = []
    bases: list[Base] = []
    for lsn, part in chain:
        if not (bases[-1].index if bases else 0) < part["index"] < INDEX_MAX:
            raise BrokenCheckpointError(f"its number is {part['index']}, out of order")
        del placed[part["keep"] :]
        for base in bases:
            base.keep = min(base.keep, part["keep"])
        for i, item in enumerate(part["messages"]):
            found_at = parse_reference(item)
            placed.append((item, found_at if isinstance(found_at, Ref) else Ref(lsn, i)))
        bases.append(Base(part["index"], lsn, len(placed)))
    return placed, bases


def _body(record: Record) -> dict[str, Any]:
    """The body of a snapshot; messages, values of the state and tool results stay packed."""
    if not isinstance(record, Snapshot):
        raise BrokenCheckpointError("not a checkpoint of a run")
    parts = unpack_map(record.packed)
    version = unpack(parts["version"]) if "version" in parts else None
    if version not in _VERSIONS:
        raise BrokenCheckpointError(f"version {version!r:.50} is not known to this library")
    body = {name: unpack(part) for name, part in parts.items() if name not in _SPLIT}
    body |= {name: split(parts[name]) for name, split in _SPLIT.items()}
    body = {"timestamp_text": None, "removed": [], "gone": None, **body}  # which few have
    body["generation"] = Generation.of(body.get("generation"), record.lsn)
    for one in _DECLARED:
        if one.refuses(body[one.name]):
            kind = type(body[one.name]).__name__
            raise BrokenCheckpointError(f"its {one.name} is a {kind} that it cannot be")
    if min(body["step"], body["index"], body["keep"], body["recoveries"]) < 0:
        raise BrokenCheckpointError("it has negative numbers")
    if {*map(type, [*(body["removed"] or ()), *(body["gone"] or ())])} - {str}:
        raise BrokenCheckpointError("keys that its state has no more are no texts")
    lsns = [*body["bases"], *body["prologue"]]
    if not all(type(lsn) is int and 0 < lsn < record.lsn for lsn in lsns):
        raise BrokenCheckpointError("it refers to records that are not before it")
    return body


def _get(found: dict[int, Record], lsn: int) -> Record:
    if lsn not in found:
        raise BrokenCheckpointError(f"it needs LSN {lsn}, which is damaged or missing")
    return found[lsn]


def _state(
    fetch: Fetch, chain: list[tuple[int, dict[str, Any]]]
) -> tuple[dict[str, tuple[Packed, int, int]], list[dict[str, None] | None]]:
    """The values of the state, the snapshots that hold them and those with which their keys came;
    and the keys that are gone from each snapshot of the chain."""
    places, gone = folded((lsn, body["gone"], body["state"]) for lsn, body in chain)
    found = fetch({place.lsn for place in places.values()} - {lsn for lsn, _ in chain})
    states = {lsn: body["state"] for lsn, body in chain}
    for lsn in {place.lsn for place in places.values()} - states.keys():
        states[lsn] = unpack_map(unpack_map(_get(found, lsn).packed)["state"])
    return {
        # In a list of one. What is no value there does not fit the checksum.
        key: (Packed(states[place.lsn][key][1:]), place.lsn, place.since)
        for key, place in places.items()
    }, gone
