"""Implements ``run.messages``, a list that records every change."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import Any, SupportsIndex

import xxhash

from eventlog.format.record import Packed
from recovery.values.pack import has_slipped, may_slip, pack_message, packed_plain, unpack_frozen
from recovery.values.sealed import Personal, sealed_data
from recovery.values.types import Conversation, Ref, digest

# Called before a change with (start, stop, packed new messages); returns their places in the log.
Recorder = Callable[[int, int, list[bytes]], list[Ref | None]]
Mark = Callable[[Personal, str], Packed]  # packs and seals a message of a subject


# Messages are digested in chunks. For a chunk after certain messages this keeps, by the digest of
# those and its own: the digest of each of its messages, the digest of all up to there, and whether
# its bytes could be those of other values, too. A conversation that is given repeatedly, each time
# somewhat longer, is then packed by the chunk; its messages are not examined one by one. In the
# benchmark "Saving a checkpoint" that halves "100 messages, one more", and saves five sixths of
# thousands of messages.
CHUNK = 64
KNOWN_MAX = 1024  # chunks: of 4 MiB, with what is kept for each
_known: dict[bytes, tuple[list[bytes], bytes, bool]] = {}


def digests_of(messages: Iterable[Any]) -> tuple[list[bytes], bytes]:
    """The digest of each message, and that of all; RefusedValueError for one that cannot be
    carried."""
    messages, found, before = list(messages), list[bytes](), b""
    for start in range(0, len(messages), CHUNK):
        chunk = messages[start : start + CHUNK]
        packed = packed_plain(chunk)
        key = b"" if packed is None else before + digest(packed)
        known = _known.get(key)
        # Invariant: equal bytes, without any that msgpack may have changed, are equal values of
        # equal types, all of which were found recordable the first time.
        if known is None or (known[2] and has_slipped(chunk)):
            digests = [
                digest(pack_message(one, f"messages[{start + i}]")) for i, one in enumerate(chunk)
            ]
            known = digests, digest_of_all(digests, before), bool(packed and may_slip(packed))
            if packed is not None:
                if len(_known) >= KNOWN_MAX:
                    _known.clear()
                _known[key] = known
        found += known[0]
        before = known[1]
    return found, before


def chained(before: bytes, message: bytes) -> bytes:
    """The digest of messages, from that of all but the last and that of the last."""
    return bytes(xxhash.xxh3_128_digest(before + message))


def digest_of_all(messages: Iterable[bytes], before: bytes = b"") -> bytes:
    """The digest of messages, from the digest of each, and of those before them."""
    for message in messages:
        before = chained(before, message)
    return before


class Messages(Conversation):
    """A list whose elements are frozen copies of what was put in, and whose changes are recorded.

    A change is any method of list, or an assignment to an index or slice. The operating system has
    it when the method returns. Values that cannot be recorded raise RefusedValueError, and changing
    a message in place raises TypeError. Not for concurrent changes from several threads.

    ``is_past``: the code before the loop of steps runs again in a resumed run. Its changes were
    made the first time, and are not repeated.
    """

    def __init__(self, recorder: Recorder | None = None, mark: Mark | None = None) -> None:
        super().__init__()
        self.recorder, self._mark = recorder, mark
        self._sealed: dict[bytes, Packed] = {}  # sealed messages, by their digest
        self.message_digests: list[bytes] = []
        self.refs: list[Ref | None] = []
        self.size = 0  # bytes, packed
        self._sizes: list[int] = []
        self._chain: list[bytes] = []
        self.on_change: Callable[[int], None] | None = None
        self.is_past = False

    def digest(self) -> bytes:
        """A digest of the whole list, updated with each message: the cost is in the new ones."""
        for i in range(len(self._chain), len(self.message_digests)):
            before = self._chain[i - 1] if i else b""
            self._chain.append(chained(before, self.message_digests[i]))
        return self._chain[-1] if self._chain else b""

    def restore(self, packed: list[bytes], refs: list[Ref | None]) -> None:
        """Replace all messages by these, which the log has already; records nothing."""
        self.change(0, len(self), packed, refs)

    def _splice(self, start: int, stop: int, new: Iterable[Any]) -> None:
        if self.is_past:
            return
        packed: list[bytes] = [
            self._packed(message, f"messages[{start + i}]") for i, message in enumerate(new)
        ]
        refs: list[Ref | None] = [None] * len(packed)
        if self.recorder is not None and (packed or stop > start):
            refs = self.recorder(start, stop, packed)
        self.change(start, stop, packed, refs)

    def _packed(self, message: Any, path: str) -> Packed:
        if type(message) is not Personal or self._mark is None:
            return pack_message(message, path)
        return self._mark(message, path)

    def recorded(self, index: int) -> Any:
        """A message as it is to be recorded: Packed if it is sealed, else the message."""
        return self._sealed.get(self.message_digests[index], self[index])

    def change(self, start: int, stop: int, packed: list[bytes], refs: list[Ref | None]) -> None:
        """Replace these messages by others, which the log has already; records nothing."""
        # By object: a conversation may have the same message many times, and needs one copy.
        distinct = {id(one): one for one in packed}
        values = {key: unpack_frozen(one) for key, one in distinct.items()}
        digests = {key: digest(one) for key, one in distinct.items()}
        super().__setitem__(slice(start, stop), [values[id(one)] for one in packed])
        self.message_digests[start:stop] = [digests[id(one)] for one in packed]
        for key, one in distinct.items():
            if sealed_data(one) is not None:
                self._sealed[digests[key]] = Packed(one)
        self.refs[start:stop] = refs
        sizes = [len(one) for one in packed]
        self.size += sum(sizes) - sum(self._sizes[start:stop])
        self._sizes[start:stop] = sizes
        del self._chain[start:]
        if self.on_change is not None:
            self.on_change(start)

    # -- the methods of list, each a splice

    def append(self, message: Any, /) -> None:
        self._splice(len(self), len(self), [message])

    def extend(self, messages: Iterable[Any], /) -> None:
        self._splice(len(self), len(self), list(messages))

    def insert(self, index: SupportsIndex, message: Any, /) -> None:
        start, _, _ = slice(index, None).indices(len(self))
        self._splice(start, start, [message])

    def pop(self, index: SupportsIndex = -1, /) -> Any:
        at = range(len(self))[index]
        message = self[at]
        self._splice(at, at + 1, [])
        return message

    def remove(self, message: Any, /) -> None:
        if self.is_past:
            return  # also if it was removed meanwhile
        at = self.index(message)
        self._splice(at, at + 1, [])

    def clear(self) -> None:
        self._splice(0, len(self), [])

    def reverse(self) -> None:
        self._splice(0, len(self), list(reversed(self)))

    def sort(self, *, key: Any = None, reverse: bool = False) -> None:
        self._splice(0, len(self), sorted(self, key=key, reverse=reverse))

    def __setitem__(self, index: Any, value: Any, /) -> None:
        if self.is_past:
            return
        if not isinstance(index, slice):
            at = range(len(self))[index]
            self._splice(at, at + 1, [value])
            return
        if isinstance(value, str | dict):  # a list of it would have letters, or keys
            raise TypeError(f"run.messages is a list of messages, not {value!r:.80}")
        start, stop, step = index.indices(len(self))
        if step == 1:
            self._splice(start, max(start, stop), list(value))
        else:
            changed = list(self)
            changed[index] = list(value)
            self._splice(0, len(self), changed)

    def __delitem__(self, index: SupportsIndex | slice, /) -> None:
        if self.is_past:
            return
        kept = list(self)
        del kept[index]
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                self._splice(0, len(self), kept)
            else:
                self._splice(start, max(start, stop), [])
            return
        at = range(len(self))[index]
        self._splice(at, at + 1, [])

    def __iadd__(self, messages: Iterable[Any], /) -> Messages:  # type: ignore[misc]
        self.extend(messages)
        return self

    def __imul__(self, times: SupportsIndex, /) -> Messages:
        self._splice(0, len(self), list(self) * int(times))
        return self

    def __deepcopy__(self, memo: object) -> list[Any]:
        return [deepcopy(message) for message in self]

    def __reduce__(self) -> Any:
        return list, (self.__deepcopy__(None),)
