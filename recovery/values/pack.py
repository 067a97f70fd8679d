"""Packs values as msgpack and unpacks them; the result equals the value, in type too. Pure.

Plain values are msgpack's own types, and take the fast path: one call of msgpack. Other values are
extension types by number (see values.codec), and take the slow path. Nothing read from a log names
anything to import or call.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgpack

from eventlog.errors import RefusedValueError
from eventlog.format.record import DEPTH_MAX, Packed, Packers, check_extent, may_hold_timestamps
from eventlog.format.record import decode as decode_document
from recovery.errors import UnreadableValueError
from recovery.values.codec import BY_CODE, BY_TYPE, Codec, ExtType, Layout, codec_of, holds, revive
from recovery.values.frozen import FrozenDict, FrozenList, RecordedDict
from recovery.values.types import Conversation, MessagesDigest, OutcomeUnknown, Redacted, Ref

EXT_REF, EXT_MESSAGES, EXT_UNKNOWN, EXT_REDACTED, EXT_PARTS = 1, 2, 3, 22, 23

# First bytes of msgpack's binary and extension types. Only where one of them occurs can a value be
# among them that msgpack accepts and returns as another type.
_SLIPPERY = re.compile(rb"[\xc4-\xc9\xd4-\xd8]")
_TAKEN = (bytearray, memoryview, ExtType, msgpack.Timestamp)
PACKED_NONE = Packed(b"\xc0")  # msgpack's nil
# Types whose values contain no other values and cannot be changed in place.
UNCHANGING = frozenset({str, bytes, int, float, bool, type(None)})
Plain = str | bytes | int | float | list[int]  # returned unchanged by msgpack

# The limit of depth is our own. msgpack's limits differ between versions, and between writing and
# reading, and a value inside others must be readable there. Most values are too small, or contain
# too few lists and dicts, to be that deep. The others are read inside so many lists that the
# reader's limit, 1024 levels, equals ours.
_NESTING = {*range(0x80, 0xA0), *range(0xDC, 0xE0)}
_NOT_NESTING = bytes(set(range(256)) - _NESTING)
# Bytes that neither nest nor slip: most of any text. To remove them first is five times as fast as
# to search for the others.
_TAME = bytes(set(range(256)) - _NESTING - {*range(0xC4, 0xCA), *range(0xD4, 0xD9)})
_AROUND = b"\x91" * (1024 - DEPTH_MAX - 1)


def _ours(code: int, kind: type, **fields: type) -> None:
    """A codec for a type of this library, by its fields and their types."""
    names, types = list(fields), tuple(fields.values())

    def encode(value: Any) -> bytes:
        parts = [getattr(value, name) for name in names]
        if tuple(map(type, parts)) != types:
            raise TypeError(f"a {kind.__name__} of {parts}")
        return bytes(msgpack.packb(parts))

    def decode(data: bytes) -> Any:
        parts = decode_document(data)
        if type(parts) is not list or tuple(map(type, parts)) != types:
            raise ValueError(f"no {kind.__name__}")
        return kind(**dict(zip(names, parts, strict=True)))

    BY_TYPE[kind] = BY_CODE[code] = Codec(code, encode, decode, atom=True)


_ours(EXT_REF, Ref, lsn=int, index=int)
_ours(EXT_MESSAGES, MessagesDigest, length=int, digest=bytes)
_ours(EXT_UNKNOWN, OutcomeUnknown, tool=str, idempotency_key=str)
_ours(EXT_REDACTED, Redacted, digest=bytes)


def _default(value: Any) -> Any:
    """The form of a value that msgpack does not accept; TypeError sends it to the slow path."""
    codec = codec_of(type(value))
    if codec is not None:
        if codec.atom:
            return ExtType(codec.code, codec.encode(value))
        raise TypeError
    match value:
        case RecordedDict():
            return dict(value)
        case FrozenList() | Conversation():
            return list(value)
    raise TypeError


def _default_argument(value: Any) -> Any:
    if isinstance(value, Conversation):
        return _default(MessagesDigest(len(value), value.digest()))
    return _default(value)


_packers, _argument_packers, _plain_packers = (
    Packers(strict_types=True, default=_default),
    Packers(strict_types=True, default=_default_argument),
    Packers(strict_types=True),
)


def _ext(code: int, data: bytes) -> Any:
    if code > EXT_UNKNOWN and code != EXT_PARTS:
        raise _CodedError
    return BY_CODE[code].decode(data)


class _CodedError(Exception):
    """The document contains values that only the slow path reads."""


def pack(value: Any, path: str) -> Packed:
    """``value`` as msgpack; RefusedValueError with the path to what cannot be carried."""
    return _pack(value, path, _packers, _default)


def pack_message(value: Any, path: str) -> Packed:
    """The same for a message, no part of which may be mutable."""
    return _pack(value, path, _packers, _default, of_message=True)


def pack_arguments(args: tuple[Any, ...], kwargs: dict[str, Any], path: str) -> Packed:
    """Arguments as [positional, by name]; run.messages is replaced by its digest."""
    named = {name: kwargs[name] for name in sorted(kwargs)} if kwargs else kwargs
    try:
        return _pack([list(args), named], path, _argument_packers, _default_argument)
    except RefusedValueError as exc:
        where = exc.value_path.removeprefix(path)
        where = where.removeprefix("[1].") if where[:2] == "[1" else f"args{where[3:]}"
        raise RefusedValueError(f"{path.removesuffix('(...)')}({where})", exc.reason) from None


def _pack(
    value: Any, path: str, packers: Packers, default: Callable[[Any], Any], of_message: bool = False
) -> Packed:
    try:
        packed = packers.pack(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return _laid_out(value, path, Layout(default, of_message))
    if type(value) in UNCHANGING:
        return Packed(packed)
    telling = packed.translate(None, _TAME)
    if (_SLIPPERY.search(telling) and holds(value, _TAKEN)) or _is_deep(packed, telling):
        return _laid_out(value, path, Layout(default, of_message))
    return Packed(packed)


def packed_plain(values: list[Any]) -> bytes | None:
    """The bytes of values that msgpack accepts, to see whether they are the same as before; None
    where others are among them. Not to be recorded: see ``may_slip``."""
    try:
        return _plain_packers.pack(values)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None


def may_slip(packed: bytes) -> bool:
    """Whether these may be the bytes of a value that msgpack returns as another type."""
    return _SLIPPERY.search(packed.translate(None, _TAME)) is not None


def has_slipped(value: Any) -> bool:
    """Whether there is such a value in this one."""
    return holds(value, _TAKEN)


def _laid_out(value: Any, path: str, layout: Layout) -> Packed:
    packed = Packed(layout.pack(value, path))
    if layout.checked:
        # The user's codecs have written this. It must be readable once it is recorded, and its
        # digest must be the same when it is written again.
        try:
            again = layout.again(unpack(packed))
        except (UnreadableValueError, ValueError) as exc:
            raise RefusedValueError(path, f"it could not be read again: {exc}") from exc
        if again != packed:
            raise RefusedValueError(
                path,
                "encode= gives something else for what decode= made of what it gave, and a "
                "digest would tell them apart",
            )
    return packed


def _is_deep(packed: bytes, telling: bytes) -> bool:
    if len(telling) <= DEPTH_MAX or len(telling.translate(None, _NOT_NESTING)) <= DEPTH_MAX:
        return False
    try:
        check_extent(_AROUND + packed)
    except ValueError:
        return True
    return False


def pack_list(parts: list[Packed]) -> Packed:
    """A list of values that are packed already."""
    return Packed(msgpack.Packer().pack_array_header(len(parts)) + b"".join(parts))


def pack_map(parts: Mapping[str, Packed], plain: Mapping[str, Plain] | None = None) -> Packed:
    """A dict of plain values, and then of values that are packed already."""
    count = len(parts) + (0 if plain is None else len(plain))
    items = [msgpack.Packer().pack_map_header(count)]
    if plain:
        items.append(pack_plain(plain))
    for key, part in parts.items():
        items += (msgpack.packb(key), part)
    return Packed(b"".join(items))


def pack_plain(values: Mapping[str, Plain]) -> bytes:
    """Keys and values of a dict of fewer than 16, without the byte that says how many."""
    try:
        return bytes(msgpack.Packer(strict_types=True).pack(values)[1:])
    except (ValueError, OverflowError):  # a value that msgpack does not accept by itself
        return b"".join(pack(key, key) + pack(value, key) for key, value in values.items())


def unpack_map(packed: bytes) -> dict[str, Packed]:
    """The parts of a map by name, each still packed; ValueError when it is not a map."""
    reader = msgpack.Unpacker(max_buffer_size=max(len(packed), 1))
    reader.feed(packed)
    parts: dict[str, Packed] = {}
    try:
        for _ in range(reader.read_map_header()):
            at = reader.tell()
            reader.skip()  # before it is decoded: so no length in it is larger than its bytes
            key, at = packed[at : reader.tell()], reader.tell()
            short = key[0] & 0xE0 == 0xA0  # a str of up to 31 bytes, as names are
            name = key[1:].decode() if short else unpack(key)
            if type(name) is not str:
                raise ValueError(f"a key of type {type(name).__name__}")
            reader.skip()
            parts[name] = Packed(packed[at : reader.tell()])
        if reader.tell() != len(packed):
            raise ValueError("more than one value")
    except Exception as exc:  # msgpack raises by kind of garbage
        raise ValueError(f"not a map: {type(exc).__name__}: {exc}") from None
    return parts


def split_list(packed: bytes) -> list[Packed]:
    """The elements of a list, each still packed; ValueError when it is not a list."""
    reader = msgpack.Unpacker(max_buffer_size=max(len(packed), 1))
    reader.feed(packed)
    parts: list[Packed] = []
    try:
        for _ in range(reader.read_array_header()):
            at = reader.tell()
            reader.skip()
            parts.append(Packed(packed[at : reader.tell()]))
        if reader.tell() != len(packed):
            raise ValueError("more than one value")
    except Exception as exc:  # msgpack raises by kind of garbage
        raise ValueError(f"not a list: {type(exc).__name__}: {exc}") from None
    return parts


def unpack(packed: bytes) -> Any:
    """The value; ValueError when this library did not write it, UnreadableValueError when its type
    is not registered in this process."""
    return _unpack(packed, False)


def unpack_frozen(packed: bytes) -> Any:
    """The value, made of immutable parts."""
    return _unpack(packed, True, object_hook=FrozenDict, list_hook=FrozenList)


def _unpack(packed: bytes, frozen: bool, **hooks: Any) -> Any:
    try:
        value = decode_document(packed, ext_hook=_ext, **hooks)
        # msgpack decodes its own timestamps before it calls ext_hook.
        if may_hold_timestamps(packed) and holds(value, _TAKEN):
            raise ValueError("it holds what this library does not write")
        return value
    except _CodedError:
        pass
    except Exception as exc:  # msgpack raises by kind of garbage
        raise ValueError(f"not a value: {type(exc).__name__}: {exc}") from None
    try:
        return revive(packed, frozen)
    except UnreadableValueError:
        raise
    except Exception as exc:  # as above, and codecs as well
        raise ValueError(f"not a value: {type(exc).__name__}: {exc}") from None
