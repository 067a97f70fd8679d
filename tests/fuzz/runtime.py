"""Any bytes as what the runtime keeps in a log: values, events, checkpoints."""

from __future__ import annotations

from typing import Any

import msgpack

from eventlog import Record, Snapshot
from recovery.errors import UnreadableValueError
from recovery.history.restore_checkpoint import BrokenCheckpointError, Restored, restore
from recovery.history.write_checkpoint import CheckpointMeta, CheckpointWriter
from recovery.journal.encoding import decode, encode
from recovery.journal.events import TYPES
from recovery.journal.messages import Messages
from recovery.values.pack import pack, unpack, unpack_frozen
from recovery.values.types import Ref
from tests.fuzz._choices import Choices

KINDS = (*sorted(TYPES), "stranger")


def value(data: bytes) -> None:
    """What is read is what can be written, or a ValueError."""
    choices = Choices(data)
    packed = bytes(msgpack.packb(choices.value())) if choices.flag() else choices.rest()
    try:
        found = unpack(packed)
    except (ValueError, UnreadableValueError):
        return
    again = pack(found, "value")
    assert pack(unpack(again), "value") == again == pack(unpack_frozen(packed), "value")


def event(data: bytes) -> None:
    """A record is an event, or of another writer, or a ValueError says why it makes no sense."""
    choices = Choices(data)
    kind = choices.pick(KINDS)
    packed = msgpack.packb(_fields(choices, kind)) if choices.flag() else choices.rest()
    try:
        found = decode(Record(7, kind, 0, packed))
    except (ValueError, UnreadableValueError):
        return
    assert (found is None) == (kind not in TYPES)
    if found is not None:
        kind, again = encode(found)
        assert encode(decode(Record(7, kind, 0, again)) or found) == (kind, again)


def _fields(choices: Choices, kind: str) -> dict[Any, Any]:
    """Fields of that event, most of them of the type that they should have."""
    wanted = TYPES[kind].__dataclass_fields__ if kind in TYPES else {"a": None, "b": None}
    found: dict[Any, Any] = {}
    for name in wanted:
        match choices.number(0, 4):
            case 0:
                found[name] = choices.number(0, 20)
            case 1:
                found[name] = choices.blob(10).decode("latin-1")
            case 2:
                found[name] = choices.value()
            case 3:
                found[name] = choices.blob(16)
    return found


class Log:
    """Records by LSN: all that a checkpoint is written to and read from."""

    def __init__(self) -> None:
        self.records: dict[int, Record] = {}

    def append(self, kind: str, packed: bytes) -> int:
        lsn = max(self.records, default=0) + 1
        made = Snapshot if kind == "snapshot" else Record
        self.records[lsn] = made(lsn, kind, 0, packed)
        return lsn

    def append_snapshot(self, state: Any) -> int:
        return self.append("snapshot", bytes(state))

    def fetch(self, lsns: set[int]) -> dict[int, Record]:
        return {lsn: self.records[lsn] for lsn in lsns if lsn in self.records}


def checkpoint(data: bytes) -> None:
    """A checkpoint restores what was saved, byte for byte, or says that it is broken."""
    choices = Choices(data)
    log, saved = Log(), dict[int, tuple[Any, Any]]()
    _save(choices, log, saved)
    changed = [_change(choices, log) for _ in range(choices.number(0, 4))]
    for lsn, record in sorted(log.records.items()):
        if isinstance(record, Snapshot):
            _restored(log, record, saved.get(lsn), forged=any(changed))


def _save(choices: Choices, log: Log, saved: dict[int, tuple[Any, Any]]) -> None:
    def record(start: int, stop: int, packed: list[bytes]) -> list[Ref | None]:
        lsn = log.append("messages", pack({"new": [unpack(one) for one in packed]}, ""))
        return [Ref(lsn, i) for i in range(len(packed))]

    writer, messages = CheckpointWriter(log), Messages(record)
    messages.on_change = writer.messages_changed
    state: dict[str, Any] = {}
    for step in range(1, choices.number(1, 6) + 1):
        for _ in range(choices.number(0, 3)):
            messages.append({"content": choices.blob(8)})
        if messages and choices.flag():
            del messages[choices.number(0, len(messages) - 1)]
        state[choices.pick("abc")] = choices.number(0, 9)
        results = [step] if choices.flag() else None
        lsn = writer.write(CheckpointMeta("run", step, 0.0, tool_results=results), state, messages)
        saved[lsn] = dict(state), [dict(message) for message in messages]


def _change(choices: Choices, log: Log) -> bool:
    """Somebody changes a record, its digest included. Whether it is forged, and not just lost."""
    lsn = choices.number(1, max(log.records, default=1))
    if lsn not in log.records:
        return False
    record = log.records[lsn]
    match choices.number(0, 3):
        case 0:
            del log.records[lsn]
            return False
        case 1:
            packed = choices.blob(60)
        case 2:
            packed = msgpack.packb(choices.value())
        case _:
            body = _fields_of(record)
            key = sorted(body)[choices.number(0, len(body) - 1)]
            body[key] = choices.value() if choices.flag() else choices.number(0, 30)
            packed = msgpack.packb(body, default=_as_read)
    log.records[lsn] = type(record)(lsn, record.kind, 0, packed)
    return True


def _fields_of(record: Record) -> dict[str, Any]:
    try:
        body = unpack(record.packed)
    except ValueError:
        body = None
    return body if isinstance(body, dict) and {*map(type, body)} == {str} else {"version": 1}


def _as_read(ref: object) -> msgpack.ExtType:
    assert isinstance(ref, Ref)
    return msgpack.ExtType(1, msgpack.packb([ref.lsn, ref.index]))


def _restored(log: Log, record: Snapshot, saved: tuple[Any, Any] | None, forged: bool) -> None:
    try:
        restored = restore(log.fetch, record)
    except UnreadableValueError:
        return
    except BrokenCheckpointError as exc:
        assert str(record.lsn) in str(exc)
        return
    state, messages = restored.state, [unpack(one) for one in restored.messages]
    assert forged or (state, messages) == saved
    _goes_on(log, restored)


def _goes_on(log: Log, restored: Restored) -> None:
    """What was restored can be saved again, and restores the same."""
    messages, state = Messages(), dict[str, Any](restored.state)
    messages.restore(restored.messages, restored.refs)
    beside = Log()
    beside.records = dict(log.records)
    writer = CheckpointWriter(beside, restored)
    last = beside.records[writer.write(CheckpointMeta("run", 99, 0.0), state, messages)]
    assert isinstance(last, Snapshot)
    again = restore(beside.fetch, last)
    assert (again.state, again.messages) == (restored.state, restored.messages)
