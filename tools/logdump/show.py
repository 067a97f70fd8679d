"""Formats findings of dump and verify as lines. Nothing from a log is shown unescaped."""

from __future__ import annotations

import json

from eventlog.dump import Finding, Json, Totals
from recovery.text import count, printable

PROBLEMS = {
    1: "torn tail",
    2: "damaged record",
    4: "missing segment",
    8: "bad snapshot",
    16: "gap in LSNs",
    32: "not a log or an unsupported version",
}


_ENCODER = json.JSONEncoder(allow_nan=False)  # json.dumps would make one for each line


def as_line(value: Json) -> str:
    """One line of JSON, pure ASCII and without control characters."""
    return _ENCODER.encode(value)


def finding_line(finding: Finding) -> str:
    """A finding of ``verify`` as one line."""
    return f"{_word(finding.bit)}: {_place(finding.as_json())}{printable(finding.text)}"


def place_line(finding: Finding, place: dict[str, Json]) -> str:
    """The position of a finding, for an examination of the bytes."""
    after = finding.next_frame
    found = f"next sound frame at {after}" if after else "no sound frame after it"
    return (
        f"{printable(str(place['file']))}: sound up to {finding.offset}, {finding.size} bytes "
        f"damaged, {place['bytes_after']} after them, {found}"
    )


def problems(bits: list[int]) -> str:
    """The problems of these bits in a line, for commands with another purpose."""
    what = ", ".join(PROBLEMS[bit] for bit in sorted(set(bits)))
    return f"{count(len(bits), 'problem')}: {what}; `logdump verify` says more"


def summary_line(path: str, totals: Totals) -> str:
    """The verdict of verify, in a line."""
    wrong = [text for bit, text in PROBLEMS.items() if totals.exit_code & bit]
    verdict = ", ".join(wrong) or "sound"
    if totals.encrypted:
        verdict += f"; {count(totals.encrypted, 'record')} encrypted, and not looked into"
    lsns = f", LSN {totals.first_lsn}-{totals.last_lsn}" if totals.records else ""
    return (
        f"{printable(path)}: {verdict}. {count(totals.records, 'record')}{lsns}, of which "
        f"{count(totals.snapshots, 'snapshot')}; {count(totals.segments, 'segment')}"
        f" (exit code {totals.exit_code})"
    )


def _word(bit: Json) -> str:
    return {0: "note", 1: "torn"}.get(bit if isinstance(bit, int) else 2, "DAMAGE")


def _place(item: dict[str, Json]) -> str:
    return f"segment {item['segment']}, offset {item['offset']}: " if item["segment"] else ""
