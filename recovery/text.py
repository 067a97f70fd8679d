"""Formats text for people: escapes what a terminal might act upon; abbreviates numbers. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from shlex import quote
from typing import Any
from unicodedata import east_asian_width

from eventlog.format.record import kind_name

MINUTE, HOUR, DAY = 60, 3600, 86400
QUOTED = "  | "  # before lines of quoted text
SEALED_TEXT = "<of a subject>"  # in place of values that are sealed in the log


def printable(text: str) -> str:
    """``text`` with every character escaped that a terminal might act upon.

    Control characters (C0, C1, escape sequences), line ends, marks that reverse the direction of
    text, surrogates: all that Unicode calls not printable.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escape(c) for c in text)


def printable_lines(text: str) -> str:
    """``text`` escaped in the same way, except line ends."""
    return "\n".join(printable(line) for line in text.splitlines())


def quoted(text: str) -> str:
    """Quotes a foreign text inside a text of this library: escaped, each further line marked.

    An error message may have lines that look like the library's own, such as the next command.
    """
    return f"\n{QUOTED}".join(map(printable, text.splitlines()))


def _escape(char: str) -> str:
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def columns(text: str) -> int:
    """How many columns of a terminal ``text`` takes: East Asian characters take two."""
    return len(text) if text.isascii() else len(text) + sum(map(_is_wide, text))


def cut(text: str, width: int) -> str:
    """``text``, cut short with dots when it takes more than ``width`` columns."""
    if columns(text) <= width:
        return text
    text = text[: max(0, width - 3)]
    while columns(text) > max(0, width - 3):
        text = text[:-1]
    return f"{text}..."[: max(0, width)]


def _is_wide(char: str) -> bool:
    return east_asian_width(char) in "WF"


def store_option(store: object) -> str:
    """The option of ``recovery`` for a store that has an address: `` --store PATH``; else ""."""
    address = getattr(store, "address", "")
    return f" --store {quote(address)}" if address else ""


def count(number: int, noun: str) -> str:
    """``1 record``, ``2,000 records``."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def size(number: int) -> str:
    """Bytes: ``312 B``, ``1.2 KB``, ``8.0 MB`` (of 1,000)."""
    if number < 1000:
        return f"{number} B"
    value = float(number)
    for unit in ("KB", "MB", "GB"):
        value /= 1000
        if value < 999.95:
            return f"{value:.1f} {unit}"
    return f"{value / 1000:.1f} TB"


def duration(seconds: float) -> str:
    """How long something took: ``3.1 ms``, ``12.0 s``, ``3 min 5 s``, ``2 h 1 min``, ``3 d``."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.1f} ms"
    if seconds < MINUTE:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < HOUR:
        return f"{whole // MINUTE} min {whole % MINUTE} s"
    if whole < DAY:
        return f"{whole // HOUR} h {whole % HOUR // MINUTE} min"
    return f"{whole // DAY} d {whole % DAY // HOUR} h"


def age(seconds: float) -> str:
    """How long ago, by the largest unit: ``5 s``, ``3 min``, ``2 h``, ``4 d``; never below 0."""
    seconds = max(0.0, seconds)  # the clocks of two machines differ
    for limit, unit, word in ((MINUTE, 1, "s"), (HOUR, MINUTE, "min"), (2 * DAY, HOUR, "h")):
        if seconds < limit:
            return f"{int(seconds // unit)} {word}"
    return f"{int(seconds // DAY)} d"


def shown_time(seconds: float) -> str:
    """A time (seconds since 1970), UTC."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return f"{seconds:.0f} s after 1970"


def shorten(value: Any, size: int = 400) -> str:
    """``repr(value)``, its middle left out when it is long; also if its __repr__ raises."""
    try:
        text = repr(value)
    except Exception as exc:
        text = f"<{kind_name(value)}, whose repr raised {type(exc).__name__}>"
    return text if len(text) <= size else f"{text[: size // 2]} ... {text[-size // 2 :]}"


def written(value: Any) -> str:
    """``repr(value)``; of integers with more digits than Python writes, in hex."""
    try:
        return repr(value)
    except ValueError:
        if type(value) is int:
            return hex(value)
        if not isinstance(value, tuple | frozenset):
            raise
        return f"{kind_name(value)}({', '.join(map(written, value))})"
