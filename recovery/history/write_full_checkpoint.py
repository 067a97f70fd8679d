"""Writes the first checkpoint of a generation, which needs no earlier record.

Everything that a run may need of earlier records is copied into portions: the messages and the
values of the state, and the records of the code before the first step, under their own LSNs. A
portion is a snapshot record, so its loss costs a checkpoint, and never the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from eventlog import Packed, Record, WritableLog
from recovery.history.restore_checkpoint import Generation
from recovery.history.state_delta import Seal
from recovery.history.write_checkpoint import CheckpointMeta, CheckpointWriter
from recovery.journal.messages import Messages
from recovery.values.backrefs import RecordedValues, resolve
from recovery.values.pack import pack, pack_list, pack_map
from recovery.values.types import Ref, digest

VERSION = 1
PORTION_SIZE = 4 << 20  # about; a value is in one of them, whatever its size

_Item = tuple[str, Any, Packed]  # of what kind, its key, its bytes


def write_full_checkpoint(
    log: WritableLog,
    writer: CheckpointWriter,
    what: CheckpointMeta,
    state: Mapping[str, Any],
    messages: Messages,
    prologue: Iterable[Record],
) -> int:
    """Append a checkpoint with which a generation begins; returns its LSN.

    ``prologue``: all records of the code before the first step. Raises ValueError when one of the
    messages cannot be read again. Then, as after a crash, the log may hold some portions to which
    no record refers.
    """
    first = log.last_lsn + 1
    at: dict[tuple[str, Any], Ref] = {}
    kept: dict[str, tuple[bytes, int, int, int]] = {}
    portions: set[int] = set()
    for portion in _portioned(_items(log, state, messages, prologue, writer.seal)):
        lsn = log.append_snapshot(_packed(portion))
        number = 0
        for kind, key, packed in portion:
            match kind:
                case "message":
                    at[kind, key] = Ref(lsn, number)
                    number += 1
                case "state":
                    kept[key] = digest(packed), lsn, len(packed), lsn
                case "prologue":
                    portions.add(lsn)
    messages.refs[:] = [at["message", one] for one in messages.message_digests]
    writer.begin(Generation(first, 0, tuple(sorted(portions))), kept)
    lsn = writer.write(what, state, messages)
    # The references to all of them are a part of the copy, and do not count as new records.
    writer.generation = replace(writer.generation, size=0)
    return lsn


def _items(
    log: WritableLog,
    state: Mapping[str, Any],
    messages: Messages,
    prologue: Iterable[Record],
    seal: Seal,
) -> Iterator[_Item]:
    for record in sorted(prologue, key=lambda record: record.lsn):
        # Messages in them refer only to outcomes among them.
        carried = [record.lsn, record.kind, record.time_ns, bytes(record.packed)]
        yield "prologue", record.lsn, pack(carried, "record")
    for key, value in state.items():
        yield "state", key, seal(key, value)
    seen: set[bytes] = set()
    for i, found in enumerate(messages.message_digests):
        if found not in seen:  # a message that is there many times is written once
            seen.add(found)
            yield "message", found, _message(log, messages, i)


def _message(log: WritableLog, messages: Messages, i: int) -> Packed:
    """A message, byte for byte as it was recorded."""
    known = messages.recorded(i)
    packed = known if type(known) is Packed else pack(known, f"messages[{i}]")
    if digest(packed) == messages.message_digests[i]:
        return packed
    # Its type has changed since: the record is what counts.
    ref = messages.refs[i]
    (found,), _ = resolve(RecordedValues(log.fetch), [ref if ref is not None else packed])
    if digest(found) != messages.message_digests[i]:
        raise ValueError(f"messages[{i}] cannot be read again")
    return Packed(found)


def _portioned(items: Iterable[_Item]) -> Iterator[list[_Item]]:
    portion: list[_Item] = []
    size = 0
    for item in items:
        if portion and size + len(item[2]) > PORTION_SIZE:
            yield portion
            portion, size = [], 0
        portion.append(item)
        size += len(item[2])
    if portion:
        yield portion


def _packed(portion: list[_Item]) -> Packed:
    by_kind: dict[str, list[tuple[Any, Packed]]] = {"message": [], "state": [], "prologue": []}
    for kind, key, packed in portion:
        by_kind[kind].append((key, packed))
    held = {key: pack_list([packed]) for key, packed in by_kind["state"]}
    return pack_map(
        {
            "portion": pack(VERSION, ""),
            "messages": pack_list([packed for _, packed in by_kind["message"]]),
            "state": pack_map(held),
            "prologue": pack_list([packed for _, packed in by_kind["prologue"]]),
        }
    )
