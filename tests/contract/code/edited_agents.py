"""Two agents as they were when their runs began, and small edits of them: see ``edited/``."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "edited"


@dataclass(frozen=True, slots=True)
class Edit:
    """Each change takes one text out of the source of ``agent``, and puts another one in."""

    kind: str
    agent: str
    what: str
    changes: tuple[tuple[str, str], ...]

    @property
    def source(self) -> str:
        return source_of(self.agent)

    def applied(self) -> str:
        text = self.source
        for old, new in self.changes:
            assert not old or text.count(old) == 1, (self.what, old)
            text = text.replace(old, new) if old else text + new
        return text


def source_of(agent: str) -> str:
    return (FOLDER / f"{agent}.txt").read_text(encoding="utf-8")


def edits() -> tuple[Edit, ...]:
    """All edits of the file."""
    text = (FOLDER / "edits.txt").read_text(encoding="utf-8")
    blocks = [block.rstrip("\n").split("\n") for block in text.split("\n# ")[1:]]
    return tuple(_edit(head, lines) for head, *lines in blocks)


def _edit(head: str, lines: list[str]) -> Edit:
    kind, agent, what = head.split(" | ")
    return Edit(kind, agent, what, _changes(lines))


def _changes(lines: list[str]) -> tuple[tuple[str, str], ...]:
    found: list[tuple[str, str]] = []
    taken = ""
    for sign, group in itertools.groupby(filter(None, lines), lambda line: line[0]):
        text = "\n".join(line[1:] for line in group)
        if sign == "-":
            taken = text
        else:
            found.append((taken, text))
            taken = ""
    return tuple(found)


EDITS = edits()
