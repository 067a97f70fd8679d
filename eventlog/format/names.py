"""Makes and parses the names of a log's files. Pure."""

from __future__ import annotations

from eventlog.format.frame import NUMBER_MAX

SUFFIX = ".seg"
MARK_NAME = "MARK"


def segment_name(number: int) -> str:
    """The file name of a segment."""
    return f"{number:08d}{SUFFIX}"


def segment_number(name: str) -> int | None:
    """The number in a segment's file name, or None for any other name."""
    stem = name.removesuffix(SUFFIX)
    if stem == name or not 8 <= len(stem) <= 10 or not (stem.isascii() and stem.isdigit()):
        return None
    number = int(stem)
    return number if 0 < number <= NUMBER_MAX and segment_name(number) == name else None


def is_unfinished(name: str) -> bool:
    """Whether it is the name of an unfinished segment, which does not count."""
    stem, _, salt = name.removesuffix(".new").rpartition(".")
    return name.endswith(".new") and len(salt) == 8 and segment_number(stem) is not None
