"""Finds values that are recorded already, so that a message refers to them."""

from __future__ import annotations

from eventlog.format.frame import PAYLOAD_SIZE_MAX
from eventlog.format.record import Packed
from recovery.values.backrefs import (
    BORROWED_MAX,
    FRESH_SIZE_MAX,
    INNER_EACH_MAX,
    INNER_MAX,
    REF_SIZE_MIN,
    WHOLE_MAX,
    CompositeMessage,
    Span,
    walk_document,
)
from recovery.values.pack import pack, pack_list
from recovery.values.types import Ref, digest


class BackrefIndex:
    """The last outcomes of a run, for messages that contain the same values.

    Outcomes before LSN ``first`` are not used: retention removes them.
    """

    def __init__(self, referenced_size: int = 0, first: int = 1) -> None:
        self.referenced_size = referenced_size  # removed messages count until the next recovery
        self._first = first
        # In the order of coming. (An OrderedDict takes four times as much, in each run.)
        self._whole: dict[bytes, int] = {}
        self._inner: dict[bytes, Span] = {}
        self._fresh: list[tuple[bytes, int]] = []
        self._fresh_size = 0

    def remember(self, packed: bytes, lsn: int) -> None:
        """Add an outcome that a message may soon equal or contain."""
        if len(packed) < REF_SIZE_MIN or lsn < self._first:
            return
        self._fresh.append((packed, lsn))
        self._fresh_size += len(packed)
        if self._fresh_size > FRESH_SIZE_MAX:
            self._look_inside()

    def forget_before(self, first: int) -> None:
        """Use no outcome before this LSN from now on."""
        if first > self._first:
            self._first = first
            self._whole, self._inner, self._fresh, self._fresh_size = {}, {}, [], 0

    def reference_for(self, packed: bytes) -> Ref | CompositeMessage | None:
        """The reference to record for a message; None to record it itself."""
        if self._fresh:
            self._look_inside()
        if len(packed) < REF_SIZE_MIN or not self._whole:
            return None
        lsn = self._whole.get(digest(packed))
        if lsn is not None:
            return Ref(lsn)
        if self.referenced_size + len(packed) > BORROWED_MAX or len(packed) > PAYLOAD_SIZE_MAX:
            return None
        parts = self._parts(packed)
        if parts is not None:
            self.referenced_size += parts.referenced_size
        return parts

    def references_for(
        self, packed: list[bytes]
    ) -> tuple[list[Ref | CompositeMessage | None], Packed]:
        """The references for each of these messages; and the values to record for all of them."""
        found = [self.reference_for(one) for one in packed]
        return found, pack_list(
            [
                Packed(one) if item is None else pack(item, "message")
                for item, one in zip(found, packed, strict=True)
            ]
        )

    def _parts(self, packed: bytes) -> CompositeMessage | None:
        found: list[tuple[int, int, Span]] = []

        def take(start: int, stop: int) -> bool:
            key = digest(packed[start:stop])
            lsn = self._whole.get(key)
            span = self._inner.get(key) if lsn is None else (lsn, 0, stop - start)
            if span is not None:
                found.append((start, stop, span))
            return span is not None

        walk_document(packed, take)
        if not found:
            return None
        pieces: list[bytes | Span] = []
        at = 0
        for start, stop, span in sorted(found):
            if start > at:
                pieces.append(bytes(packed[at:start]))
            pieces.append(span)
            at = stop
        if at < len(packed):
            pieces.append(bytes(packed[at:]))
        return CompositeMessage(tuple(pieces))

    def _look_inside(self) -> None:
        for packed, lsn in self._fresh:
            self._whole[digest(packed)] = lsn
            spans: list[tuple[int, int]] = []

            def note(start: int, stop: int, spans: list[tuple[int, int]] = spans) -> bool:
                spans.append((start, stop))
                return len(spans) > INNER_EACH_MAX

            walk_document(packed, note)
            for start, stop in spans[1 : INNER_EACH_MAX + 1]:
                self._inner[digest(packed[start:stop])] = lsn, start, stop
        self._fresh, self._fresh_size = [], 0
        for known, limit in ((self._whole, WHOLE_MAX), (self._inner, INNER_MAX)):
            while len(known) > limit:
                del known[next(iter(known))]
