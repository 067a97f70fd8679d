"""Codecs of the types that need no registration. docs/format.md has their bytes.

A codec gives back a value that equals the one it was given and has its type, in every process and
for ever: a number is never used again for something else.
"""

from __future__ import annotations

import os
import re
import struct
import sys
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from functools import cache
from typing import TYPE_CHECKING, Any

from eventlog._record import kind_name
from recovery._coded import BY_CODE, BY_TYPE, LATER, LATER_BY_CODE, Codec, collide
from recovery._errors import UnreadableValueError
from recovery._frozen import FrozenSet

if TYPE_CHECKING:
    from decimal import Decimal
    from fractions import Fraction
    from pathlib import PurePath

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


def later(module: str, code: int, load: Callable[[], None]) -> None:
    """A codec of types that ``module`` brings: ``load`` imports that, and adds it."""
    LATER[module] = LATER_BY_CODE[code] = load


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
    return str(value).upper().encode("ascii")  # whether str() has capitals is the context's say


def _fraction_bytes(value: Fraction) -> bytes:
    above, below = _int_bytes(value.numerator), _int_bytes(value.denominator)
    if max(len(above), len(below)) > FRACTION_SIZE_MAX:
        raise ValueError(f"a Fraction of numbers larger than {FRACTION_SIZE_MAX} bytes")
    return struct.pack(">H", len(above)) + above + below


def _fraction_parts(data: bytes) -> tuple[int, int]:
    size = int.from_bytes(data[:2], "big")
    above, below = data[2 : 2 + size], data[2 + size :]
    if not 0 < len(above) <= FRACTION_SIZE_MAX or not 0 < len(below) <= FRACTION_SIZE_MAX:
        raise ValueError("no fraction")
    return _int(above), _int(below)


def _decimals() -> None:
    from decimal import Decimal  # noqa: PLC0415 - only where it is needed

    atom(11, _decimal_bytes, lambda data: Decimal(data.decode("ascii")), Decimal)


def _fractions() -> None:
    from fractions import Fraction  # noqa: PLC0415 - as above

    atom(12, _fraction_bytes, lambda data: Fraction(*_fraction_parts(data)), Fraction)


def _uuids() -> None:
    from uuid import UUID  # noqa: PLC0415 - as above

    atom(18, lambda value: value.bytes, lambda data: UUID(bytes=data), UUID)


atom(4, _int_bytes, _int, int)  # of more than 64 bits; others are msgpack's
atom(5, _text_bytes, _text, str)  # with lone surrogates
atom(10, lambda value: _COMPLEX.pack(value.real, value.imag),
     lambda data: complex(*_COMPLEX.unpack(data)), complex)  # fmt: skip
later("decimal", 11, _decimals)
later("fractions", 12, _fractions)
later("uuid", 18, _uuids)


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
    zoneinfo: Any = sys.modules.get("zoneinfo")  # is there, if it is one of these
    ours = zoneinfo is not None and type(zone) is zoneinfo.ZoneInfo
    key = getattr(zone, "key", None) if ours else None
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
        import zoneinfo  # noqa: PLC0415 - as above

        try:
            # Else it would import a package of that name to look there.
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
    parts = (value.year, value.month, value.day, value.hour, value.minute, value.second,
             value.microsecond, value.fold)  # fmt: skip
    return _DATETIME.pack(*parts) + _zone_bytes(value.tzinfo)


def _datetime(data: bytes) -> datetime:
    year, month, day, *clock, fold = _DATETIME.unpack(data[: _DATETIME.size])
    moment = datetime(year, month, day, *clock, fold=fold)
    return moment.replace(tzinfo=_zone(data[_DATETIME.size :]))


atom(13, lambda value: _DATE.pack(value.year, value.month, value.day),
     lambda data: date(*_DATE.unpack(data)), date)  # fmt: skip
atom(14, _time_bytes, _time, time)
atom(15, _datetime_bytes, _datetime, datetime)
atom(16, lambda value: _DELTA.pack(value.days, value.seconds, value.microseconds),
     lambda data: timedelta(*_DELTA.unpack(data)), timedelta)  # fmt: skip
atom(17, _zone_bytes, _some_zone, timezone)


def _zones() -> None:
    from zoneinfo import ZoneInfo  # noqa: PLC0415 - as above

    BY_TYPE[ZoneInfo] = BY_CODE[17]


LATER["zoneinfo"] = _zones


# -- paths


@cache
def _path_types() -> tuple[type[PurePath], ...]:
    from pathlib import (  # noqa: PLC0415 - as above
        PosixPath,
        PurePosixPath,
        PureWindowsPath,
        WindowsPath,
    )

    return PurePosixPath, PureWindowsPath, PosixPath, WindowsPath


def _path_bytes(value: PurePath) -> bytes:
    return bytes((_path_types().index(type(value)),)) + _text_bytes(str(value))


def _path(data: bytes) -> PurePath:
    kind = _path_types()[data[0]]
    try:
        return kind(_text(data[1:]))
    except NotImplementedError as exc:
        raise UnreadableValueError(
            f"it is a {kind.__name__}, which this system has not",
            "Resume the run on the system that it began on; record pure paths to move it.",
        ) from exc


later("pathlib", 19, lambda: atom(19, _path_bytes, _path, *_path_types()))


# -- arrays


def _arrays() -> None:
    from recovery import _numpy  # noqa: PLC0415 - as above

    BY_CODE[21] = _numpy.CODEC


def _array_types() -> None:
    from recovery import _numpy  # noqa: PLC0415 - as above

    BY_TYPE.update(dict.fromkeys(_numpy.types(), _numpy.CODEC))


LATER_BY_CODE[21], LATER["numpy"] = _arrays, _array_types


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
