"""Values to msgpack and back, so that what comes back equals what went in, in value and type.

Pure. Plain values are msgpack's own; what is ours travels as msgpack extension types by number.
Nothing read from a log names anything to import or call.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgpack
import xxhash

from eventlog._errors import RefusedValueError
from eventlog._record import DEPTH_MAX, Packed, decode, find_refused, may_hold_timestamps
from recovery._frozen import FrozenDict, FrozenList

EXT_REF, EXT_MESSAGES, EXT_UNKNOWN = 1, 2, 3

# First bytes of msgpack's binary and extension types: only where one of them occurs can a value
# have slipped in that msgpack takes and gives back as another type.
_SLIPPERY = re.compile(rb"[\xc4-\xc9\xd4-\xd8]")

# Depth has a limit of our own, well below those of msgpack, which differ between its versions and
# between writing and reading: what is written inside other values must be readable there. Most
# values are too small, or hold too few lists and dicts, to be that deep; the others are read with
# so many lists around them that the reader's limit, 1024 levels, is ours.
_NOT_NESTING = bytes(set(range(256)) - {*range(0x80, 0xA0), *range(0xDC, 0xE0)})
_AROUND = b"\x91" * (1024 - DEPTH_MAX - 1)


@dataclass(frozen=True, slots=True)
class Ref:
    """A value that the log has already: record ``lsn``, and which of its values."""

    lsn: int
    index: int = 0

    def __hash__(self) -> int:
        # As a key in forged bytes: a hash of numbers could be made the same for all of them.
        return hash(b"%d %d" % (self.lsn, self.index))


@dataclass(frozen=True, slots=True)
class OutcomeUnknown:
    """What an agent receives for a call whose outcome a crash has hidden (after_crash="report").

    The call may or may not have taken effect; ``idempotency_key`` is the one that it was given.
    """

    tool: str
    idempotency_key: str

    def __str__(self) -> str:
        return (
            f"The outcome of {self.tool} is unknown: the process died while it ran. It may or may "
            f"not have taken effect (idempotency key {self.idempotency_key}). Find out before "
            "doing it again."
        )


class MessagesDigest:
    """Stands for the whole conversation where it is an argument: its length and its digest."""

    __slots__ = ("digest", "length")

    def __init__(self, length: int, digest: bytes) -> None:
        self.length, self.digest = length, digest

    def __repr__(self) -> str:
        return f"<{self.length} messages, digest {self.digest.hex()[:8]}>"


class Conversation(list[Any]):
    """A list that knows a digest of itself: what run.messages is to this module."""

    def digest(self) -> bytes:
        raise NotImplementedError


_PLAIN = frozenset({type(None), bool, int, float, str, bytes})
# What is in a conversation has been packed before, and there may be much of it.
_OURS = (Conversation, Ref, MessagesDigest, OutcomeUnknown)


def _default(value: Any) -> Any:
    match value:
        case FrozenDict():
            return dict(value)
        case FrozenList():
            return list(value)
        case Ref():
            return msgpack.ExtType(EXT_REF, msgpack.packb([value.lsn, value.index]))
        case MessagesDigest():
            packed = msgpack.packb([value.length, value.digest])
            return msgpack.ExtType(EXT_MESSAGES, packed)
        case OutcomeUnknown(tool=str(), idempotency_key=str()):
            packed = msgpack.packb([value.tool, value.idempotency_key])
            return msgpack.ExtType(EXT_UNKNOWN, packed)
        case Conversation():
            return list(value)
    raise TypeError(f"cannot carry {type(value).__name__}")


def _default_argument(value: Any) -> Any:
    if isinstance(value, Conversation):
        return _default(MessagesDigest(len(value), value.digest()))
    return _default(value)


def _ext(code: int, data: bytes) -> Any:
    parts = msgpack.unpackb(data)
    match code, parts:
        case 1, [int(lsn), int(index)]:
            return Ref(lsn, index)
        case 2, [int(length), bytes(digest)]:
            return MessagesDigest(length, digest)
        case 3, [str(tool), str(key)]:
            return OutcomeUnknown(tool, key)
    raise ValueError(f"extension type {code} is not known to this library")


def pack(value: Any, path: str) -> Packed:
    """``value`` as msgpack; RefusedValueError with the path to what cannot be carried."""
    return _pack(value, path, _default)


def pack_ref(ref: Ref) -> Packed:
    """A reference, where one stands for a value."""
    return Packed(msgpack.packb(_default(ref)))


def pack_arguments(args: tuple[Any, ...], kwargs: dict[str, Any], path: str) -> Packed:
    """Arguments as [positional, by name], run.messages among them by its digest alone."""
    named = {name: kwargs[name] for name in sorted(kwargs)}
    try:
        return _pack([list(args), named], path, _default_argument)
    except RefusedValueError as exc:
        where = exc.value_path.removeprefix(path)
        where = where.removeprefix("[1].") if where[:2] == "[1" else f"args{where[3:]}"
        raise RefusedValueError(f"{path.removesuffix('(...)')}({where})", exc.reason) from None


def _pack(value: Any, path: str, default: Callable[[Any], Any]) -> Packed:
    try:
        packed = msgpack.packb(value, strict_types=True, default=default)
    except (TypeError, ValueError, OverflowError, RecursionError) as exc:
        where, why = _refused(value, path)
        raise RefusedValueError(where, why or str(exc)) from None
    if (_SLIPPERY.search(packed) and _holds_strangers(value)) or _is_deep(packed):
        where, why = _refused(value, path)
        if why:
            raise RefusedValueError(where, why)
    return Packed(packed)


def _is_deep(packed: bytes) -> bool:
    if len(packed) <= DEPTH_MAX or len(packed.translate(None, _NOT_NESTING)) <= DEPTH_MAX:
        return False
    try:
        msgpack.unpackb(_AROUND + packed, strict_map_key=False)
    except ValueError:
        return True
    return False


def _holds_strangers(value: Any) -> bool:
    """Whether a value that msgpack took holds anything but what it gives back as it was."""
    stack = [value]
    while stack:
        part = stack.pop()
        if isinstance(part, dict):
            if not _PLAIN.issuperset(map(type, part)):
                return True
            part = part.values()
        elif type(part) is not list and type(part) is not FrozenList:
            if type(part) not in _PLAIN and not isinstance(part, _OURS):
                return True
            continue
        if not _PLAIN.issuperset(map(type, part)):
            stack.extend(part)
    return False


def _refused(value: Any, path: str) -> tuple[str, str]:
    try:
        return find_refused(_without_ours(value), path)
    except RecursionError:
        return path, f"nested deeper than {DEPTH_MAX} levels"


def _without_ours(value: Any, depth: int = 0) -> Any:
    """The same with plain dicts and lists for ours, so that what is left to refuse is foreign."""
    if depth > DEPTH_MAX:
        return value
    if type(value) is dict or isinstance(value, FrozenDict):
        return {key: _without_ours(part, depth + 1) for key, part in value.items()}
    if isinstance(value, _OURS):
        return None
    if type(value) is list or isinstance(value, FrozenList):
        return [_without_ours(part, depth + 1) for part in value]
    return value


def pack_list(parts: list[Packed]) -> Packed:
    """A list of values that are packed already."""
    return Packed(msgpack.Packer().pack_array_header(len(parts)) + b"".join(parts))


def pack_map(parts: Mapping[str, Packed | int]) -> Packed:
    """A dict of values that are packed already (and numbers)."""
    items = [msgpack.Packer().pack_map_header(len(parts))]
    for key, part in parts.items():
        items += (msgpack.packb(key), part if type(part) is Packed else msgpack.packb(part))
    return Packed(b"".join(items))


def unpack_map(packed: bytes) -> dict[str, Packed]:
    """The parts of a map with names, each still packed; ValueError when it is none."""
    reader = msgpack.Unpacker(max_buffer_size=max(len(packed), 1))
    reader.feed(packed)
    parts: dict[str, Packed] = {}
    try:
        for _ in range(reader.read_map_header()):
            at = reader.tell()
            reader.skip()  # before anything is made of it: nothing is as large as it says it is
            name, at = unpack(packed[at : reader.tell()]), reader.tell()
            if type(name) is not str:
                raise ValueError(f"a key of type {type(name).__name__}")
            reader.skip()
            parts[name] = Packed(packed[at : reader.tell()])
        if reader.tell() != len(packed):
            raise ValueError("more than one value")
    except Exception as exc:  # msgpack raises by kind of garbage
        raise ValueError(f"not a map: {type(exc).__name__}: {exc}") from None
    return parts


def unpack(packed: bytes) -> Any:
    """The value again; ValueError when it is none of ours."""
    return _unpack(packed)


def unpack_frozen(packed: bytes) -> Any:
    """The value again, of dicts and lists that cannot be changed."""
    return _unpack(packed, object_hook=FrozenDict, list_hook=FrozenList)


def _unpack(packed: bytes, **hooks: Any) -> Any:
    try:
        value = decode(packed, ext_hook=_ext, **hooks)
        # msgpack makes its own timestamps before anybody is asked.
        if may_hold_timestamps(packed) and _holds_strangers(value):
            raise ValueError("it holds what this library does not write")
        return value
    except Exception as exc:  # msgpack raises by kind of garbage
        raise ValueError(f"not a value: {type(exc).__name__}: {exc}") from None


def digest(packed: bytes) -> bytes:
    """The xxh3-128 digest of a packed value: equal values of equal types have equal digests."""
    return bytes(xxhash.xxh3_128_digest(packed))
