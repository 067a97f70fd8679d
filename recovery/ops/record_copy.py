"""Copies records of one run's log into another's, and changes the LSNs in them. Pure.

Events refer to each other by LSN: an outcome to its call, a nested call to its outer one, a message
to the outcome that it equals. In another log each of them has another LSN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgpack

from eventlog.format.record import Packed, Record, unpack
from eventlog.light_dataclass import light_dataclass
from recovery.journal.call_key import UNDO_PREFIX, call_scope, outer_call
from recovery.journal.events import CallDecided, CallIntended, Event
from recovery.values.backrefs import CompositeMessage, parse_reference
from recovery.values.pack import pack
from recovery.values.types import Ref

# The conversation is copied in records of about this size.
PIECE_SIZE = 4 << 20


def packed_again(undecoded: Any) -> Packed:
    """The bytes from which a value was unpacked with its extension types undecoded."""
    return Packed(msgpack.packb(undecoded, strict_types=True))


@light_dataclass
class Drafted:
    """A record that is to be written; ``time_ns`` is None for the time of writing."""

    kind: str
    packed: Packed
    time_ns: int | None = None
    is_snapshot: bool = False


class RecordList:
    """The records of a log that is not written yet, from LSN 1."""

    def __init__(self) -> None:
        self.records: list[Drafted] = []

    def append(self, kind: str, packed: Packed, time_ns: int | None = None) -> int:
        """Add a record; returns its LSN."""
        self.records.append(Drafted(kind, packed, time_ns))
        return len(self.records)

    def append_snapshot(self, state: Any) -> int:
        """Add a snapshot; returns its LSN."""
        self.records.append(Drafted("snapshot", state, None, is_snapshot=True))
        return len(self.records)


class RecordCopier:
    """Copies events of run ``uid`` into a draft.

    ``at``: the new LSN of each copied record, by its old one. ``packed_of``: the message for a
    reference to a record that was not copied.
    """

    def __init__(
        self, uid: str, draft: RecordList, packed_of: Callable[[Ref | CompositeMessage], bytes]
    ) -> None:
        self._uid, self._draft, self._packed_of = uid, draft, packed_of
        self.at: dict[int, int] = {}

    def copy(self, record: Record, event: Event) -> None:
        """Add the event with changed references; skip it if its call was not copied."""
        body = unpack(record.packed)  # extension values stay as they are
        if isinstance(event, CallIntended):
            body["key"] = event.idempotency_key(self._uid)
            if event.tool.startswith(UNDO_PREFIX):
                body["call_id"] = str(self.at.get(event.undoes, 0))
        if isinstance(event, CallDecided):
            body["inbox"] = 0  # the message is in the inbox of the other run
        for name in body:
            moved = self._moved(name, body[name])
            if moved is None and body[name] is not None:
                return
            body[name] = moved
        self.at[record.lsn] = self._draft.append(record.kind, packed_again(body), record.time_ns)

    def _moved(self, name: str, value: Any) -> Any:
        """A field of an event in the new log; None for a call that was not copied."""
        match name, value:
            case "call", int():
                return self.at.get(value) if value else 0
            case "scope", str():
                outer = outer_call(value)
                if not outer:
                    return value
                return call_scope(self.at[outer]) if outer in self.at else None
            case _, msgpack.ExtType():
                return self._reference(value)
            case _, list():
                return [self._reference(item) for item in value]
        return value

    def _reference(self, item: Any) -> Any:
        found = parse_reference(packed_again(item)) if isinstance(item, msgpack.ExtType) else None
        if found is None:
            return item
        if not found.lsns <= self.at.keys():
            return unpack(self._packed_of(found))
        return unpack(pack(found.moved(self.at), "message"))


def pieces(messages: list[bytes]) -> Iterator[tuple[int, int]]:
    """The conversation in pieces that fit into a record."""
    start = size = 0
    for i, message in enumerate(messages):
        if size and size + len(message) > PIECE_SIZE:
            yield start, i
            start, size = i, 0
        size += len(message)
    if start < len(messages):
        yield start, len(messages)
