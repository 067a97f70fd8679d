"""The documents of a directory: text files, within bounds, by names that can be told to a model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DOCUMENTS_MAX = 24
SIZE_MAX = 16 << 10  # bytes of a document that are read
LOOKED_AT_MAX = 5000  # files, in a directory that is mostly something else


def listing(directory: Path) -> list[dict[str, Any]]:
    """Name and size of each document, in order. At most DOCUMENTS_MAX of them."""
    found = []
    for path in _files(directory):
        name = str(path.relative_to(directory))
        if _can_be_told(name) and _is_text(path):
            found.append({"name": name, "size": path.stat().st_size})
            if len(found) == DOCUMENTS_MAX:
                break
    return found


def read(directory: Path, name: str) -> str:
    """The first SIZE_MAX bytes of a document, as text. Only what is listed can be read."""
    if name not in {document["name"] for document in listing(directory)}:
        raise FileNotFoundError(f"there is no document {name!r}")
    with (directory / name).open("rb") as file:
        data = file.read(SIZE_MAX + 1)
    text = data[:SIZE_MAX].decode("utf-8", "replace")
    return text if len(data) <= SIZE_MAX else f"{text}\n[cut off after {SIZE_MAX} bytes]"


def _files(directory: Path) -> Iterator[Path]:
    """Regular files under the directory, in order; hidden ones and links are left out."""
    looked_at = 0
    for folder, folders, names in os.walk(directory):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            looked_at += 1
            if looked_at > LOOKED_AT_MAX:
                return
            path = Path(folder, name)
            if not name.startswith(".") and path.is_file() and not path.is_symlink():
                yield path


def _can_be_told(name: str) -> bool:
    try:
        name.encode()  # a file name is bytes, and need not be text
    except UnicodeEncodeError:
        return False
    return name.isprintable()


def _is_text(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return b"\0" not in file.read(SIZE_MAX)
    except OSError:
        return True  # reading it will say what is wrong
