"""Represents values that belong to subjects: personal, sealed under keys, or forgotten. Pure.

A sealed value is an extension value. Its data name the keys of its subjects; the rest is
ciphertext, which is opened with all of them. So its bytes, and all digests of them, stay the same
when a key is destroyed: only what is read from them changes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Protocol, TypeVar
from weakref import ref

import msgpack

from eventlog.errors import RefusedValueError
from eventlog.format.record import Packed
from eventlog.light_dataclass import light_dataclass
from recovery.errors import UnreadableValueError
from recovery.values.codec import BY_CODE, BY_NAME, BY_TYPE, REGISTERED, Codec, ExtType
from recovery.values.pack import pack, unpack, unpack_frozen

EXT_SEALED = 24
KEY_ID_SIZE, NONCE_SIZE, TAG_SIZE = 16, 24, 16
SUBJECTS_MAX = 255  # of one value

KeyIds = tuple[bytes, ...]  # of the subjects of a value, ascending
GONE = object()  # what a destroyed key gives


class SubjectError(TypeError):
    """The subject of a call or of a value is no text."""


class Personal:
    """A value and the subject that it belongs to; made by ``personal``."""

    __slots__ = ("subject", "value")

    def __init__(self, subject: str, value: Any) -> None:
        self.subject, self.value = subject, value

    def of(self, value: Any) -> Personal:
        """Another value, of the same subject."""
        return Personal(self.subject, value)

    def __repr__(self) -> str:
        return "<a personal value>"


def personal(subject: str, value: Any) -> Any:
    """Mark ``value`` as belonging to ``subject``, where a run records it.

    For a message (``run.messages.append``), a value of ``run.state``, the result of a tool or of
    the agent. Mark it as a whole, because a part of a value cannot be marked. On disk it is
    encrypted with the key of ``subject`` (text). It is read as the plain value until the subject is
    forgotten, and as Forgotten from then on. Raises SubjectError (a TypeError) for a subject that
    is no text.
    """
    return Personal(checked_subject(subject), value)


def checked_subject(subject: object) -> str:
    """The subject itself; SubjectError when it is no text."""
    if type(subject) is not str or not subject:
        raise SubjectError(f"a subject is text, such as 'customer-17', not {subject!r:.80}")
    return subject


def all_keys(one: KeyIds, other: KeyIds) -> KeyIds:
    """The keys of both, each once."""
    return one or other if not (one and other) else tuple(sorted({*one, *other}))


T = TypeVar("T")


def hiding(pack_it: Callable[[], T], root: str) -> T:
    """What ``pack_it`` makes of a value of a subject. If the value cannot be carried, the refusal
    names ``root`` alone: the path has keys of the value, and a user's codec may quote it."""
    try:
        return pack_it()
    except RefusedValueError as exc:
        raise hidden(exc, root) from None


def hidden(refused: RefusedValueError, root: str) -> RefusedValueError:
    """See ``hiding``."""
    why = refused.reason.partition(":")[0]
    return RefusedValueError(root, f"{why} (somewhere in a value of a subject)")


class Sealed:
    """A value that is encrypted with keys of its subjects, which this process does not have."""

    __slots__ = ("_data",)

    def __init__(self, data: bytes) -> None:
        self._data = data

    @property
    def data(self) -> bytes:
        """Not for users: its bytes in the log."""
        return self._data

    @property
    def keys(self) -> KeyIds:
        """The ids of its keys."""
        return key_ids(self._data)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.data == self._data

    def __hash__(self) -> int:
        return hash(self._data)

    def __repr__(self) -> str:
        names = ", ".join(one.hex()[:8] for one in self.keys)
        return f"<{type(self).__name__.lower()}, {len(self._data)} bytes, key {names}>"


class Forgotten(Sealed):
    """Stands for a value whose subject was forgotten: its key is destroyed.

    ``keys`` are the ids of its keys. The log holds the ciphertext, so all checksums still fit.
    """

    __slots__ = ()


def key_ids(data: bytes) -> KeyIds:
    """The ids of the keys of a sealed value; ValueError for data of no sealed value."""
    count = data[0] if data else 0
    end = 1 + count * KEY_ID_SIZE
    if not 0 < count <= SUBJECTS_MAX or len(data) < end + NONCE_SIZE + TAG_SIZE:
        raise ValueError("no sealed value")
    return tuple(data[at : at + KEY_ID_SIZE] for at in range(1, end, KEY_ID_SIZE))


# -- the keys of this process


class Opener(Protocol):
    """The keys of one store."""

    def open(self, data: bytes) -> Any:
        """The packed value; GONE if one of its keys was destroyed, None if one is unknown here."""

    def has_forgotten(self, key_id: bytes) -> bool:
        """Whether the key was destroyed."""


_OPENERS: dict[int, ref[Opener]] = {}


def add_opener(opener: Opener) -> None:
    """Open sealed values with the keys of this store, for as long as something refers to it."""
    number = id(opener)

    def remove(_: object) -> None:
        _OPENERS.pop(number, None)

    _OPENERS[number] = ref(opener, remove)


def _openers() -> Iterator[Opener]:
    """The keys of all stores of this process, those of the newest store first."""
    for one in list(_OPENERS.values())[::-1]:
        if (found := one()) is not None:
            yield found


def is_forgotten(keys: KeyIds) -> bool:
    """Whether one of these keys was destroyed, as far as this process knows."""
    for one in _openers():
        with suppress(UnreadableValueError, OSError):  # of another store, maybe
            if any(map(one.has_forgotten, keys)):
                return True
    return False


def opened(data: bytes) -> Packed | Sealed:
    """What a sealed value holds; itself if that cannot be known here, or not any more.

    Raises what the keys of a store raise that cannot be read, if no other store has the key.
    """
    key_ids(data)
    failed: Exception | None = None
    for one in _openers():
        try:
            found = one.open(data)
        except (UnreadableValueError, OSError) as exc:
            failed = failed or exc
            continue
        if found is GONE:
            return Forgotten(data)
        if found is not None:
            return Packed(found)
    if failed is not None:
        raise failed
    return Sealed(data)


def _decode(data: bytes) -> Any:
    found = opened(data)
    return found if isinstance(found, Sealed) else unpack(found)


def _frozen(value: Any) -> Any:
    return value if isinstance(value, Sealed) else unpack_frozen(pack(value, ""))


def _refuse(value: Personal) -> Any:
    raise ValueError(
        "personal() marks a message, a value of run.state or a result as a whole, and no part of "
        "one. The arguments of a call are marked by @tool(subject=...)"
    )


BY_TYPE[Personal] = Codec(0, _refuse, _refuse)
_CODEC = Codec(EXT_SEALED, lambda value: value.data, _decode, atom=True, freeze=_frozen)
BY_TYPE[Sealed] = BY_TYPE[Forgotten] = BY_CODE[EXT_SEALED] = _CODEC


# -- bytes

# The positions of the number of an extension value that is as long as these.
_HEADS = {0xC7: 2, 0xC8: 3, 0xC9: 5}
_MAYBE = re.compile(rb"\xc7.\x18|\xc8..\x18|\xc9....\x18", re.DOTALL)


def may_hold_sealed(packed: bytes) -> bool:
    """Whether these may be the bytes of a value that has a sealed one in it."""
    return _MAYBE.search(packed) is not None


def key_ids_in(packed: bytes) -> set[bytes]:
    """The ids of the keys of all sealed values in a packed one; maybe others that look like them.
    Values that are sealed inside of others are not seen."""
    found: set[bytes] = set()
    for head in _MAYBE.finditer(packed):
        with suppress(ValueError):
            found.update(key_ids(packed[head.end() :]))
    return found


def sealed_data(packed: bytes) -> bytes | None:
    """The data of a packed value that is sealed as a whole; None for any other."""
    at = _HEADS.get(packed[0]) if packed else None
    if at is None or packed[at] != EXT_SEALED:
        return None
    return bytes(packed[at + 1 :])


def pack_sealed(data: bytes) -> Packed:
    """A sealed value, packed."""
    return Packed(msgpack.packb(ExtType(EXT_SEALED, data)))


def plain(packed: bytes) -> bytes:
    """The packed value without its seal; the same bytes where it has none, or cannot be opened."""
    data = sealed_data(packed)
    if data is None:
        return packed
    found = opened(data)
    return packed if isinstance(found, Sealed) else found


@light_dataclass
class Subjects:
    """The ids of the keys of the subjects that a run or a call belongs to.

    A value of a type whose name older libraries do not know: so they refuse to read the run
    (UnreadableValueError, nothing executed) instead of misreading it.
    """

    keys: KeyIds

    @property
    def forgotten(self) -> bool:
        """Whether one of the keys was destroyed, as far as this process knows."""
        return is_forgotten(self.keys)


def _subjects(parts: Any) -> Subjects:
    if type(parts) is not list or not 0 < len(parts) <= SUBJECTS_MAX:
        raise ValueError("no keys of subjects")
    if any(type(one) is not bytes or len(one) != KEY_ID_SIZE for one in parts):
        raise ValueError("no keys of subjects")
    return Subjects(tuple(parts))


_NAME = "subjects of agent-eventlog: upgrade the package"
BY_NAME[_NAME] = BY_TYPE[Subjects] = Codec(
    REGISTERED, lambda subjects: list(subjects.keys), _subjects, kind=Subjects, name=_NAME
)
