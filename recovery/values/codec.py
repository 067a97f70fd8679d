"""Carries values that msgpack has no type for, as extension values. Pure.

A value of such a type is in a document as its codec's number and data. The data of an *atom* (a
datetime, a UUID) are bytes. The data of any other value are a document: its parts (the elements of
a tuple, the fields of a dataclass), which may contain extension values.

Neither writing nor reading is recursive: a recorded value must be readable wherever a run is
resumed, however deep the stack is.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import is_dataclass
from typing import Any, NoReturn

import msgpack

from eventlog.errors import RefusedValueError
from eventlog.format.record import DEPTH_MAX, decode, kind_name, may_hold_timestamps
from eventlog.light_dataclass import light_dataclass
from recovery.errors import UnreadableValueError
from recovery.text import shorten
from recovery.values.frozen import FrozenDict, FrozenList

ExtType = msgpack.ExtType

REGISTERED = 20  # the one number for all types that are registered by name

LEVELS_MAX = 64  # values with codecs inside one another: each level is read once more
ALIKE_MAX = 64  # keys, or elements of a set, with one hash: finding one of them is linear
_READ_DEPTH_MAX = DEPTH_MAX + 24  # events and checkpoints add levels around values
_INT_MIN, _INT_MAX = -(1 << 63), (1 << 64) - 1
_SIMPLE = frozenset({type(None), bool, float, bytes})  # always carried
_SCALARS = _SIMPLE | {int, str}


def as_it_is(value: Any) -> Any:
    """The ``freeze`` of immutable values: returns the value."""
    return value


@light_dataclass
class Codec:
    """How values of one type are encoded.

    ``encode`` returns bytes for an ``atom``, else a value whose parts have codecs; ``decode``
    reverses it. ``freeze`` makes an immutable copy, for messages; None: there is none. ``name``: of
    a registered ``kind``. ``checked``: encode and decode are the user's, so their output is read
    back before it is recorded.
    """

    code: int
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]
    atom: bool = False
    freeze: Callable[[Any], Any] | None = as_it_is
    unordered: bool = False
    kind: type | None = None
    name: str = ""
    checked: bool = False
    declared: bool = False  # known because the user's code names the type, not registered


# Filled by builtin_codecs and register; written under the lock of register, read without.
BY_TYPE: dict[type, Codec] = {}
BY_CODE: dict[int, Codec] = {}
BY_NAME: dict[str, Codec] = {}
# Adds the codecs of a module's types when the first value of one occurs: numpy takes long to
# import, and few programs need it.
LATER: dict[str, Callable[[], None]] = {}

# Finds a codec that is not known yet, by type or by recorded name: see declared_types.
FINDERS: list[Callable[[type | str], None]] = []


def codec_of(kind: type) -> Codec | None:
    """The codec for values of exactly this type."""
    if kind not in BY_TYPE and (load := LATER.get(kind.__module__.partition(".")[0])) is not None:
        load()
    return BY_TYPE.get(kind)


def found_codec(kind: type) -> Codec | None:
    """The same, or the codec of a type that the user's code names, which is searched now."""
    if codec_of(kind) is None:
        for find in FINDERS:
            find(kind)
    return BY_TYPE.get(kind)


def codec_numbered(code: int) -> Codec:
    """The codec of a number; ValueError when there is none."""
    if code not in BY_CODE:
        raise ValueError(f"extension type {code} is not known to this library")
    return BY_CODE[code]


def collide(keys: Iterable[Any]) -> bool:
    """Whether so many of these have one hash that it was probably chosen."""
    hashes = sorted(map(hash, keys))
    return any(map(int.__eq__, hashes, hashes[ALIKE_MAX:]))


# -- where a part is: (where its holder is, how it is called there)

_Where = tuple[Any, str]


class _Alone(list[Any]):
    """Holds one value, whose position is its holder's."""


class _Pairs(list[Any]):
    """Holds keys and values of a dict, alternating."""


class _Ext:
    """An extension value that equals none but itself: two keys may look alike (of two NaNs), and
    hashes of decoded values could be chosen."""

    __slots__ = ("code", "data")

    def __init__(self, code: int, data: bytes) -> None:
        self.code, self.data = code, data

    def packed(self) -> Any:
        return ExtType(self.code, self.data)


def _inside(where: _Where, holder: Any, key: Any) -> _Where:
    if isinstance(holder, _Alone):
        return where
    if isinstance(holder, _Pairs):
        name = f".keys()[{key // 2}]" if key % 2 == 0 else f"[{shorten(holder[key - 1], 60)}]"
        return where, name
    return where, f".{key}" if type(key) is str else f"[{shorten(key, 60)}]"


def _path(where: _Where | None) -> str:
    names: list[str] = []
    while where is not None:
        where, name = where
        names.append(name)
    path = "".join(reversed(names))
    return path if len(path) <= 400 else f"{path[:200]} ... {path[-200:]}"


def _places(holder: Any) -> Iterable[tuple[Any, Any]]:
    return enumerate(holder) if isinstance(holder, list) else list(holder.items())


# -- writing


class Layout:
    """Converts a value to msgpack's own types. Outer parts are converted first, as copies; values
    with codecs are packed last, inner ones first.

    ``default`` converts a value of this library (see values.pack), and raises for any other.
    ``of_message``: refuse mutable values.
    """

    def __init__(self, default: Callable[[Any], Any], of_message: bool = False) -> None:
        self.checked = False  # whether codecs of the user's took part
        self._default, self._of_message = default, of_message
        self._todo: list[tuple[Any, _Where, int, int]] = []
        self._coded: list[tuple[Any, Any, Codec | None, list[Any], _Where]] = []

    def pack(self, value: Any, path: str) -> bytes:
        """``value`` as msgpack; RefusedValueError with the path to an unsuitable value."""
        top = _Alone([value])
        self._todo.append((top, (None, path), 0, 0))
        while self._todo:
            self._scan(*self._todo.pop())
        for job in reversed(self._coded):
            self._close(*job)
        return _packb(top[0], (None, path))

    def again(self, value: Any) -> bytes:
        """The bytes that this would have made of ``value``."""
        return Layout(self._default, self._of_message).pack(value, "")

    def _scan(self, holder: Any, where: _Where, depth: int, level: int) -> None:
        for key, part in _places(holder):
            if not _is_plain(part):
                self._take(holder, key, _inside(where, holder, key), depth, level)

    def _take(self, holder: Any, key: Any, where: _Where, depth: int, level: int) -> None:
        part = holder[key]
        codec = None if type(part) in (list, dict) else codec_of(type(part))
        if codec is not None:
            self._encode(codec, (holder, key), where, depth, level)
            return
        if type(part) not in (list, dict):
            try:
                part = self._default(part)
            except TypeError:
                codec = found_codec(type(part))
                if codec is None:
                    _refuse(where, _why(part))
                self._encode(codec, (holder, key), where, depth, level)
                return
        if type(part) is ExtType:
            holder[key] = part
            return
        if depth >= DEPTH_MAX:
            _refuse(where, f"nested deeper than {DEPTH_MAX} levels")
        if type(part) is dict and not all(map(_is_plain, part)):
            if collide(part):
                _refuse(where, f"more than {ALIKE_MAX} keys have one hash")
            copy: Any = _Pairs(item for pair in part.items() for item in pair)
            self._coded.append((holder, key, None, copy, where))
        else:
            copy = holder[key] = dict(part) if type(part) is dict else list(part)
        self._todo.append((copy, where, depth + 1, level))

    def _encode(
        self, codec: Codec, place: tuple[Any, Any], where: _Where, depth: int, level: int
    ) -> None:
        holder, key = place
        part = holder[key]
        if self._of_message and codec.freeze is None:
            _refuse(
                where,
                f"{kind_name(part)} can be changed in place, and messages are recorded"
                " values: append what cannot be (docs: Values)",
            )
        try:
            payload = codec.encode(part)
        except RefusedValueError:
            raise
        except Exception as exc:
            _refuse(where, f"{type(exc).__name__}: {exc}" if codec.checked else str(exc))
        if codec.atom:
            holder[key] = ExtType(codec.code, payload)
            return
        if level >= LEVELS_MAX:
            _refuse(where, f"more than {LEVELS_MAX} values with codecs inside one another")
        if codec.unordered and collide(part):
            _refuse(where, f"more than {ALIKE_MAX} elements have one hash")
        self.checked |= codec.checked
        inner = _Alone([payload])
        self._coded.append((holder, key, codec, inner, where))
        self._todo.append((inner, where, depth, level + 1))

    def _close(
        self, holder: Any, key: Any, codec: Codec | None, inner: list[Any], where: _Where
    ) -> None:
        if codec is None:
            keys = [_Ext(*key) if type(key) is ExtType else key for key in inner[::2]]
            holder[key] = dict(zip(keys, inner[1::2], strict=True))
            return
        (payload,) = inner
        if codec.unordered:
            # Sorted by their bytes, so that equal sets have equal digests in every process.
            parts = sorted(_packb(part, where) for part in payload)
            data = msgpack.Packer().pack_array_header(len(parts)) + b"".join(parts)
        else:
            data = _packb(payload, where)
        if codec.name:
            data = b"\x92" + msgpack.packb(codec.name) + data
        holder[key] = ExtType(codec.code, data)


def _is_plain(part: Any) -> bool:
    """Whether it is a scalar that msgpack carries unchanged."""
    kind = type(part)
    if kind is str:
        if not part.isascii():
            try:
                part.encode()
            except UnicodeEncodeError:
                return False
        return True
    return kind in _SIMPLE or (kind is int and _INT_MIN <= part <= _INT_MAX)


def _packb(value: Any, where: _Where) -> bytes:
    try:
        return bytes(msgpack.packb(value, strict_types=True, default=_Ext.packed))
    except ValueError as exc:  # of more bytes than msgpack counts
        _refuse(where, str(exc))


def _refuse(where: _Where, why: str) -> NoReturn:
    raise RefusedValueError(_path(where), why) from None


# A type with one of these methods is a lock, a file, a socket, a client, ...
_OF_THE_PROCESS = ("acquire", "fileno", "close", "aclose", "__enter__", "__aenter__")
_ELSEWHERE = (
    "is made in the agent function or in the module, or bound by functools.partial(agent, ...)"
)


def _why(part: Any) -> str:
    kind = type(part)
    text = f"{kind_name(part)} cannot be carried"
    if hasattr(kind, "__await__"):
        name = getattr(part, "__qualname__", kind.__name__)
        if "(" not in name and hasattr(part, "__name__"):
            name = f"{part.__name__}(...)"
        return f"it was not awaited. Write `await {name}`; what that gives is recorded"
    if (
        is_dataclass(kind)
        or isinstance(part, enum.Enum)
        or hasattr(kind, "model_fields")
        or (isinstance(part, tuple) and hasattr(kind, "_fields"))
    ):
        return f"{text} before it is registered: recovery.register({kind.__qualname__})"
    if isinstance(part, type) or kind.__module__ in ("builtins", "msgpack", "msgpack.ext"):
        return text
    if any(hasattr(kind, name) for name in _OF_THE_PROCESS):
        return f"{text}: it belongs to this process, and what is recorded is data. It {_ELSEWHERE}"
    return (
        f"{text}; recovery.register({kind.__qualname__}, encode=..., decode=...) lets it be, if it "
        f"is data. What belongs to the process, such as a client, {_ELSEWHERE}"
    )


# -- reading


def document(packed: bytes, frozen: bool) -> Any:
    """A document with extension values undecoded; ValueError for bytes of no library version.

    ``frozen``: use immutable dicts and lists.
    """
    if frozen:
        value = decode(packed, object_hook=FrozenDict, list_hook=FrozenList, ext_hook=_Ext)
    else:
        value = decode(packed, ext_hook=_Ext)
    # msgpack decodes its own timestamps before it calls ext_hook.
    if may_hold_timestamps(packed) and holds(value, (msgpack.Timestamp,)):
        raise ValueError("it holds what this library does not write")
    return value


def holds(value: Any, kinds: tuple[type, ...]) -> bool:
    """Whether a value of lists and dicts holds one of exactly these types."""
    todo, wanted = [value], frozenset(kinds)
    while todo:
        part = todo.pop()
        if isinstance(part, dict):
            if not _SCALARS.issuperset(map(type, part)) and not wanted.isdisjoint(map(type, part)):
                return True
            part = part.values()
        elif type(part) is not list and type(part) is not FrozenList:
            if type(part) in wanted:
                return True
            continue
        if not _SCALARS.issuperset(map(type, part)):
            todo.extend(part)
    return False


def revive(packed: bytes, frozen: bool) -> Any:
    """The value of a document that holds extension values.

    Raises UnreadableValueError for a type that is not registered here, and whatever the codecs
    raise for bytes that make no sense to them.
    """
    top = _Alone([document(packed, frozen)])
    todo: list[tuple[Any, _Where, int, int]] = [(top, (None, ""), 0, 0)]
    coded: list[tuple[Any, Any, Codec | None, list[Any], _Where]] = []
    while todo:
        holder, where, depth, level = todo.pop()
        if depth > _READ_DEPTH_MAX or level > LEVELS_MAX:
            raise ValueError("nested too deep")
        for key, part in _places(holder):
            kind = type(part)
            if kind in _SCALARS or (kind is not _Ext and not part):
                continue
            inside = _inside(where, holder, key)
            if kind is _Ext:
                codec, inner = _opened(part, inside, frozen)
                if codec.atom:
                    _put(holder, key, _made(codec, inner, inside, frozen))
                else:
                    coded.append((holder, key, codec, inner, inside))
                    todo.append((inner, inside, depth, level + 1))
            elif isinstance(part, dict) and _Ext in map(type, part):
                inner = _Pairs(item for pair in part.items() for item in pair)
                coded.append((holder, key, None, inner, inside))
                todo.append((inner, inside, depth + 1, level))
            elif not _SCALARS.issuperset(map(type, _parts(part))):
                todo.append((part, inside, depth + 1, level))
    for holder, key, maker, inner, where in reversed(coded):
        made = _dict(inner, where, frozen) if maker is None else _made(maker, inner, where, frozen)
        _put(holder, key, made)
    return top[0]


def _parts(part: Any) -> Iterable[Any]:
    return part.values() if isinstance(part, dict) else part


def _put(holder: Any, key: Any, value: Any) -> None:
    # A frozen holder is not finished yet.
    (list if isinstance(holder, list) else dict).__setitem__(holder, key, value)


def _opened(part: _Ext, where: _Where, frozen: bool) -> tuple[Codec, list[Any]]:
    """The codec for an extension value, and the argument of its decode."""
    code, data = part.code, part.data
    if code != REGISTERED:
        numbered = codec_numbered(code)
        return numbered, _Alone([data if numbered.atom else document(data, frozen)])
    parts = document(data, frozen)
    if not isinstance(parts, list) or len(parts) != 2 or type(parts[0]) is not str:
        raise ValueError("a value of a registered type without a name")
    name, payload = parts
    for find in FINDERS if name not in BY_NAME else ():
        find(name)
    codec = BY_NAME.get(name)
    if codec is None:
        raise UnreadableValueError(
            f"its type was registered as {shorten(name, 60)}, and none has that name here",
            "Import the module that registers or names it, or recovery.register(TheType, "
            f"name={shorten(name, 60)}), and run again.",
            name,
            _path(where),
        )
    return codec, _Alone([payload])


def _made(codec: Codec, inner: list[Any], where: _Where, frozen: bool) -> Any:
    try:
        value = codec.decode(inner[0])
    except UnreadableValueError as exc:
        raise UnreadableValueError(exc.what, exc.todo, codec.name, _path(where)) from exc.__cause__
    except Exception as exc:
        if not codec.name:
            raise
        # The type or its codec has changed: the record is as it was written.
        raise UnreadableValueError(
            f"reading it as a {codec.name!r} raised {type(exc).__name__}: {shorten(str(exc), 200)}",
            "Register the type as it was, or with a decode= that knows the old form.",
            codec.name,
            _path(where),
        ) from exc
    if codec.name and type(value) is not codec.kind:
        raise UnreadableValueError(
            f"decode= of {codec.name!r} made a {kind_name(value)} of it",
            "Correct it.",
            codec.name,
            _path(where),
        )
    return codec.freeze(value) if frozen and codec.freeze is not None else value


def _dict(pairs: list[Any], where: _Where, frozen: bool) -> dict[Any, Any]:
    keys = pairs[::2]
    try:
        if collide(keys):
            raise ValueError("keys that collide on purpose")
        made = dict(zip(keys, pairs[1::2], strict=True))
    except TypeError as exc:  # a key may not be hashable any more
        name = next((BY_TYPE[type(key)].name for key in keys if type(key) in BY_TYPE), "")
        if not name:
            raise
        raise UnreadableValueError(
            f"a key is no longer one: {exc}", "Make its type hashable.", name, _path(where)
        ) from exc
    return FrozenDict(made) if frozen else made
