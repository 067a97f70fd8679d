"""Renders recorded values as texts of a bounded size, for a page that may be sent to others."""

from __future__ import annotations

from typing import Any

from eventlog.dump import Json
from recovery.text import printable_lines
from recovery.values.render import Redaction, pretty, readable

DECODED_SIZE_MAX = 8 << 20  # of a value; a few KiB of it are shown


class Texts:
    """Values and texts as they are shown: at most ``size_max`` characters of each, no secrets.

    A text that was cut is [its beginning, the number of characters left out]; of a value that is
    too large to be decoded, the number of bytes.
    """

    def __init__(self, redaction: Redaction, size_max: int) -> None:
        self._redaction, self._size_max = redaction, size_max

    def hides(self, name: str) -> bool:
        """Whether values under this name must not be shown."""
        return self._redaction.hides(name)

    def packed(self, packed: bytes, name: str = "") -> Json:
        """A recorded value; ``name``: of its owner, such as its tool."""
        if len(packed) > DECODED_SIZE_MAX:
            return ["", len(packed)]
        return self.value(readable(packed), name)

    def value(self, value: Any, name: str = "") -> Json:
        """A readable value."""
        return self._cut("\n".join(pretty(self._redaction.shown(value, name))))

    def text(self, text: str, name: str = "") -> Json:
        """Text that may quote a value."""
        return self._cut(printable_lines(self._redaction.text(text, name)))

    def _cut(self, text: str) -> Json:
        left = len(text) - self._size_max
        return [text[: self._size_max], left] if left > 0 else text
