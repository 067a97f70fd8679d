"""Any bytes as the data of extension values, inside one another and as keys."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgpack

from eventlog import RefusedValueError
from recovery import register
from recovery.errors import UnreadableValueError
from recovery.values.codec import BY_NAME
from recovery.values.pack import pack, unpack, unpack_frozen
from tests.fuzz._choices import Choices

NAME = "tests.fuzz.Thing"
DEPTH_MAX = 4
DTYPES = ("<f8", ">i4", "|b1", "<U2", "|S3", "<M8[ns]", "<c16", "U", "S", "|O")


@dataclass(frozen=True)
class Thing:
    a: Any = None
    b: Any = 1


def codecs(data: bytes) -> None:
    """What is read can be written, and is read the same again; else an error of ours says why."""
    if NAME not in BY_NAME:
        register(Thing, name=NAME)
    choices = Choices(data)
    packed = bytes(msgpack.packb(_part(choices, 0), strict_types=True))
    try:
        found = unpack(packed)
    except (ValueError, UnreadableValueError):
        return
    with suppress(RefusedValueError):  # deeper than is written
        again = pack(found, "value")
        assert pack(unpack(again), "value") == again == pack(unpack_frozen(packed), "value")


def _part(choices: Choices, depth: int) -> Any:
    if depth > DEPTH_MAX or choices.flag():
        return choices.value(DEPTH_MAX)
    match choices.number(0, 9):
        case 0:
            return [_part(choices, depth + 1) for _ in range(choices.number(0, 3))]
        case 1:
            return {
                _key(choices, depth + 1): _part(choices, depth + 1)
                for _ in range(choices.number(0, 3))
            }
    return _extension(choices, depth)


def _key(choices: Choices, depth: int) -> Any:
    return _extension(choices, depth) if choices.flag() else choices.number(0, 9)


def _extension(choices: Choices, depth: int) -> Any:
    code = choices.number(0, 24)
    shape = choices.number(0, 4)
    if shape == 0 or code in (4, 5, 6, 10, 11, 13, 16, 18):
        data = choices.blob(20)
    elif code == 21:
        sizes = [choices.number(0, 3) for _ in range(choices.number(0, 3))]
        parts = [choices.pick(DTYPES), sizes if choices.flag() else None, choices.blob(40)]
        data = bytes(msgpack.packb(parts))
    elif code == 20:
        name = NAME if choices.flag() else choices.pick(("os.system", "builtins.eval", ""))
        fields = {choices.pick("abc"): _part(choices, depth + 1) for _ in range(shape)}
        data = bytes(msgpack.packb([name, fields], strict_types=True))
    elif code in (14, 15, 17):
        zone = choices.pick((b"", b"O" + bytes(8), b"ZUTC", b"Z../UTC", b"N" + bytes(8) + b"x"))
        data = choices.blob(12) + zone
    else:
        inner = [_part(choices, depth + 1) for _ in range(shape)]
        data = bytes(msgpack.packb(inner, strict_types=True))
    return msgpack.ExtType(code, data)
