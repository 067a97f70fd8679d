"""Any payload as records, and any body as a value and as JSON."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import msgpack
import xxhash

from eventlog import Record, RefusedValueError
from eventlog.dump import from_json, to_json
from eventlog.format.frame import FRAME_SIZE, RECORDS, SNAPSHOT, Frame
from eventlog.format.record import Packed, decode_payload, encode_payload, pack
from tests.fuzz._choices import Choices


def record(data: bytes) -> None:
    """A payload is what its header says or refused; a body is a value or a ValueError."""
    choices = Choices(data)
    kind, count = choices.pick((RECORDS, SNAPSHOT)), choices.number(0, 5)
    made = choices.flag()
    payload = _made(choices, kind, count) if made else choices.rest()
    frame = Frame(0, len(payload), kind, 7, 0, 0, count, 0, FRAME_SIZE + len(payload))
    found = decode_payload(frame, payload)
    for i, one in enumerate(found or ()):
        assert one.lsn == 7 + i
        _body(one)
    if found and kind == RECORDS and all(0 < len(one.kind) <= 255 for one in found):
        items = [(one.kind, Packed(one.packed)) for one in found]
        with suppress(RefusedValueError):
            again = decode_payload(frame, encode_payload(found[0].time_ns, items))
            assert again == found


def _made(choices: Choices, kind: int, count: int) -> bytes:
    """A payload of the right shape, with bodies of any."""
    flat: list[Any] = [choices.number(0, 1 << 62)]
    for _ in range(1 if kind == SNAPSHOT else count):
        packed = msgpack.packb(choices.value()) if choices.flag() else choices.blob(200)
        flat += ["kind", packed]
    if kind == SNAPSHOT:
        flat.append(xxhash.xxh3_128_digest(flat[2]) if choices.flag() else choices.blob(16))
    return bytes(msgpack.packb(flat))


def _body(one: Record) -> None:
    shown = to_json(one.packed)
    assert json.loads(json.dumps(shown, allow_nan=False)) == shown
    try:
        body = one.body
    except ValueError:
        return
    assert repr(from_json(shown)) == repr(body)
    with suppress(RefusedValueError):  # extension types, and depths that only the reader knows
        packed = pack(body)
        assert pack(Record(1, "k", 0, packed).body) == packed
