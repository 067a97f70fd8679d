"""What dump and verify found, as lines for a person. Nothing from a log reaches them raw."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterator
from unicodedata import east_asian_width

from eventlog.dump import Finding, Json, Totals

KIND_WIDTH = 14
VALUE_WIDTH_MIN = 20
NARROW = 110  # columns of a terminal that leave little for the value
PREVIEW_SIZE = 12  # bytes shown of a binary value

PROBLEMS = {
    1: "torn tail",
    2: "damaged record",
    4: "missing segment",
    8: "bad snapshot",
    16: "gap in LSNs",
    32: "not a log or an unsupported version",
}


def printable(text: str) -> str:
    """``text`` with everything escaped that a terminal might act upon.

    Control characters (C0, C1, escape sequences), line ends, marks that reverse the direction of
    text, surrogates: all that Unicode calls not printable.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escape(c) for c in text)


def as_line(value: Json) -> str:
    """One line of JSON, pure ASCII and without control characters."""
    return json.dumps(value, allow_nan=False)


def heading(width: int | None) -> str:
    """The line above the lines of records."""
    when = f"{'TIME (UTC)':<{_time_width(width)}}"
    return f"{'LSN':>9}  {when}  {'KIND':<{KIND_WIDTH}}  {'SIZE':>8}  VALUE"


def record_line(item: dict[str, Json], width: int | None) -> str:
    """An object of ``dump`` as one line of at most ``width`` columns (None: no limit)."""
    if "lsn" not in item:
        return f"{_word(item['bit']):>9}  {_place(item)}{printable(str(item['text']))}"
    if "encrypted" in item:
        start = f"{item['lsn']:>9}  {'-':<{_time_width(width)}}  {'-':<{KIND_WIDTH}}  "
        return f"{start}{item['size']:>8}  encrypted under the key {item['encrypted']}"
    kind = printable(str(item["kind"]))
    when = str(item["time"]).replace("T", " ")[:23][-_time_width(width) :]
    start = f"{item['lsn']:>9}  {when}  {kind:<{KIND_WIDTH}}  {item['size']:>8}  "
    if width is not None:
        width = max(VALUE_WIDTH_MIN, width - columns(start))
    return start + short(item["body"], width)


def finding_line(finding: Finding) -> str:
    """A finding of ``verify`` as one line."""
    return f"{_word(finding.bit)}: {_place(finding.as_json())}{printable(finding.text)}"


def summary_line(path: str, totals: Totals) -> str:
    """What verify came to."""
    wrong = [text for bit, text in PROBLEMS.items() if totals.exit_code & bit]
    verdict = ", ".join(wrong) or "sound"
    if totals.encrypted:
        verdict += f"; {_count(totals.encrypted, 'record')} encrypted, and not looked into"
    lsns = f", LSN {totals.first_lsn}-{totals.last_lsn}" if totals.records else ""
    return (
        f"{printable(path)}: {verdict}. {_count(totals.records, 'record')}{lsns}, of which "
        f"{_count(totals.snapshots, 'snapshot')}; {_count(totals.segments, 'segment')}"
        f" (exit code {totals.exit_code})"
    )


def short(value: Json, width: int | None) -> str:
    """A JSON value of ``dump`` on one line, cut at ``width``."""
    parts, length = [], 0
    for part in _pieces(value):
        parts.append(part)
        length += len(part)
        if width is not None and length > width:
            break
    text = "".join(parts)
    if width is None or columns(text) <= width:
        return text
    text = text[: width - 3]
    while columns(text) > width - 3:
        text = text[:-1]
    return text + "..."


def columns(text: str) -> int:
    """How many columns of a terminal ``text`` takes: East Asian characters take two."""
    return len(text) if text.isascii() else len(text) + sum(map(_is_wide, text))


def _pieces(value: Json) -> Iterator[str]:
    if isinstance(value, str):
        yield _quoted(value)
    elif isinstance(value, list):
        yield "["
        for i, part in enumerate(value):
            yield ", " if i else ""
            yield from _pieces(part)
        yield "]"
    elif isinstance(value, dict):
        tag = next(iter(value), "")
        if tag.startswith("$"):
            yield from _tagged(tag, value[tag])
            return
        yield "{"
        for i, (key, part) in enumerate(value.items()):
            yield (", " if i else "") + _quoted(key) + ": "
            yield from _pieces(part)
        yield "}"
    else:
        yield json.dumps(value)


def _tagged(tag: str, value: Json) -> Iterator[str]:
    if tag == "$map" and isinstance(value, list):
        yield "{"
        for i, pair in enumerate(value):
            key, part = pair if isinstance(pair, list) else (pair, None)
            yield ", " if i else ""
            yield from _pieces(key)
            yield ": "
            yield from _pieces(part)
        yield "}"
    elif tag == "$ext" and isinstance(value, list):
        yield f"ext {value[0]} "
        yield _bytes(str(value[1]))
    elif tag == "$float":
        yield str(value)
    else:
        yield ("not msgpack: " if tag == "$msgpack" else "") + _bytes(str(value))


def _quoted(text: str) -> str:
    """As JSON would have it, but with letters of all languages as they are."""
    return printable(json.dumps(text, ensure_ascii=False))


def _bytes(base64: str) -> str:
    data = b64decode(base64)
    more = "..." if len(data) > PREVIEW_SIZE else ""
    return f"<{_count(len(data), 'byte')} {data[:PREVIEW_SIZE].hex()}{more}>"


def _is_wide(char: str) -> bool:
    return east_asian_width(char) in "WF"


def _escape(char: str) -> str:
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _time_width(width: int | None) -> int:
    return 23 if width is None or width >= NARROW else 12  # without the date


def _word(bit: Json) -> str:
    return {0: "note", 1: "torn"}.get(bit if isinstance(bit, int) else 2, "DAMAGE")


def _place(item: dict[str, Json]) -> str:
    return f"segment {item['segment']}, offset {item['offset']}: " if item["segment"] else ""


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
