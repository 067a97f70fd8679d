"""What a seeded bug is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Edit:
    """``old``, which stands in ``file`` exactly once, becomes ``new``."""

    file: str
    old: str
    new: str

    def apply(self, root: Path) -> None:
        """Edit the file in the tree at ``root``; ValueError when ``old`` is not there once."""
        path = root / self.file
        text = path.read_text()
        if text.count(self.old) != 1:
            raise ValueError(f"{self.file} has {text.count(self.old)} times: {self.old!r}")
        path.write_text(text.replace(self.old, self.new))


@dataclass(frozen=True, slots=True)
class Mutant:
    """A bug of the kind that a tired programmer makes.

    ``what`` says what is wrong and what a user would lose. ``tests`` (node ids below tests/) are
    the fastest that must catch it.
    """

    name: str
    what: str
    edits: list[Edit]
    tests: list[str]
