"""Reads checkpoints and writes of a thread from its log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.base import (
    Checkpoint,
    CheckpointMetadata,
    DeltaChannelHistory,
    PendingWrite,
)

from recovery.integrations.langgraph.index import Entry
from recovery.integrations.langgraph.serializer import Codec, Typed, digest_of
from recovery.integrations.langgraph.thread import Thread
from recovery.integrations.langgraph.values import (
    Form,
    Found,
    Place,
    address_of,
    is_list,
    resolve,
)

_NOTHING: Typed = ("", b"")
_NO_BODY: dict[str, Any] = {}


@dataclass(frozen=True)
class StoredWrite:
    """A write of a task: where its value is."""

    task: str
    path: str
    idx: int
    channel: str
    lsn: int
    part: int

    def read(self, reading: Reading) -> PendingWrite:
        """As LangGraph has it."""
        return self.task, self.channel, reading.value(self.lsn, self.part)


@dataclass
class History:
    """What was written to a delta channel, the newest first, and the value before: a place."""

    writes: list[StoredWrite] = field(default_factory=list)
    seed: tuple[int, int | str] | None = None

    def read(self, reading: Reading) -> DeltaChannelHistory:
        """As LangGraph has it."""
        found: DeltaChannelHistory = {"writes": [one.read(reading) for one in self.writes[::-1]]}
        if self.seed is not None:
            found["seed"] = reading.value(*self.seed)
        return found


class Reading:
    """Reads from one thread, each record once. Called with the thread's lock held."""

    def __init__(self, thread: Thread, codec: Codec) -> None:
        self._thread, self._codec = thread, codec
        self._bodies: dict[int, dict[str, Any]] = {}
        self.restored: dict[str, Found] = {}  # of the checkpoint that was read last

    def body(self, lsn: int) -> dict[str, Any]:
        """A record's body."""
        if lsn not in self._bodies:
            self._fetch([lsn])
        return self._bodies[lsn]

    def _fetch(self, lsns: Iterable[int]) -> None:
        records = self._thread.records({lsn for lsn in lsns if lsn not in self._bodies})
        self._bodies.update((lsn, record.body) for lsn, record in records.items())

    def form_of(self, lsn: int, part: int | str) -> Form:
        """The encoded value of a part of a record."""
        return form_in(self.body(lsn), part)

    # -- checkpoints

    def metadata(self, entry: Entry) -> CheckpointMetadata:
        """The metadata of a checkpoint."""
        return cast(CheckpointMetadata, self._codec.restored(self.body(entry.lsn)["metadata"]))

    def checkpoint(self, entry: Entry) -> tuple[Checkpoint, CheckpointMetadata]:
        """A checkpoint and its metadata. ``restored`` has its values as they are remembered."""
        body = self.body(entry.lsn)
        values: dict[str, Any] = {}
        self.restored = {}
        for channel in body["values"]:
            found = self.restored[channel] = self._found(entry.lsn, channel)
            values[channel] = self._value_of(found)
        rest = self._codec.restored(body["checkpoint"])
        checkpoint = cast(Checkpoint, {**rest, "id": entry.id, "channel_values": values})
        return checkpoint, self.metadata(entry)

    def states(self, entry: Entry) -> dict[str, Found]:
        """The values of a checkpoint, to compare with by their bytes."""
        states = {part: self._found(entry.lsn, part) for part in self.body(entry.lsn)["values"]}
        for found in states.values():
            for _ in self._opened(found):
                pass
        return states

    def _found(self, lsn: int, part: int | str) -> Found:
        form = self.form_of(lsn, part)
        if not is_list(form):
            return Found([address_of(form, lsn, part)], None)
        return Found(*resolve(lsn, part, self.form_of))

    def _opened(self, found: Found) -> Iterator[tuple[list[Place], list[Typed]]]:
        """The bytes of its elements, those of a few records at a time, in order."""
        for lsns, places in found.by_records():
            records = self._thread.records(lsns - self._bodies.keys())
            typed = [_NOTHING] * len(places)
            body, of = _NO_BODY, 0
            for at in sorted(range(len(places)), key=lambda at: places[at][0]):
                lsn, part, item, _ = places[at]
                if lsn != of:  # one body at a time, for the sake of the garbage collector
                    body, of = self._bodies.get(lsn) or records.pop(lsn).body, lsn
                form = form_in(body, part)
                typed[at] = self._codec.opened(form[:2] if item < 0 else form["n"][item])
            # The bytes of a message that got its id later are not those of the value.
            found.digests += [
                b"" if place[3] else digest_of(one)
                for place, one in zip(places, typed, strict=True)
            ]
            yield places, typed

    def _value_of(self, found: Found) -> Any:
        values: list[Any] = []
        for places, typed in self._opened(found):
            loaded = self._codec.loaded_all(typed)
            values += [
                _with_id(value, place[3]) if place[3] else value
                for value, place in zip(loaded, places, strict=True)
            ]
        return values[0] if found.levels is None else values

    def value(self, lsn: int, part: int | str) -> Any:
        """The value of a part of a record."""
        return self._value_of(self._found(lsn, part))

    # -- writes

    def writes(self, entry: Entry) -> list[StoredWrite]:
        """The writes after a checkpoint, in the order in which LangGraph applies them."""
        self._fetch(entry.writes)
        found: dict[tuple[str, int], StoredWrite] = {}
        for lsn in entry.writes:
            body = self._bodies[lsn]
            task, path = body["task"], body["path"]
            for part, (channel, idx, _) in enumerate(body["writes"]):
                if idx < 0 or (task, idx) not in found:  # special writes replace earlier ones
                    found[task, idx] = StoredWrite(task, path, idx, channel, lsn, part)
        return sorted(found.values(), key=lambda write: (write.path, write.task, write.idx))

    def histories(self, entry: Entry | None, channels: Sequence[str]) -> dict[str, History]:
        """What the ancestors of a checkpoint have written to these channels."""
        found = {channel: History() for channel in channels}
        remaining = {*channels}
        seen: set[str] = set()
        while entry is not None and remaining and entry.id not in seen:
            seen.add(entry.id)  # a checkpoint that was put again may be its own ancestor
            for channel in self._kept(entry, remaining, found):
                remaining.discard(channel)
            entry = self._thread.index.find(entry.ns, entry.parent) if entry.parent else None
            if entry is None:
                break
            for write in reversed(self.writes(entry)):
                if write.channel in remaining:
                    found[write.channel].writes.append(write)
            for channel in remaining & {*self.body(entry.lsn)["values"]}:
                found[channel].seed = entry.lsn, channel
                remaining.discard(channel)
        return found

    def _kept(self, entry: Entry, channels: set[str], found: dict[str, History]) -> list[str]:
        """Take what a checkpoint has of its pruned ancestors; the channels of which it has it."""
        body = self.body(entry.lsn)
        here = [channel for channel in body.get("histories", []) if channel in channels]
        for part, (channel, idx, _, task, path) in enumerate(body.get("kept", [])):
            if channel in here and idx is None:
                found[channel].seed = entry.lsn, part
            elif channel in here:
                write = StoredWrite(task, path, idx, channel, entry.lsn, part)
                found[channel].writes.append(write)
        return here


def form_in(body: dict[str, Any], part: int | str) -> Form:
    """The encoded value of a part of this record."""
    if isinstance(part, str):
        return body["values"][part]
    return (body["writes"] if "writes" in body else body["kept"])[part][2]


def _with_id(value: Any, id: str) -> Any:
    if isinstance(value, BaseMessage):
        value.id = id
    elif isinstance(value, dict):  # of a type that the serializer does not build
        value["id"] = id
    return value
