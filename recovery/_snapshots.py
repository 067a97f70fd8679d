"""Checkpoints as snapshot records that hold what changed.

A snapshot says how the state and the messages differ from those of an earlier one, its base, and
where in the log the unchanged values stand. The base of the i-th snapshot of a run is the
(i & (i - 1))-th: so a snapshot is restored from at most log2(i) others, and a message is named in
at most log2(i) snapshots, each time by a reference of a few bytes. Bytes per step stay constant
however long the conversation. The checksum covers all that is restored, not just what changed.

Where retention is to remove the beginning of a log, a generation begins: portions, which are
snapshot records that hold all values, and a snapshot without bases that refers to nothing in front
of them. Neither does any that follows. See _whole.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field, replace
from typing import Any, Protocol

from eventlog import Damage, Packed, Record, RefusedValueError, Snapshot
from eventlog._dataclass import dataclass
from recovery._errors import RecoveryError, UnreadableValueError
from recovery._events import RecordsLost
from recovery._fields import declared
from recovery._messages import Messages, digest_of_all
from recovery._parts import LostValueError, Values, is_portion, pack_stand_in, resolve, stand_in_of
from recovery._state import KeptState, checksum
from recovery._tally import Tallies
from recovery._values import (
    Plain,
    Ref,
    digest,
    pack,
    pack_list,
    pack_map,
    split_list,
    unpack,
    unpack_map,
)

VERSION = 1

_NONE = pack(None, "")

# The i-th snapshot has as many bases as i has bits.
BASES_MAX = 64
INDEX_MAX = 1 << 48  # checkpoints of a run: nobody takes one a microsecond for nine years
# The number of the first one of a generation: a base of all that follow, so that none of them
# names its messages again.
INDEX_WHOLE = 1 << 40

_DECLARED = declared({
    "checkpoint_id": "str", "run_id": "str", "step": "int", "timestamp": "int | float",
    "recoveries": "int", "prologue": "list[Any]", "index": "int", "bases": "list[Any]",
    "keep": "int", "messages": "list[Any]", "state": "dict[str, Any]", "checksum": "str",
    "carried": "dict[str, Any]", "removed": "list[Any] | None", "timestamp_text": "str | None",
}.items())  # fmt: skip


_SPLIT: dict[str, Callable[[Packed], Any]] = {
    "messages": split_list, "state": unpack_map, "tool_results": lambda packed: packed,
}  # fmt: skip


class Source(Protocol):
    """Where records come from: an EventLog or a LogReader."""

    def fetch(self, lsns: set[int]) -> dict[int, Record]: ...


class Snapshots(Protocol):
    """Where they are found: an EventLog or a LogReader."""

    def snapshots(self, on_damage: Callable[[Damage], None] | None = None
                  ) -> Iterator[Snapshot]: ...  # fmt: skip


class Sink(Protocol):
    """Where a snapshot goes: an EventLog."""

    def append_snapshot(self, state: Any) -> int: ...


@dataclass(slots=True)
class Base:
    """An earlier snapshot, and how many of its messages still stand unchanged at the start."""

    index: int
    lsn: int
    keep: int


@dataclass(frozen=True, slots=True)
class Generation:
    """Checkpoints of one generation need no record before LSN ``first``, whatever else is lost.

    ``size``: bytes recorded since then. ``prologue``: the portions that hold the older ones of
    the records that the code before the first step needs.
    """

    first: int = 1
    size: int = 0
    prologue: tuple[int, ...] = ()

    def with_more(self, size: int) -> Generation:
        """The same when so much more is recorded; of one that is not measured, nothing is known."""
        return replace(self, size=self.size + size) if self != Generation() else self

    @classmethod
    def of(cls, body: Any, lsn: int) -> Generation:
        """That of the snapshot at ``lsn``, from what its body says."""
        match body:
            case None:
                return cls()
            case [int(first), int(size), list(prologue)] if 0 < first <= lsn and size >= 0:
                if all(type(one) is int and first <= one < lsn for one in prologue):
                    return cls(first, size, tuple(prologue))
        raise BrokenCheckpointError("its generation makes no sense")


@dataclass(slots=True)
class Restored:
    """What a snapshot restores, verified."""

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
    state_at: dict[str, tuple[bytes, int, int]] = field(default_factory=dict)
    bases: list[Base] = field(default_factory=list)
    generation: Generation = field(default_factory=Generation)

    borrowed: int = 0  # bytes of the messages that are elsewhere in the log (see _parts)
    timestamp_text: str | None = None  # as it was given, where that was text
    removed: tuple[str, ...] | None = ()

    def forget(self) -> None:
        """State and messages are the run's now, and change: what they were need not be kept."""
        self.state, self.messages, self.refs = {}, [], []


@dataclass(frozen=True, slots=True)
class Checkpointed:
    """What goes into a snapshot besides state and messages.

    ``grown``: bytes that were recorded since the snapshot before. ``removed``: keys of the state
    that were there when a loop of steps was entered, and are not any more; None: all others, for
    somebody has said what the state is.
    """

    run_id: str
    step: int
    timestamp: float
    checkpoint_id: str = ""
    recoveries: int = 0
    prologue: tuple[int, ...] = ()
    tool_results: Any = None
    checksum: str = ""
    carried: Mapping[str, Any] = field(default_factory=dict)
    grown: int = 0
    timestamp_text: str | None = None
    removed: tuple[str, ...] | None = ()


class SnapshotWriter:
    """Writes the snapshots of one run, each as what changed since an earlier one."""

    def __init__(self, log: Sink, restored: Restored | None = None) -> None:
        self._log = log
        self._bases: list[Base] = restored.bases if restored else []
        self._state = KeptState(restored.state_at if restored else {})
        self.generation = restored.generation if restored else Generation()
        self.measures = self.generation != Generation()  # how much is recorded in a generation

    def size(self, messages: Messages) -> int:
        """Bytes of all that a snapshot restores: as the last one had it, with these messages."""
        return self._state.size() + messages.size

    def begin(self, generation: Generation, state_at: Mapping[str, tuple[bytes, int, int]]) -> None:
        """What the next snapshot restores is in portions, the first records of a generation."""
        self._bases, self._state, self.generation = [], KeptState(state_at), generation
        self.measures = True

    def messages_changed(self, start: int) -> None:
        """Messages from index ``start`` on are not what they were."""
        for base in self._bases:
            base.keep = min(base.keep, start)

    def write(self, what: Checkpointed, state: Mapping[str, Any], messages: Messages) -> int:
        """Append the snapshot; its LSN. Durable with the next commit of the log."""
        changed = self._state.news(state)
        begins = INDEX_WHOLE if self.generation.first > 1 else 1
        index = self._bases[-1].index + 1 if self._bases else begins
        bases = [base for base in self._bases if base.index <= index & (index - 1)]
        base = bases[-1] if bases else Base(0, 0, 0)
        news = list(zip(messages.refs[base.keep :], messages[base.keep :], strict=True))
        generation, recorded = self.generation, self.generation.size + what.grown
        results = None if what.tool_results is None else pack(what.tool_results, "tool_results")
        rest = messages.digest(), b"" if results is None else digest(results)
        digests = self._state.digests(state, changed)
        found = checksum(what.run_id, what.step, digests, rest)
        if what.checksum not in ("", found):
            raise RecoveryError(
                f"checkpoint {what.checkpoint_id!r} was changed after its checksum was computed; "
                "nothing was saved. Make a new Checkpoint from the values."
            )
        plain: dict[str, Plain] = {
            "version": VERSION,
            "checkpoint_id": what.checkpoint_id or f"{what.run_id}-{what.step:06d}",
            "run_id": what.run_id,
            "step": what.step,
            "timestamp": what.timestamp,
            "recoveries": what.recoveries,
            "prologue": list(what.prologue),
            "index": index,
            "bases": [base.lsn for base in bases],
            "keep": base.keep,
            "checksum": found,
        }
        parts = {
            "messages": pack_list([pack_stand_in(ref) if ref else pack(message, "messages")
                                   for ref, message in news]),
            "state": self._state.packed(state, changed),
            "tool_results": _NONE if results is None else results,
            "carried": pack(dict(what.carried), "carried"),
        }  # fmt: skip
        if what.timestamp_text is not None:
            plain["timestamp_text"] = what.timestamp_text
        if what.removed != ():
            removed = None if what.removed is None else list(what.removed)
            parts["removed"] = pack(removed, "removed")
        if self.measures:
            measured = [generation.first, recorded, list(generation.prologue)]
            parts["generation"] = pack(measured, "generation")
        packed = pack_map(parts, plain)
        try:
            lsn = self._log.append_snapshot(packed)
        except RefusedValueError as exc:  # too large
            raise RefusedValueError("checkpoint", exc.reason) from None
        for i in range(base.keep, len(messages)):
            messages.refs[i] = messages.refs[i] or Ref(lsn, i - base.keep)
        self._bases = [*bases, Base(index, lsn, len(messages))]
        if self.measures:
            self.generation = replace(generation, size=recorded + len(packed))
        self._state.keep(state, changed, lsn)
        return lsn


class BrokenCheckpointError(ValueError):
    """Why a snapshot is not restored."""


def checkpoints_in(
    log: Snapshots, on_damage: Callable[[Damage], None] | None = None
) -> Iterator[Snapshot]:
    """The checkpoints in a log, the newest first, none of them verified as a whole."""
    return (snapshot for snapshot in log.snapshots(on_damage) if not is_portion(snapshot))


def prologue_in(source: Source, lsns: Iterable[int], generation: Generation) -> dict[int, Record]:
    """Records of the code before the first step, by LSN, wherever a checkpoint has them.

    BrokenCheckpointError when a portion makes no sense; those that are lost are left out.
    """
    wanted = set(lsns)
    found = source.fetch({lsn for lsn in wanted if lsn >= generation.first})
    for portion in source.fetch(set(generation.prologue)).values():
        for record in _carried_in(portion):
            found[record.lsn] = record
    return {lsn: record for lsn, record in found.items() if lsn in wanted}


def whole_prologue(
    source: Source, at: int, lsns: Collection[int], generation: Generation
) -> list[Record]:
    """The same of the checkpoint at LSN ``at``, in their order, and none may be missing."""
    found = prologue_in(source, lsns, generation)
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


def restore(source: Source, snapshot: Snapshot, read: Callable[[Packed], Any] = unpack) -> Restored:
    """All that a snapshot restores, read and verified; BrokenCheckpointError says why it is not.

    ``read``: what makes values of their bytes; those of the state are what it gives.
    """
    with _named(snapshot):
        return _restore(source, snapshot, read)


def checked_body(snapshot: Snapshot) -> dict[str, Any]:
    """What a snapshot's record says, its fields checked; BrokenCheckpointError.

    Messages and the values of the state are packed, as they are.
    """
    with _named(snapshot):
        return _body(snapshot)


def is_left_over(snapshot: Snapshot, oldest_lsn: int) -> bool:
    """Whether retention has removed what a checkpoint may need: it is there for its segment is."""
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


def _restore(source: Source, snapshot: Snapshot, read: Callable[[Packed], Any]) -> Restored:
    body = _body(snapshot)
    if (
        len(body["bases"]) > BASES_MAX
        or body["bases"] != sorted({*body["bases"], snapshot.lsn})[:-1]
    ):
        raise BrokenCheckpointError("its bases are not earlier checkpoints, the oldest first")
    found = source.fetch(set(body["bases"]))
    chain = [(lsn, _body(_get(found, lsn))) for lsn in body["bases"]] + [(snapshot.lsn, body)]
    placed: list[tuple[Packed, Ref]] = []
    bases: list[Base] = []
    for lsn, part in chain:
        if not (bases[-1].index if bases else 0) < part["index"] < INDEX_MAX:
            raise BrokenCheckpointError(f"its number is {part['index']}, out of order")
        del placed[part["keep"] :]
        for base in bases:
            base.keep = min(base.keep, part["keep"])
        for i, item in enumerate(part["messages"]):
            found_at = stand_in_of(item)
            placed.append((item, found_at if isinstance(found_at, Ref) else Ref(lsn, i)))
        bases.append(Base(part["index"], lsn, len(placed)))
    packed, borrowed = resolve(Values(source.fetch), (item for item, _ in placed))
    state_at = _state(source, snapshot.lsn, body)
    # Of the bytes as they were recorded: values may have types that are not what they were.
    digests = {id(one): digest(one) for one in packed}
    results = body["tool_results"]
    actual = checksum(
        body["run_id"], body["step"], {key: digest(value) for key, (value, _) in state_at.items()},
        (digest_of_all(digests[id(one)] for one in packed),
         b"" if results == _NONE else digest(results)),
    )  # fmt: skip
    if actual != body["checksum"]:
        raise BrokenCheckpointError(f"checksum is {actual}, recorded {body['checksum']!r:.50}")
    for one in {id(one): one for one in packed}.values():
        read(Packed(one))  # raises what keeps it from being restored
    Tallies(body["carried"])  # raises if it makes no sense
    refs: list[Ref | None] = [ref for _, ref in placed]
    state = {key: read(value) for key, (value, _) in state_at.items()}
    return Restored(
        snapshot.lsn, body["checkpoint_id"], body["run_id"], body["step"], body["timestamp"],
        body["recoveries"], state, packed, refs, body["prologue"], read(results), actual,
        body["carried"],
        {key: (digest(value), at, len(value)) for key, (value, at) in state_at.items()}, bases,
        body["generation"].with_more(len(snapshot.packed)), borrowed, body["timestamp_text"],
        None if body["removed"] is None else tuple(body["removed"]),
    )  # fmt: skip


def _body(record: Record) -> dict[str, Any]:
    """What a snapshot holds; messages, values of the state and tool results packed as they are."""
    if not isinstance(record, Snapshot):
        raise BrokenCheckpointError("not a checkpoint of a run")
    parts = unpack_map(record.packed)
    version = unpack(parts["version"]) if "version" in parts else None
    if version != VERSION:
        raise BrokenCheckpointError(f"version {version!r:.50} is not known to this library")
    body = {name: unpack(part) for name, part in parts.items() if name not in _SPLIT}
    body |= {name: split(parts[name]) for name, split in _SPLIT.items()}
    body = {"timestamp_text": None, "removed": [], **body}  # which few have
    body["generation"] = Generation.of(body.get("generation"), record.lsn)
    for one in _DECLARED:
        if one.refuses(body[one.name]):
            kind = type(body[one.name]).__name__
            raise BrokenCheckpointError(f"its {one.name} is a {kind} that it cannot be")
    if min(body["step"], body["index"], body["keep"], body["recoveries"]) < 0:
        raise BrokenCheckpointError("it has negative numbers")
    if {*map(type, body["removed"] or ())} - {str}:
        raise BrokenCheckpointError("keys that its state has no more are no texts")
    lsns = [*body["bases"], *body["prologue"]]
    if not all(type(lsn) is int and 0 < lsn < record.lsn for lsn in lsns):
        raise BrokenCheckpointError("it refers to records that are not before it")
    return body


def _get(found: dict[int, Record], lsn: int) -> Record:
    if lsn not in found:
        raise BrokenCheckpointError(f"it needs LSN {lsn}, which is damaged or missing")
    return found[lsn]


def _state(source: Source, lsn: int, body: dict[str, Any]) -> dict[str, tuple[Packed, int]]:
    """The values of the state, and the snapshots that hold them."""
    places = {key: place_in_state(value) for key, value in body["state"].items()}
    kept = {at for at in places.values() if at}
    found = source.fetch(kept)
    states = {at: unpack_map(unpack_map(_get(found, at).packed)["state"]) for at in kept}
    return {key: (_held(states[at][key] if at else body["state"][key]), at or lsn)
            for key, at in places.items()}  # fmt: skip


def place_in_state(part: Packed) -> int:
    """The LSN that stands in place of a value, 0 if the value is here, in a list of one."""
    at = 0 if part[:1] == b"\x91" else unpack(part)
    if type(at) is not int:
        raise BrokenCheckpointError("its state holds neither a value nor where that is")
    return at


def _held(part: Packed) -> Packed:
    if part[:1] != b"\x91":
        raise BrokenCheckpointError("its state is not where it says")
    return Packed(part[1:])
