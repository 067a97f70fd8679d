"""Converts msgpack documents to JSON and back, without loss. Pure."""

from __future__ import annotations

import json
import math
import struct
from base64 import b64decode, b64encode
from typing import Any

import msgpack

from eventlog.format.record import check_extent, decode, unpack

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

# Nesting depth of a body as JSON. Readers stop at 256 (jq 1.5) to 1000 (Python).
JSON_DEPTH_MAX = 200

_NAN = struct.pack(">d", math.nan)


def to_json(packed: bytes) -> Json:
    """One msgpack document as JSON, without loss. Never raises.

    A value that JSON cannot hold becomes an object with one key that begins with a dollar sign:

        {"$bytes": "<base64>"}              bytes
        {"$float": "nan" | "inf" | "-inf"}  a float that is no number; a NaN of other bits than
                                            7ff8000000000000 is given by them, 16 hex digits
        {"$map": [[key, value], ...]}       a map with a key that is no string, that begins with a
                                            dollar sign, or that occurs twice
        {"$ext": [type, "<base64>"]}        a msgpack extension value, timestamps (-1) included
        {"$msgpack": "<base64>"}            a whole body that is not a msgpack document, or that
                                            nests too deep for JSON readers

    Integers have up to 64 bits: use a JSON reader that does not round beyond 2**53.
    """
    try:
        check_extent(packed)
        value = msgpack.unpackb(
            packed, strict_map_key=False, object_pairs_hook=_Pairs, ext_hook=msgpack.ExtType
        )
        return _to_json(value, 0)
    except Exception:  # garbage: msgpack raises many types, and this module its own
        return {"$msgpack": _base64(packed)}


def json_text(packed: bytes) -> str:
    """``json.dumps(to_json(packed))``, without a look at each value of most bodies.

    In the benchmark "Reading a whole log", "200 B, dump" takes a fifth less time by it.
    """
    try:
        value = decode(packed, object_pairs_hook=_plain_map, ext_hook=_Extension)
        may_be_deep = len(packed) - len(packed.translate(None, _CONTAINERS)) > JSON_DEPTH_MAX
        if not may_be_deep or not _is_deeper(value, JSON_DEPTH_MAX):
            return _ENCODER.encode(value)
    except Exception:  # anything that is not plain, garbage included
        pass
    return json.dumps(to_json(packed), allow_nan=False)


class _NotPlainError(Exception):
    pass


def _plain_map(pairs: list[tuple[Any, Any]]) -> dict[str, Any]:
    """A map that JSON can hold unchanged."""
    names = "".join([key for key, _ in pairs])  # raises TypeError for a key that is not a str
    made = dict(pairs)
    if "$" in names or len(made) < len(pairs):
        raise _NotPlainError
    return made


class _Extension:
    """An extension value. msgpack's type is a tuple, and JSON would make a list of it."""

    def __init__(self, code: int, data: bytes) -> None:
        if code < 0:
            raise _NotPlainError  # reserved by msgpack, which cannot decode it
        self.code, self.data = code, data


def _tagged(value: Any) -> Json:
    """A value that the JSON encoder cannot write, as ``to_json`` gives it."""
    if isinstance(value, _Extension):
        return {"$ext": [value.code, _base64(value.data)]}
    return _to_json(value, 0)  # bytes, timestamps


_ENCODER = json.JSONEncoder(allow_nan=False, check_circular=False, default=_tagged)
_CONTAINERS = bytes((*range(0x80, 0xA0), *range(0xDC, 0xE0)))  # how arrays and maps begin


def _is_deeper(value: Any, levels: int) -> bool:
    """Whether lists and dicts are nested deeper than so many levels."""
    layer = [value]
    for _ in range(levels + 1):
        layer = [
            part
            for one in layer
            if type(one) in (list, dict)
            for part in (one.values() if type(one) is dict else one)
        ]
        if not layer:
            return False
    return True


def from_json(value: Json) -> Any:
    """The Python value of a result of ``to_json``, with ExtType for extension values.

    Raises ValueError when it was not a msgpack document, TypeError for a list or map as a key.
    """
    if isinstance(value, list):
        return [from_json(part) for part in value]
    if not isinstance(value, dict):
        return value
    tag, inner = next(iter(value.items()), ("", None))
    if tag == "$bytes" and isinstance(inner, str):
        return b64decode(inner)
    if tag == "$float" and isinstance(inner, str):
        return struct.unpack(">d", bytes.fromhex(inner))[0] if len(inner) == 16 else float(inner)
    if tag == "$map" and isinstance(inner, list):
        return {from_json(pair[0]): from_json(pair[1]) for pair in inner if isinstance(pair, list)}
    if tag == "$ext" and isinstance(inner, list):
        code, data = inner
        raw = b64decode(str(data))
        return msgpack.Timestamp.from_bytes(raw) if code == -1 else msgpack.ExtType(code, raw)
    if tag == "$msgpack" and isinstance(inner, str):
        return unpack(b64decode(inner))
    return {key: from_json(part) for key, part in value.items()}


class _Pairs(list[tuple[Any, Any]]):
    """A map as it was written: order, keys of any type, keys that occur twice."""


class _TooDeepError(Exception):
    pass


_PLAIN = frozenset({str, int, bool, type(None)})  # JSON holds them unchanged


def _to_json(value: Any, depth: int) -> Json:
    if depth > JSON_DEPTH_MAX:
        raise _TooDeepError
    kind = type(value)
    if kind in _PLAIN:
        return value  # type: ignore[no-any-return]
    if kind is _Pairs:
        return _map_to_json(value, depth)
    if kind is list:
        return [_to_json(part, depth + 1) for part in value]
    if kind is float:
        if math.isfinite(value):
            return value  # type: ignore[no-any-return]
        bits = struct.pack(">d", value)
        return {"$float": bits.hex() if value != value and bits != _NAN else str(value)}
    if kind is bytes:
        return {"$bytes": _base64(value)}
    if kind is msgpack.Timestamp:
        return {"$ext": [-1, _base64(value.to_bytes())]}
    assert kind is msgpack.ExtType  # msgpack has no other
    return {"$ext": [value.code, _base64(value.data)]}


def _map_to_json(pairs: _Pairs, depth: int) -> Json:
    keys = {key for key, _ in pairs if type(key) is str and key[:1] != "$"}
    if len(keys) == len(pairs):
        return {key: _to_json(part, depth + 1) for key, part in pairs}
    listed: list[Json] = [
        [_to_json(key, depth + 3), _to_json(part, depth + 3)] for key, part in pairs
    ]
    return {"$map": listed}


def _base64(data: bytes) -> str:
    return b64encode(data).decode("ascii")
