"""Checkpoints as snapshot records that hold what changed.

A snapshot says how the state and the messages differ from those of an earlier one, its base, and
where in the log the unchanged values stand. The base of the i-th snapshot of a run is the
(i & (i - 1))-th: so a snapshot is restored from at most log2(i) others, and a message is named in
at most log2(i) snapshots, each time by a reference of a few bytes. Bytes per step stay constant
however long the conversation. The checksum covers all that is restored, not just what changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import xxhash

from eventlog import Packed, Record, RefusedValueError, Snapshot
from recovery._errors import RecoveryError
from recovery._messages import Messages
from recovery._values import Ref, digest, pack, pack_list, pack_map, pack_ref, unpack

VERSION = 1

# The i-th snapshot has as many bases as i has bits.
BASES_MAX = 64
INDEX_MAX = 1 << 48  # checkpoints of a run: nobody takes one a microsecond for nine years

_TYPES: dict[str, tuple[type, ...]] = {
    "checkpoint_id": (str,), "run_id": (str,), "step": (int,), "timestamp": (int, float),
    "recoveries": (int,), "prologue": (list,), "index": (int,), "bases": (list,), "keep": (int,),
    "messages": (list,), "state": (dict,), "checksum": (str,),
    "carried": (dict,),
}  # fmt: skip


class Source(Protocol):
    """Where records come from: an EventLog or a LogReader."""

    def fetch(self, lsns: set[int]) -> dict[int, Record]: ...


class Sink(Protocol):
    """Where a snapshot goes: an EventLog."""

    def append_snapshot(self, state: Any) -> int: ...


@dataclass(slots=True)
class Base:
    """An earlier snapshot, and how many of its messages still stand unchanged at the start."""

    index: int
    lsn: int
    keep: int


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
    state_at: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    bases: list[Base] = field(default_factory=list)


def checksum(run_id: str, step: int, state: Mapping[str, bytes], rest: tuple[bytes, bytes]) -> str:
    """The checksum of a checkpoint: 32 hex digits of xxh3-128.

    ``state`` is the digest of each value by key; ``rest`` the digests of the messages and of the
    tool results (empty when these are not in the checkpoint but in the log).
    """
    parts = [run_id, step, [[key, state[key]] for key in sorted(state)], *rest]
    return str(xxhash.xxh3_128_hexdigest(pack(parts, "checkpoint")))


def pack_state(state: Mapping[str, Any]) -> dict[str, Packed]:
    """Each value of a state, packed; RefusedValueError with the path to what cannot be carried."""
    for key in state:
        if type(key) is not str:
            raise RefusedValueError(f"state[{key!r}]", "keys of a state are str")
    return {key: pack(value, f"state.{key}") for key, value in state.items()}


@dataclass(frozen=True, slots=True)
class Checkpointed:
    """What goes into a snapshot besides state and messages."""

    run_id: str
    step: int
    timestamp: float
    checkpoint_id: str = ""
    recoveries: int = 0
    prologue: tuple[int, ...] = ()
    tool_results: Any = None
    checksum: str = ""
    carried: Mapping[str, Any] = field(default_factory=dict)


class SnapshotWriter:
    """Writes the snapshots of one run, each as what changed since an earlier one."""

    def __init__(self, log: Sink, restored: Restored | None = None) -> None:
        self._log = log
        self._bases: list[Base] = restored.bases if restored else []
        self._state_at = restored.state_at if restored else {}

    def messages_changed(self, start: int) -> None:
        """Messages from index ``start`` on are not what they were."""
        for base in self._bases:
            base.keep = min(base.keep, start)

    def write(self, what: Checkpointed, state: Mapping[str, Any], messages: Messages) -> int:
        """Append the snapshot; its LSN. Durable with the next commit of the log."""
        packed = pack_state(state)
        digests = {key: digest(value) for key, value in packed.items()}
        changed = {key for key, new in digests.items()
                   if self._state_at.get(key, (b"", 0))[0] != new}  # fmt: skip
        index = self._bases[-1].index + 1 if self._bases else 1
        bases = [base for base in self._bases if base.index <= index & (index - 1)]
        base = bases[-1] if bases else Base(0, 0, 0)
        news = list(zip(messages.refs[base.keep :], messages[base.keep :], strict=True))
        results = None if what.tool_results is None else pack(what.tool_results, "tool_results")
        rest = messages.digest(), b"" if results is None else digest(results)
        found = checksum(what.run_id, what.step, digests, rest)
        if what.checksum not in ("", found):
            raise RecoveryError(
                f"checkpoint {what.checkpoint_id!r} was changed after its checksum was computed; "
                "nothing was saved. Make a new Checkpoint from the values."
            )
        body = {
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
            "messages": pack_list([pack_ref(ref) if ref else pack(message, "messages")
                                   for ref, message in news]),
            # [value] where it changed, else the LSN of the snapshot that holds it
            "state": pack_map({key: pack_list([packed[key]]) if key in changed
                               else self._state_at[key][1] for key in digests}),
            "tool_results": pack(None, "") if results is None else results,
            "checksum": found,
            "carried": dict(what.carried),
        }  # fmt: skip
        parts = {key: value if type(value) is Packed else pack(value, key)
                 for key, value in body.items()}  # fmt: skip
        lsn = self._log.append_snapshot(pack_map(parts))
        for i in range(base.keep, len(messages)):
            messages.refs[i] = messages.refs[i] or Ref(lsn, i - base.keep)
        self._bases = [*bases, Base(index, lsn, len(messages))]
        kept = {key: self._state_at[key] for key in digests if key not in changed}
        self._state_at = kept | {key: (digests[key], lsn) for key in changed}
        return lsn


class BrokenCheckpointError(ValueError):
    """Why a snapshot is not restored."""


def restore(source: Source, snapshot: Snapshot) -> Restored:
    """All that a snapshot restores, read and verified; BrokenCheckpointError says why it is not."""
    with _named(snapshot):
        return _restore(source, snapshot)


def checked_body(snapshot: Snapshot) -> dict[str, Any]:
    """What a snapshot's record says, its fields checked; BrokenCheckpointError."""
    with _named(snapshot):
        return _body(snapshot)


@contextmanager
def _named(snapshot: Snapshot) -> Iterator[None]:
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as exc:
        reason = exc if isinstance(exc, BrokenCheckpointError) else f"{type(exc).__name__}: {exc}"
        raise BrokenCheckpointError(f"checkpoint at LSN {snapshot.lsn}: {reason}") from None


def _restore(source: Source, snapshot: Snapshot) -> Restored:
    body = _body(snapshot)
    if (
        len(body["bases"]) > BASES_MAX
        or body["bases"] != sorted({*body["bases"], snapshot.lsn})[:-1]
    ):
        raise BrokenCheckpointError("its bases are not earlier checkpoints, the oldest first")
    found = source.fetch(set(body["bases"]))
    chain = [(lsn, _body(_get(found, lsn))) for lsn in body["bases"]] + [(snapshot.lsn, body)]
    placed: list[tuple[Any, Ref]] = []
    bases: list[Base] = []
    for lsn, part in chain:
        if not (bases[-1].index if bases else 0) < part["index"] < INDEX_MAX:
            raise BrokenCheckpointError(f"its number is {part['index']}, out of order")
        del placed[part["keep"] :]
        for base in bases:
            base.keep = min(base.keep, part["keep"])
        for i, item in enumerate(part["messages"]):
            placed.append((item, item if isinstance(item, Ref) else Ref(lsn, i)))
        bases.append(Base(part["index"], lsn, len(placed)))
    packed = _resolve(source, placed)
    state, state_at = _state(source, snapshot.lsn, body)
    messages = Messages()
    messages.restore(packed, [ref for _, ref in placed])
    results = body["tool_results"]
    actual = checksum(
        body["run_id"], body["step"], {key: at[0] for key, at in state_at.items()},
        (messages.digest(), b"" if results is None else digest(pack(results, "tool_results"))),
    )  # fmt: skip
    if actual != body["checksum"]:
        raise BrokenCheckpointError(f"checksum is {actual}, recorded {body['checksum']!r:.50}")
    return Restored(
        snapshot.lsn, body["checkpoint_id"], body["run_id"], body["step"], body["timestamp"],
        body["recoveries"], state, packed, messages.refs, body["prologue"], results, actual,
        body["carried"], state_at, bases,
    )  # fmt: skip


def _body(record: Record) -> dict[str, Any]:
    body = unpack(record.packed)
    if not isinstance(record, Snapshot) or not isinstance(body, dict):
        raise BrokenCheckpointError("not a checkpoint of a run")
    if body.get("version") != VERSION:
        version = f"{body.get('version')!r:.50}"
        raise BrokenCheckpointError(f"version {version} is not known to this library")
    for name, wanted in _TYPES.items():
        if type(body[name]) not in wanted:
            raise BrokenCheckpointError(f"its {name} is a {type(body[name]).__name__}")
    if min(body["step"], body["index"], body["keep"], body["recoveries"]) < 0:
        raise BrokenCheckpointError("it has negative numbers")
    lsns = [*body["bases"], *body["prologue"]]
    if not all(type(lsn) is int and 0 < lsn < record.lsn for lsn in lsns):
        raise BrokenCheckpointError("it refers to records that are not before it")
    return body


def _get(found: dict[int, Record], lsn: int) -> Record:
    if lsn not in found:
        raise BrokenCheckpointError(f"it needs LSN {lsn}, which is damaged or missing")
    return found[lsn]


def _resolve(source: Source, placed: list[tuple[Any, Ref]]) -> list[bytes]:
    wanted = {ref.lsn for item, ref in placed if isinstance(item, Ref)}
    found = source.fetch(wanted)
    bodies = {lsn: unpack(_get(found, lsn).packed) for lsn in wanted}
    # A reference takes a few bytes, and any number of them may name the same value: one copy of it.
    resolved: dict[Ref, bytes] = {}
    packed: list[bytes] = []
    for item, ref in placed:
        if isinstance(item, Ref) and ref not in resolved:
            resolved[ref] = pack(value_at(found[ref.lsn], bodies[ref.lsn], ref), "")
        packed.append(resolved[ref] if isinstance(item, Ref) else pack(item, ""))
    return packed


def value_at(record: Record, body: Any, ref: Ref) -> Any:
    """The value that a Ref names in its record."""
    match record.kind:
        case "outcome" | "signal" | "resolved":
            return body["value"]
        case "messages":
            return body["new"][ref.index]
        case "snapshot":
            return body["messages"][ref.index]
    raise BrokenCheckpointError(f"LSN {ref.lsn} is a {record.kind!r}, which holds no message")


def _state(
    source: Source, lsn: int, body: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, tuple[bytes, int]]]:
    kept = {at for at in body["state"].values() if isinstance(at, int)}
    found = source.fetch(kept)
    bodies = {at: _body(_get(found, at)) for at in kept}
    state, state_at = {}, {}
    for key, value in body["state"].items():
        at = value if isinstance(value, int) else lsn
        (state[key],) = bodies[at]["state"][key] if isinstance(value, int) else value
        state_at[key] = digest(pack(state[key], key)), at
    return state, state_at
