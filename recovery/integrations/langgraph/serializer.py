"""Serializes values with LangGraph's serializers: compares what is plain, stores what is sealed."""

from __future__ import annotations

from typing import Any

import xxhash
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

Typed = tuple[str, bytes]  # the name of an encoding, and the bytes
Stored = list[Any]  # the same, in a record


class Codec:
    """A serializer of LangGraph's in two steps.

    An encrypting one gives other bytes each time, so equal values are recognised before they are
    encrypted. Any other serializer is taken as it is. If it gives other bytes each time, equal
    values are stored again, which costs space and nothing else.
    """

    def __init__(self, serde: SerializerProtocol) -> None:
        self._serde = serde
        self._encrypting = serde if type(serde) is EncryptedSerializer else None

    def plain(self, value: Any) -> Typed:
        """The value's bytes before they are encrypted."""
        serde = self._serde if self._encrypting is None else self._encrypting.serde
        kind, data = serde.dumps_typed(value)
        return kind, bytes(data)

    def sealed(self, typed: Typed) -> Stored:
        """As it is stored."""
        kind, data = typed
        if self._encrypting is None:
            return [kind, data]
        cipher, encrypted = self._encrypting.cipher.encrypt(data)
        return [f"{kind}+{cipher}", encrypted]

    def opened(self, stored: Stored) -> Typed:
        """The value's bytes, decrypted."""
        kind, data = stored
        if self._encrypting is None or "+" not in kind:
            return kind, data
        kind, cipher = kind.split("+", 1)
        return kind, self._encrypting.cipher.decrypt(cipher, data)

    def loaded(self, typed: Typed) -> Any:
        """The value of bytes that are decrypted."""
        serde = self._serde if self._encrypting is None else self._encrypting.serde
        return serde.loads_typed(typed)

    def loaded_all(self, many: list[Typed]) -> list[Any]:
        """The values of all these: of a serializer of LangGraph's in one pass."""
        serde = self._serde if self._encrypting is None else self._encrypting.serde
        is_msgpack = getattr(type(serde), "loads_typed", None) is JsonPlusSerializer.loads_typed
        if is_msgpack and all(kind == "msgpack" for kind, _ in many):
            array = b"\xdd" + len(many).to_bytes(4) + b"".join(data for _, data in many)
            values: list[Any] = serde.loads_typed(("msgpack", array))
            return values
        return [serde.loads_typed(typed) for typed in many]

    def stored(self, value: Any) -> Stored:
        """The value as it is stored."""
        return self.sealed(self.plain(value))

    def restored(self, stored: Stored) -> Any:
        """A stored value."""
        return self.loaded(self.opened(stored))


def digest_of(typed: Typed) -> bytes:
    """Equal for equal plain bytes."""
    kind, data = typed
    return xxhash.xxh3_128_digest(data) + kind.encode()
