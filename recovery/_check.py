"""What comes of looking at something: a line of what ``recovery doctor`` tells."""

from __future__ import annotations

from typing import Literal

from eventlog._dataclass import dataclass

Level = Literal["ok", "warning", "problem"]


@dataclass(frozen=True, slots=True)
class Check:
    """Something that was looked at. ``todo``: what to do about it, where that is anything."""

    name: str
    level: Level
    text: str
    todo: str = ""
