"""Encodes records as payloads, and decodes them. Pure.

The payload of a frame is one msgpack array ``[time_ns, kind, body, kind, body, ...]``. Each body is
a msgpack document of its own, stored as bytes, so a reader decodes only the bodies it needs. A
snapshot's payload is ``[time_ns, kind, body, digest]``, with digest = xxh3-128 of body.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgpack
import xxhash

from eventlog.errors import RefusedValueError
from eventlog.format.frame import PAYLOAD_SIZE_MAX, SNAPSHOT, Frame

KIND_SIZE_MAX = 255  # a kind is a word, not a document

_INT_MIN, _INT_MAX = -(1 << 63), (1 << 64) - 1
# Deeper documents are refused. msgpack's packer stops at 511, its reader at 1024.
DEPTH_MAX = 500

# A smaller document cannot claim enough elements to exhaust memory.
_SMALL = 4096
_TIMESTAMPS = (b"\xd6\xff", b"\xd7\xff", b"\xc7\x0c\xff")  # how they begin
_LOOKS_MAX = 16

# What a packer takes. The second line is read back as bytes, or as what msgpack makes of it.
_TAKEN = (
    *(type(None), bool, int, float, str, bytes),
    *(bytearray, memoryview, msgpack.ExtType, msgpack.Timestamp),
)

_UNDECODED = object()


_SIZE_KEPT = 256 << 10  # initial size of a packer's buffer, which never shrinks


class Packers:
    """Packs values as ``msgpack.packb`` does with these options, in half the time.

    Keeps idle packers for reuse. Packers are not thread-safe, and a finalizer that packs may
    interrupt a thread that packs. Taking from a list and putting back are atomic. So the list grows
    to the number of threads that packed at once.
    """

    __slots__ = ("_free", "_options")

    def __init__(self, **options: Any) -> None:
        self._free: list[Callable[[Any], bytes]] = []
        self._options = options

    def pack(self, value: Any) -> bytes:
        """The document. Raises what msgpack raises."""
        try:
            pack = self._free.pop()
        except IndexError:
            pack = msgpack.Packer(**self._options).pack
        packed = pack(value)
        if len(packed) < _SIZE_KEPT:
            self._free.append(pack)
        return packed


_pack_body, _pack_payload = Packers(strict_types=True).pack, Packers().pack


class Packed(bytes):
    """A body that is a msgpack document already; ``append`` writes it unchanged."""

    __slots__ = ()


class Record:
    """One event in the log: ``lsn``, ``kind``, ``time_ns`` (wall clock, ns since 1970), ``body``.

    ``body`` is decoded from ``packed`` when it is first touched. Immutable by convention: the
    decoded body belongs to the reader.
    """

    __slots__ = ("_body", "kind", "lsn", "packed", "time_ns")

    def __init__(self, lsn: int, kind: str, time_ns: int, packed: bytes) -> None:
        self.lsn, self.kind, self.time_ns, self.packed = lsn, kind, time_ns, packed
        self._body: Any = _UNDECODED

    @property
    def body(self) -> Any:
        """The body; raises ValueError when it is not a msgpack document (see DamagedError)."""
        body = self._body
        if body is _UNDECODED:
            body = self._body = unpack(self.packed)
        return body

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Record) and (
            (self.lsn, self.kind, self.time_ns, self.packed)
            == (other.lsn, other.kind, other.time_ns, other.packed)
        )

    def __hash__(self) -> int:
        return hash((self.lsn, self.packed))

    def __repr__(self) -> str:
        return f"Record(lsn={self.lsn}, kind={self.kind!r}, {len(self.packed)} bytes)"


class Snapshot(Record):
    """A record that replaces replay of the records before it. Its digest has been verified."""

    __slots__ = ()


def pack(value: Any, path: str = "body") -> bytes:
    """``value`` as one msgpack document.

    Carries None, bool, int (64 bit), float, str, bytes, list, and dict with scalar keys, each of
    exactly that type. Raises RefusedValueError with the path to any other value. A bytearray or
    memoryview is written, and read back as bytes.
    """
    if type(value) is Packed:
        return value
    try:
        return _pack_body(value)
    except _REFUSALS as exc:
        raise _refused(value, path, exc) from None


_REFUSALS = (TypeError, ValueError, OverflowError, RecursionError, BufferError)  # by packers


def _refused(value: Any, path: str, exc: Exception) -> RefusedValueError:
    where, reason = find_refused(value, path)
    return RefusedValueError(where, reason or str(exc))


def unpack(packed: bytes) -> Any:
    """The value of one msgpack document; ValueError when it is not one. Runs no code from it."""
    try:
        if len(packed) <= _SMALL:  # as in decode
            return msgpack.unpackb(packed, strict_map_key=False)
        return decode(packed)
    except Exception as exc:  # msgpack raises ValueError, TypeError and its own, by kind of garbage
        raise ValueError(f"not a msgpack document: {type(exc).__name__}: {exc}") from None


def decode(
    packed: bytes, object_hook: Callable[[dict[Any, Any]], Any] | None = None, **hooks: Any
) -> Any:
    """As ``msgpack.unpackb``, and in time and memory linear in ``packed`` whatever it holds.

    Raises what msgpack raises, by kind of garbage.
    """
    if len(packed) > _SMALL:
        if may_hold_timestamps(packed):
            check_extent(packed)

            def checked(pairs: list[tuple[Any, Any]]) -> Any:
                # Hashes of str, bytes and extension values are random, and those of numbers spread.
                # The hash of a timestamp can be chosen, so forged keys may all have the same one.
                if any(isinstance(key, msgpack.Timestamp) for key, _ in pairs):
                    raise ValueError("a map with timestamps as keys")
                return dict(pairs) if object_hook is None else object_hook(dict(pairs))

            return msgpack.unpackb(packed, strict_map_key=False, object_pairs_hook=checked, **hooks)
        try:  # an array that fits a small document needs no check
            return msgpack.unpackb(
                packed, strict_map_key=False, object_hook=object_hook, max_array_len=_SMALL, **hooks
            )
        except ValueError:
            check_extent(packed)
    return msgpack.unpackb(packed, strict_map_key=False, object_hook=object_hook, **hooks)


def may_hold_timestamps(packed: bytes) -> bool:
    """Whether msgpack may decode some of these bytes as a timestamp; never true for UTF-8."""
    # All three beginnings share one byte, which is fastest to search for: no text contains it, and
    # in a length it appears once. Only bytes with many of them are searched for the beginnings.
    at = packed.find(b"\xff")
    for _ in range(_LOOKS_MAX):
        if at < 0:
            return False
        if packed[max(0, at - 2) : at + 1].endswith(_TIMESTAMPS):
            return True
        at = packed.find(b"\xff", at + 1)
    return any(packed.find(start) >= 0 for start in _TIMESTAMPS)


def check_extent(packed: bytes) -> None:
    """Raise, before anything is allocated, for a document that claims more than it holds.

    msgpack allocates an array when it reads its length. A document of 64 MiB with a thousand nested
    arrays that each claim its whole length would ask for half a terabyte.
    """
    unpacker = msgpack.Unpacker(max_buffer_size=len(packed))
    unpacker.feed(packed)
    unpacker.skip()


def find_refused(value: Any, path: str) -> tuple[str, str]:
    """The first part of ``value`` that msgpack cannot hold: its path, and the reason, or ""."""
    todo = [(path, value, 0)]  # not recursive: the caller's stack may be deep already
    while todo:
        where, part, depth = todo.pop()
        why = _refusal(part, depth)
        if why:
            return where, why
        if type(part) is list:
            todo += [(f"{where}[{i}]", v, depth + 1) for i, v in enumerate(part)][::-1]
        elif type(part) is dict:
            for key, v in reversed(part.items()):
                at = f"{where}.{key}" if type(key) is str else f"{where}[{key!r}]"
                if type(key) not in _TAKEN:
                    return at, f"a key of type {kind_name(key)}"
                todo += [(at, v, depth + 1), (f"{where}[{key!r}]", key, depth)]
    return path, ""


def _refusal(part: Any, depth: int) -> str:
    kind = type(part)
    if kind is int and not _INT_MIN <= part <= _INT_MAX:
        return "an int of more than 64 bits"
    if kind is str and any("\ud800" <= c <= "\udfff" for c in part):
        return "a str with lone surrogates (not encodable as UTF-8)"
    if kind in (list, dict):
        return f"nested deeper than {DEPTH_MAX} levels" if depth > DEPTH_MAX else ""
    return "" if kind in _TAKEN else f"{kind_name(part)} cannot be carried"


def kind_name(value: object) -> str:
    """The name of the value's type as a user would write it."""
    kind = type(value)
    if kind.__module__ in ("builtins", "__main__"):
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


def encode_payload(time_ns: int, items: Sequence[tuple[str, Any]]) -> bytes:
    """The payload of a frame of records, of kinds and bodies. Raises as ``pack``."""
    flat, packed = [time_ns], b""  # type: list[int | str | bytes], bytes
    for kind, body in items:
        # Nearly all records pass here; the others are checked closely.
        if type(kind) is not str or not 0 < len(kind) <= KIND_SIZE_MAX or not kind.isascii():
            _check_kind(kind, _path(items, flat) + "kind")
        try:
            packed = body if type(body) is Packed else _pack_body(body)
        except _REFUSALS as exc:
            raise _refused(body, _path(items, flat) + "body", exc) from None
        flat += (kind, packed)
    payload = _pack_payload(flat)
    if len(payload) > PAYLOAD_SIZE_MAX:
        raise _too_large(payload)
    return payload


def _path(items: Sequence[object], flat: list[int | str | bytes]) -> str:
    return "" if len(items) == 1 else f"[{len(flat) // 2}]."


def _check_kind(kind: str, where: str) -> None:
    if type(kind) is not str:
        raise RefusedValueError(where, f"a str, not {kind_name(kind)}")
    if not kind or len(kind) > KIND_SIZE_MAX:
        raise RefusedValueError(where, f"1 to {KIND_SIZE_MAX} characters, not {len(kind)}")
    if not kind.isascii() and _refusal(kind, 0):
        raise RefusedValueError(where, _refusal(kind, 0))


def encode_snapshot(time_ns: int, kind: str, packed: bytes) -> bytes:
    """The payload of a snapshot's frame."""
    payload = _pack_payload([time_ns, kind, packed, xxhash.xxh3_128_digest(packed)])
    if len(payload) > PAYLOAD_SIZE_MAX:
        raise _too_large(payload)
    return payload


def _too_large(payload: bytes) -> RefusedValueError:
    return RefusedValueError(
        "body",
        f"{len(payload)} bytes; one append holds at most {PAYLOAD_SIZE_MAX} bytes. "
        "Keep the value elsewhere and record a reference to it.",
    )


def decode_payload(frame: Frame, payload: bytes) -> list[Record] | None:
    """The records of a frame whose CRC matches; None when they do not match its header."""
    if frame.kind == SNAPSHOT:
        return _decode_snapshot(frame, payload)
    if frame.count != 1:
        return _decode_batch(frame, payload)
    try:
        time_ns, kind, body = msgpack.unpackb(payload, max_array_len=3, max_map_len=0)
    except Exception:  # any error of msgpack: this library did not write that payload
        return None
    if type(time_ns) is not int or type(kind) is not str or type(body) is not bytes:
        return None
    return [Record(frame.lsn, kind, time_ns, body)] if 0 < len(kind) <= KIND_SIZE_MAX else None


def _decode_batch(frame: Frame, payload: bytes) -> list[Record] | None:
    try:
        flat = decode(payload)
    except Exception:  # as above
        return None
    if type(flat) is not list or len(flat) != 1 + 2 * frame.count or not frame.count:
        return None
    time_ns, kinds, bodies = flat[0], flat[1::2], flat[2::2]
    if type(time_ns) is not int or {type(k) for k in kinds} != {str}:
        return None
    if {type(b) for b in bodies} != {bytes} or not all(0 < len(k) <= KIND_SIZE_MAX for k in kinds):
        return None
    return [
        Record(frame.lsn + i, kind, time_ns, body)
        for i, (kind, body) in enumerate(zip(kinds, bodies, strict=True))
    ]


def _decode_snapshot(frame: Frame, payload: bytes) -> list[Record] | None:
    try:
        time_ns, kind, packed, digest = msgpack.unpackb(payload, max_array_len=4, max_map_len=0)
    except Exception:  # as above
        return None
    if [type(part) for part in (time_ns, kind, packed, digest)] != [int, str, bytes, bytes]:
        return None
    if frame.count != 1 or not 0 < len(kind) <= KIND_SIZE_MAX:
        return None
    if digest != xxhash.xxh3_128_digest(packed):
        return None
    return [Snapshot(frame.lsn, kind, time_ns, packed)]
