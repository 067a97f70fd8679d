"""Values to msgpack and back, so that what comes back equals what went in, in value and type.

Pure. Plain values are msgpack's own, and take the short way: one call of msgpack. What else is
carried travels as extension types by number (see values.codec), and takes the long one.
Nothing read from a log names anything to import or call.
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

# First bytes of msgpack's binary and extension types: only where one of them occurs can a value
# have slipped in that msgpack takes and gives back as another type.
_SLIPPERY = re.compile(rb"[\xc4-\xc9\xd4-\xd8]")
_TAKEN = (bytearray, memoryview, ExtType, msgpack.Timestamp)
PACKED_NONE = Packed(b"\xc0")  # msgpack's nil
# Types of which a value holds nothing (slippery, or deep) and cannot be changed in place.
UNCHANGING = frozenset({str, bytes, int, float, bool, type(None)})
Plain = str | bytes | int | float | list[int]  # what msgpack gives back as it is

# Depth has a limit of our own, well below those of msgpack, which differ between its versions and
# between writing and reading: what is written inside other values must be readable there. Most
# values are too small, or hold too few lists and dicts, to be that deep; the others are read with
# so many lists around them that the reader's limit, 1024 levels, is ours.
_NESTING = {*range(0x80, 0xA0), *range(0xDC, 0xE0)}
_NOT_NESTING = bytes(set(range(256)) - _NESTING)
# Neither nesting nor slippery: most of any text. To leave them out first is five times as fast as
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
    """What stands for a value that msgpack does not take; TypeError sends it the long way."""
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
    """The document holds what only the long way reads."""


def pack(value: Any, path: str) -> Packed:
    """``value`` as msgpack; RefusedValueError with the path to what cannot be carried."""
    return _pack(value, path, _packers, _default)


def pack_message(value: Any, path: str) -> Packed:
    """The same for a message, of which no part may be one that can be changed in place."""
    return _pack(value, path, _packers, _default, of_message=True)


def pack_arguments(args: tuple[Any, ...], kwargs: dict[str, Any], path: str) -> Packed:
    """Arguments as [positional, by name], run.messages among them by its digest alone."""
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
    """The bytes of values that msgpack takes as they are, to tell whether they are the same as
    before; None where others are among them. Not to be recorded: see ``may_slip``."""
    try:
        return _plain_packers.pack(values)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None


def may_slip(packed: bytes) -> bool:
    """Whether these may be the bytes of a value that msgpack gives back as one of another type."""
    return _SLIPPERY.search(packed.translate(None, _TAME)) is not None


def has_slipped(value: Any) -> bool:
    """Whether there is such a value in this one."""
    return holds(value, _TAKEN)


def _laid_out(value: Any, path: str, layout: Layout) -> Packed:
    packed = Packed(layout.pack(value, path))
    if layout.checked:
        # Codecs of the user's have written this. It must be readable once it is recorded, and its
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
    except (ValueError, OverflowError):  # one that msgpack does not take by itself
        return b"".join(pack(key, key) + pack(value, key) for key, value in values.items())


def unpack_map(packed: bytes) -> dict[str, Packed]:
    """The parts of a map with names, each still packed; ValueError when it is none."""
    reader = msgpack.Unpacker(max_buffer_size=max(len(packed), 1))
    reader.feed(packed)
    parts: dict[str, Packed] = {}
    try:
        for _ in range(reader.read_map_header()):
            at = reader.tell()
            reader.skip()  # before anything is made of it: nothing is as large as it says it is
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
    """The elements of a list, each still packed; ValueError when it is none."""
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
    """The value again; ValueError when it is none of ours, UnreadableValueError when it is of a
    type that is not registered in this process."""
    return _unpack(packed, False)


def unpack_frozen(packed: bytes) -> Any:
    """The value again, of parts that cannot be changed."""
    return _unpack(packed, True, object_hook=FrozenDict, list_hook=FrozenList)


def _unpack(packed: bytes, frozen: bool, **hooks: Any) -> Any:
    try:
        value = decode_document(packed, ext_hook=_ext, **hooks)
        # msgpack makes its own timestamps before anybody is asked.
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
