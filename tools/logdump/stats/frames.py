"""Counts the frames of a log, by kind."""

from __future__ import annotations

from dataclasses import dataclass, field

from eventlog.dump import Finding


@dataclass(slots=True)
class Frames:
    """The log below its records: frames, their sizes, and their problems.

    ``hidden``: frames of encrypted records. ``size``: bytes of all frames; ``on_disk``: of files.
    """

    segments: int = 0
    first_lsn: int = 0
    last_lsn: int = 0
    on_disk: int = 0
    frames: int = 0
    size: int = 0
    hidden: int = 0
    key_id: str = ""
    torn: int = 0
    bits: int = 0
    problems: int = 0
    shown: list[Finding] = field(default_factory=list)
