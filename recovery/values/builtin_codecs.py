"""Defines codecs of the types that need no registration. docs/format.md has their bytes.

A codec returns a value that equals the one it was given and has its type, in every process and
every version. A number is never used again for another type.
"""

from __future__ import annotations

import os
import re
import struct
import zoneinfo
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from fractions import Fraction
from pathlib import PosixPath, PurePath, PurePosixPath, PureWindowsPath, WindowsPath
from typing import Any
from uuid import UUID

from eventlog.format.record import kind_name
from recovery.errors import UnreadableValueError
from recovery.values import numpy_codec
from recovery.values.codec import BY_CODE, BY_TYPE, LATER, Codec, collide
from recovery.values.frozen import FrozenSet

FRACTION_SIZE_MAX = 1024  # bytes of each number: making a Fraction looks for common divisors

_ZONE_KEY = re.compile(r"[A-Za-z0-9_+-]{1,32}(/[A-Za-z0-9_+-]{1,32}){0,3}")  # no dots, no ..
_MICROSECOND = timedelta(microseconds=1)
_TIME, _DATETIME, _DELTA = (
    struct.Struct(">BBBIB"),
    struct.Struct(">HBBBBBIB"),
    struct.Struct(">iii"),
)
_DATE, _OFFSET, _COMPLEX = struct.Struct(">HBB"), struct.Struct(">q"), struct.Struct(">dd")


def atom(
    code: int, encode: Callable[[Any], bytes], decode: Callable[[bytes], Any], *kinds: type
) -> None:
    """A codec between values and bytes."""
    BY_CODE[code] = Codec(code, encode, decode, atom=True)
    for kind in kinds:
        BY_TYPE[kind] = BY_CODE[code]


# -- numbers and text


def _int_bytes(value: int) -> bytes:
    return value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)


def _int(data: bytes) -> int:
    return int.from_bytes(data, "big", signed=True)


def _text_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


def _decimal_bytes(value: Decimal) -> bytes:
    return str(value).upper().encode("ascii")  # the context decides whether str() has capitals


def _fraction_bytes(value: Fraction) -> bytes:
    above, below = _int_bytes(value.numerator), _int_bytes(value.denominator)
    if max(len(above), len(below)) > FRACTION_SIZE_MAX:
        raise ValueError(f"a Fraction of numbers larger than {FRACTION_SIZE_MAX} bytes")
    return struct.pack(">H", len(above)) + above + below


def _fraction(data: bytes) -> Fraction:
    size = int.from_bytes(data[:2], "big")
    above, below = data[2 : 2 + size], data[2 + size :]
    if not 0 < len(above) <= FRACTION_SIZE_MAX or not 0 < len(below) <= FRACTION_SIZE_MAX:
        raise ValueError("no fraction")
    return Fraction(_int(above), _int(below))


atom(4, _int_bytes, _int, int)  # of more than 64 bits; others are msgpack's
atom(5, _text_bytes, _text, str)  # with lone surrogates
atom(
    10,
    lambda value: _COMPLEX.pack(value.real, value.imag),
    lambda data: complex(*_COMPLEX.unpack(data)),
    complex,
)
atom(11, _decimal_bytes, lambda data: Decimal(data.decode("ascii")), Decimal)
atom(12, _fraction_bytes, _fraction, Fraction)
atom(18, lambda value: value.bytes, lambda data: UUID(bytes=data), UUID)


# -- time


def _zone_bytes(zone: tzinfo | None) -> bytes:
    """Nothing for None; Z and a key; O and an offset in µs; N, the same, and a name."""
    match zone:
        case None:
            return b""
        case timezone():
            offset = zone.utcoffset(None)
            packed = _OFFSET.pack(offset // _MICROSECOND)
            name = zone.tzname(None)
            if name == timezone(offset).tzname(None):
                return b"O" + packed
            return b"N" + packed + _text_bytes(name)
    key = zone.key if type(zone) is zoneinfo.ZoneInfo else None
    if key is not None:
        if not _ZONE_KEY.fullmatch(key):
            raise ValueError(f"a ZoneInfo with the key {key!r:.80}")
        return b"Z" + bytes(key.encode("ascii"))
    raise TypeError(
        f"its tzinfo is a {kind_name(zone)}: datetime.timezone and zoneinfo.ZoneInfo (by key) are "
        "carried"
    )


def _zone(data: bytes) -> tzinfo | None:
    if not data:
        return None
    if data[:1] == b"Z":
        key = data[1:].decode("ascii")
        if not _ZONE_KEY.fullmatch(key):
            raise ValueError("no key of a time zone")
        try:
            # Else ZoneInfo would import a package of that name to search there.
            is_file = any(os.access(f"{one}/{key}", os.R_OK) for one in zoneinfo.TZPATH)
            if not is_file and key not in zoneinfo.available_timezones():
                raise LookupError(key)
            return zoneinfo.ZoneInfo(key)
        except (ValueError, OSError, LookupError, ImportError) as exc:
            raise UnreadableValueError(
                f"it needs the time zone {key!r}, which this system does not know",
                "Install the tzdata package.",
            ) from exc
    offset = timedelta(microseconds=_OFFSET.unpack(data[1:9])[0])
    if data[:1] == b"O" and len(data) == 9:
        return timezone(offset)
    if data[:1] == b"N":
        return timezone(offset, _text(data[9:]))
    raise ValueError("no time zone")


def _some_zone(data: bytes) -> tzinfo:
    zone = _zone(data)
    if zone is None:
        raise ValueError("no time zone")
    return zone


def _time_bytes(value: time) -> bytes:
    parts = value.hour, value.minute, value.second, value.microsecond, value.fold
    return _TIME.pack(*parts) + _zone_bytes(value.tzinfo)


def _time(data: bytes) -> time:
    hour, minute, second, microsecond, fold = _TIME.unpack(data[: _TIME.size])
    return time(hour, minute, second, microsecond, _zone(data[_TIME.size :]), fold=fold)


def _datetime_bytes(value: datetime) -> bytes:
    parts = (
        value.year,
        value.month,
        value.day,
        value.hour,
        value.minute,
        value.second,
        value.microsecond,
        value.fold,
    )
    return _DATETIME.pack(*parts) + _zone_bytes(value.tzinfo)


def _datetime(data: bytes) -> datetime:
    year, month, day, *clock, fold = _DATETIME.unpack(data[: _DATETIME.size])
    moment = datetime(year, month, day, *clock, fold=fold)
    return moment.replace(tzinfo=_zone(data[_DATETIME.size :]))


atom(
    13,
    lambda value: _DATE.pack(value.year, value.month, value.day),
    lambda data: date(*_DATE.unpack(data)),
    date,
)
atom(14, _time_bytes, _time, time)
atom(15, _datetime_bytes, _datetime, datetime)
atom(
    16,
    lambda value: _DELTA.pack(value.days, value.seconds, value.microseconds),
    lambda data: timedelta(*_DELTA.unpack(data)),
    timedelta,
)
atom(17, _zone_bytes, _some_zone, timezone, zoneinfo.ZoneInfo)


# -- paths


_PATHS = PurePosixPath, PureWindowsPath, PosixPath, WindowsPath  # never in another order


def _path_bytes(value: PurePath) -> bytes:
    return bytes((_PATHS.index(type(value)),)) + _text_bytes(str(value))


def _path(data: bytes) -> PurePath:
    kind = _PATHS[data[0]]
    try:
        return kind(_text(data[1:]))
    except NotImplementedError as exc:
        raise UnreadableValueError(
            f"it is a {kind.__name__}, which this system has not",
            "Resume the run on the system that it began on; record pure paths to move it.",
        ) from exc


atom(19, _path_bytes, _path, *_PATHS)


# -- arrays


def _arrays() -> None:
    BY_TYPE.update(dict.fromkeys(numpy_codec.types(), numpy_codec.CODEC))


BY_CODE[21], LATER["numpy"] = numpy_codec.CODEC, _arrays


# -- what holds other values, and what can be changed in place


def _elements(parts: Any) -> list[Any]:
    if not isinstance(parts, list):
        raise ValueError("no list of elements")
    return parts


def _set(parts: Any) -> set[Any]:
    if collide(_elements(parts)):
        raise ValueError("elements that collide on purpose")
    made = set(parts)
    if len(made) < len(parts):
        raise ValueError("a set with an element twice")
    return made


BY_TYPE[bytearray] = BY_CODE[6] = Codec(6, bytes, bytearray, atom=True, freeze=None)
BY_TYPE[tuple] = BY_CODE[7] = Codec(7, list, lambda parts: tuple(_elements(parts)))
BY_TYPE[set] = BY_CODE[8] = Codec(8, list, _set, freeze=FrozenSet, unordered=True)
BY_TYPE[FrozenSet] = BY_CODE[8]
BY_TYPE[frozenset] = BY_CODE[9] = Codec(
    9, list, lambda parts: frozenset(_set(parts)), unordered=True
)
