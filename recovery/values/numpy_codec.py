"""Defines codecs of numpy's scalars and arrays; imports numpy only when such a value occurs.

An array's data are a document [dtype, shape, bytes in C order]; a scalar's shape is None. The data
are checked first: dtype and shape must agree with the number of bytes.
"""

from __future__ import annotations

import math
import re
from typing import Any

import msgpack

from eventlog.format.record import decode as decode_document
from recovery.errors import UnreadableValueError
from recovery.values.codec import Codec

DIMENSIONS_MAX = 32  # of numpy 1; 64 in numpy 2
# Booleans, integers, floats of 16 to 64 bits, complex numbers of these, times, bytes and text.
_DTYPE = re.compile(
    r"[<>|](b1|[iu][1248]|f[248]|c8|c16|[SU][1-9]\d{0,8}|[mM]8(\[\d{0,9}[a-zA-Z]{1,7}\])?)"
)


def _numpy() -> Any:
    try:
        import numpy  # noqa: PLC0415 - only where it is needed
    except ImportError as exc:
        raise UnreadableValueError(
            "it is a value of numpy, which is not installed here", "Install numpy."
        ) from exc
    return numpy


def _encode(value: Any) -> bytes:
    np = _numpy()
    if type(value) in (np.str_, np.bytes_):  # as an array, it would lose zeros at its end
        raw = str.encode(value, "utf-8", "surrogatepass") if type(value) is np.str_ else value[:]
        return bytes(msgpack.packb([value.dtype.str[1], None, raw]))
    dtype = value.dtype.str
    if not _DTYPE.fullmatch(dtype) or value.dtype.hasobject:
        raise TypeError(
            f"a numpy value of dtype {value.dtype}: numbers, booleans, times, and bytes and text "
            "of fixed size are carried"
        )
    if isinstance(value, np.generic) and np.dtype(dtype).type is not type(value):
        raise TypeError(f"a numpy.{type(value).__name__}, which is not what {dtype} is elsewhere")
    shape = list(value.shape) if isinstance(value, np.ndarray) else None
    return bytes(msgpack.packb([dtype, shape, value.tobytes()]))


def _decode(data: bytes) -> Any:
    parts = decode_document(data)
    if type(parts) is not list or len(parts) != 3 or type(parts[0]) is not str:
        raise ValueError("no value of numpy")
    dtype, shape, raw = parts
    np = _numpy()
    if type(raw) is not bytes:
        raise ValueError("no bytes")
    if shape is None and dtype in ("U", "S"):
        return np.str_(raw.decode("utf-8", "surrogatepass")) if dtype == "U" else np.bytes_(raw)
    if not _DTYPE.fullmatch(dtype):
        raise ValueError("no dtype that is carried")
    kind = np.dtype(dtype)
    dimensions = [] if shape is None else shape
    if type(dimensions) is not list or len(dimensions) > DIMENSIONS_MAX:
        raise ValueError("no shape")
    if not all(type(size) is int and 0 <= size < 1 << 48 for size in dimensions):
        raise ValueError("no shape")
    if kind.str != dtype or math.prod(dimensions) * kind.itemsize != len(raw):
        raise ValueError("bytes of another size than dtype and shape ask for")
    flat = np.frombuffer(raw, kind) if raw else np.empty(0, kind)
    _check(np, kind, raw)
    array = flat.reshape(dimensions).copy()
    return array[()] if shape is None else array


def _check(np: Any, kind: Any, raw: bytes) -> None:
    """Check what numpy trusts: a boolean is 0 or 1, a character is valid."""
    if kind.kind == "b" and raw.translate(None, b"\x00\x01"):
        raise ValueError("no booleans")
    if kind.kind == "U" and raw and np.frombuffer(raw, kind.str[0] + "u4").max() > 0x10FFFF:
        raise ValueError("no characters")


def _freeze(value: Any) -> Any:
    if type(value) is _numpy().ndarray:
        value.setflags(write=False)
    return value


def types() -> set[type]:
    """The types that the codec is for."""
    np = _numpy()
    return {np.ndarray, *np.sctypeDict.values()} - {np.object_, np.void}


CODEC = Codec(21, _encode, _decode, atom=True, freeze=_freeze)
