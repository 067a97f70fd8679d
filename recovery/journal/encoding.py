"""Encodes events as records, and decodes them. Pure."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

import msgpack

from eventlog.format.record import Packed, Record
from recovery.errors import UnreadableValueError
from recovery.journal.events import TYPES, Event, MessagesChanged
from recovery.values.fields import declared
from recovery.values.pack import pack, split_list, unpack, unpack_map
from recovery.values.sealed import Sealed, may_hold_sealed, sealed_data

_FIELDS = {kind: tuple(f.name for f in fields(event)) for kind, event in TYPES.items()}
_REQUIRED = {
    kind: {f.name for f in fields(event) if f.default is MISSING and f.default_factory is MISSING}
    for kind, event in TYPES.items()
}
_DECLARED = {
    kind: [
        (one.name, one.plain, one) for one in declared((f.name, str(f.type)) for f in fields(event))
    ]
    for kind, event in TYPES.items()
}
_NAMES = {name: bytes(pack(name, name)) for names in _FIELDS.values() for name in names}
# Fields that are None unless they say something.
_SILENT = {
    kind: {f.name for f in fields(event) if f.default is None} for kind, event in TYPES.items()
}
# Fields that may be large: a follower decodes them only on request.
_LARGE = {"task", "args", "value", "new", "result", "attributes", "group"}
# Fields of an error that may quote a value: of a call or run of a subject, they are sealed.
SEALED = {"message", "args", "traceback", "attributes", "left_out", "group", "cause"}


def encode(event: Event) -> tuple[str, Packed]:
    """Kind and body of the record. A field that is Packed is written unchanged."""
    kind = event.kind
    parts = [b""]
    for name in _FIELDS[kind]:
        value = getattr(event, name)
        if value is not None or name not in _SILENT[kind]:
            parts += (_NAMES[name], value if type(value) is Packed else pack(value, name))
    count = len(parts) // 2
    # msgpack's fixmap, where it holds them.
    parts[0] = bytes((0x80 | count,)) if count < 16 else msgpack.Packer().pack_map_header(count)
    return kind, Packed(b"".join(parts))


def is_event(kind: str) -> bool:
    """Whether runs write records of this kind."""
    return kind in TYPES


def decode(record: Record) -> Event | None:
    """The event in a record; None for kinds of other writers. ValueError when it makes no sense,
    UnreadableValueError when a value in it is of a type that is not registered."""
    if record.kind not in TYPES:
        return None
    try:
        body = unpack(record.packed)
    except UnreadableValueError as exc:
        raise exc.at(record.lsn) from exc.__cause__
    if record.kind == MessagesChanged.kind and may_hold_sealed(record.packed):
        # Their digests are those of the bytes in the log, so these bytes are kept.
        new = split_list(unpack_map(record.packed)["new"])
        body["new"] = [
            value if (data := sealed_data(packed)) is None else Sealed(data)
            for value, packed in zip(body["new"], new, strict=True)
        ]
    return _event(record, body if isinstance(body, dict) else {}, SEALED)


def decode_shallow(record: Record) -> Event | None:
    """``decode`` without the values: fields that may be large stay Packed."""
    if record.kind not in TYPES:
        return None
    parts = unpack_map(record.packed)
    return _event(
        record,
        {
            name: parts[name] if name in _LARGE else unpack(parts[name])
            for name in _FIELDS[record.kind]
            if name in parts
        },
        SEALED - _LARGE,
    )


def _event(record: Record, body: dict[str, Any], sealed: set[str]) -> Event:
    if type(hidden := body.get("sealed")) is dict:
        shown = {name: value for name, value in hidden.items() if name in sealed}
        body = {**body, **shown, "sealed": True}
    elif isinstance(hidden, Sealed):
        body = {**body, "message": repr(hidden)}
    if not _REQUIRED[record.kind] <= body.keys():
        raise ValueError(f"record {record.lsn} is no {record.kind!r} event")
    for name, plain, one in _DECLARED[record.kind]:
        if name in body and type(body[name]) not in plain and one.refuses(body[name]):
            raise ValueError(f"record {record.lsn}: {name} of {record.kind!r} makes no sense")
    known = {name: body[name] for name in _FIELDS[record.kind] if name in body}
    return TYPES[record.kind](**known)
