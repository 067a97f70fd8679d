"""The report: a Markdown file of sections, each with the key of the call that wrote it."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

_MARK = re.compile(r"^<!-- ([0-9a-f]{32}) -->\n", re.MULTILINE)


def section(title: str, text: str) -> str:
    """A section as it is in the file, without its key."""
    return f"## {' '.join(title.split())}\n\n{text.strip()}\n".replace("<!--", "&lt;!--")


def sections(path: Path) -> list[tuple[str, str]]:
    """Key and text of each section that the file has."""
    if not path.exists():
        return []
    parts = _MARK.split(path.read_text(encoding="utf-8"))
    return [(key, text.strip() + "\n") for key, text in zip(parts[1::2], parts[2::2], strict=True)]


def add(path: Path, key: str, title: str, text: str) -> None:
    """Append a section. A crash leaves the file with all of it or without it."""
    before = path.read_text(encoding="utf-8") if path.exists() else "# Report\n\n"
    after = f"{before}<!-- {key} -->\n{section(title, text)}\n"
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", dir=path.parent, prefix=".report-", delete=False
    ) as file:
        file.write(after)
        file.flush()
        os.fsync(file.fileno())
    Path(file.name).replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
