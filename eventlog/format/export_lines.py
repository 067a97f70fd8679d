"""Encodes and decodes the lines of an export. Pure; docs/format.md is the spec."""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from dataclasses import dataclass
from typing import Any

import msgpack

from eventlog.errors import LogError
from eventlog.format.frame import LSN_MAX, PAYLOAD_SIZE_MAX
from eventlog.format.json_values import Json, from_json, to_json
from eventlog.format.record import KIND_SIZE_MAX, Packed

FORMAT, VERSION = "agent-eventlog", 1

# A larger body is written as base64: as JSON it would take many times the memory.
JSON_SIZE_MAX = 4 << 20
# No line is longer: the largest possible body in base64, and room for the other fields.
LINE_SIZE_MAX = PAYLOAD_SIZE_MAX * 3 // 2

_TIME_MIN, _TIME_MAX = -(1 << 63), (1 << 64) - 1  # what msgpack has room for
_NAME = re.compile(r"([a-z][a-z0-9_-]{0,63})?")  # becomes the name of a directory


class BadExportError(LogError):
    """The input of an import is not a whole, unchanged export. Nothing of it was kept.

    ``line``: the number of the line, from 1.
    """

    def __init__(self, line: int, what: str) -> None:
        self.line, self.what = line, what
        super().__init__(f"line {line} of the export: {what}. Nothing was kept.")


@dataclass(frozen=True, slots=True)
class Line:
    """A record or snapshot as an export has it. ``batch``: first and last LSN of its batch."""

    lsn: int
    batch: tuple[int, int]
    time_ns: int
    kind: str
    packed: Packed
    snapshot: bool


def as_text(line: dict[str, Json]) -> str:
    """One line, without its end: pure ASCII, the keys in their order."""
    return json.dumps(line, separators=(",", ":"), allow_nan=False)


def head() -> dict[str, Json]:
    """The first line."""
    return {"type": "export", "format": FORMAT, "version": VERSION}


def log_line(name: str, oldest_lsn: int) -> dict[str, Json]:
    """What comes before the records of a log."""
    return {"type": "log", "name": name, "oldest_lsn": oldest_lsn}


def record_line(line: Line) -> dict[str, Json]:
    """A record."""
    made: dict[str, Json] = {"type": "snapshot" if line.snapshot else "record", "lsn": line.lsn}
    if line.batch != (line.lsn, line.lsn):
        made["batch"] = list(line.batch)
    return made | {"time_ns": line.time_ns, "kind": line.kind, "body": body_as_json(line.packed)}


def lost_line(first_lsn: int, last_lsn: int, snapshot: bool, text: str) -> dict[str, Json]:
    """A line for lost records; with ``snapshot``, for one lost snapshot."""
    made: dict[str, Json] = {"type": "lost", "first_lsn": first_lsn, "last_lsn": last_lsn}
    return made | ({"snapshot": True} if snapshot else {}) | {"text": text}


def end_line(records: int, lost: int, digest: str) -> dict[str, Json]:
    """The last line; ``digest`` is SHA-256 of all lines before it, with their ends, in hex."""
    return {"type": "end", "records": records, "lost": lost, "sha256": digest}


def body_as_json(packed: bytes) -> Json:
    """A body as ``to_json`` has it where that gives the same bytes again, else in base64."""
    if len(packed) <= JSON_SIZE_MAX:
        value = to_json(packed)
        if _packed(value) == packed:
            return value
    return {"$msgpack": b64encode(packed).decode("ascii")}


def _packed(value: Json) -> bytes | None:
    """The document whose JSON is ``value``; None when there is none."""
    try:
        if isinstance(value, dict) and value.keys() == {"$msgpack"}:
            return b64decode(str(value["$msgpack"]), validate=True)
        return bytes(msgpack.packb(from_json(value)))
    except Exception:  # the JSON of an import may hold anything
        return None


def parse(number: int, text: bytes) -> dict[str, Any]:
    """A line as an object; raises BadExportError when it is not one."""
    if len(text) > LINE_SIZE_MAX:
        raise BadExportError(number, f"it is longer than {LINE_SIZE_MAX} bytes, which none is")
    if not text:
        raise BadExportError(number, "the export ends before its last line: it was cut off")
    if not text.endswith(b"\n"):
        raise BadExportError(number, "the export was cut off in the middle of this line")
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        line = None
    if type(line) is not dict or type(line.get("type")) is not str:
        raise BadExportError(number, "this is no line of an export, which `logdump export` writes")
    return line


def check_head(number: int, line: dict[str, Any]) -> None:
    """Raise unless it is the first line of an export of this version."""
    if line.get("type") != "export" or line.get("format") != FORMAT:
        raise BadExportError(number, "this is no export, which `logdump export` writes")
    if "redacted" in line:
        raise BadExportError(
            number, "it is redacted: it can be replayed in a test, and is no run to be continued"
        )
    if line.get("version") != VERSION:
        raise BadExportError(
            number,
            f"an export of version {line.get('version')!r:.20}; this program reads version "
            f"{VERSION}: use the one that comes with the newer library",
        )


def parse_log(number: int, line: dict[str, Any]) -> tuple[str, int]:
    """Name and oldest LSN of a log."""
    name = line.get("name")
    if type(name) is not str or not _NAME.fullmatch(name):
        raise BadExportError(number, f"{name!r:.80} cannot be the name of a log")
    return name, integer(number, line, "oldest_lsn", 1, LSN_MAX // 2)


def parse_record(number: int, line: dict[str, Any]) -> Line:
    """A record or snapshot."""
    lsn = integer(number, line, "lsn", 1, LSN_MAX // 2)
    kind, batch = line.get("kind"), line.get("batch", [lsn, lsn])
    if type(kind) is not str or not 0 < len(kind) <= KIND_SIZE_MAX:
        raise BadExportError(number, f"kind is 1 to {KIND_SIZE_MAX} characters")
    match batch:
        case [int(first), int(last)] if 0 < first <= lsn <= last <= LSN_MAX // 2:
            pass
        case _:
            raise BadExportError(number, f"LSN {lsn} is not in the batch {batch!r:.80}")
    packed = _packed(line["body"]) if "body" in line else None
    if packed is None or len(packed) > PAYLOAD_SIZE_MAX:
        raise BadExportError(number, "body is none that a record can have")
    return Line(
        lsn,
        (first, last),
        integer(number, line, "time_ns", _TIME_MIN, _TIME_MAX),
        kind,
        Packed(packed),
        line["type"] == "snapshot",
    )


def integer(number: int, line: dict[str, Any], name: str, low: int, high: int) -> int:
    """A field that is an integer within bounds."""
    value = line.get(name)
    if type(value) is not int or not low <= value <= high:
        raise BadExportError(number, f"{name} is no number from {low} to {high}")
    return value
