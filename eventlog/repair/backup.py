"""Copies a log beside itself, before a repair changes anything in it."""

from __future__ import annotations

import os
import re

from eventlog.errors import LogError
from eventlog.files.api import Directory, Files, write_all

_PIECE = 1 << 20
_NUMBERS = range(1, 10_000)


def back_up(files: Files, path: str) -> str:
    """Copy directory ``path``, with everything in it, to ``path.~1~``, or ``.~2~``, and so on.

    The copy gets that name when it is complete and durable. No run can have such a name, because
    of the tilde. Raises OSError, and LogError for special files; the partial copy is removed.
    """
    backup = free_name(files, path)
    unfinished = f"{backup}.part"
    try:
        copy_directory(files, path, unfinished)
        files.move(unfinished, backup)
    except BaseException:
        files.delete(unfinished)  # a full disk needs the space
        raise
    return backup


def free_name(files: Files, path: str) -> str:
    """The path of the next backup of a log."""
    parent, name = os.path.split(path)
    taken = set(files.list_directories(parent or "."))
    for number in _NUMBERS:
        found = f"{name}.~{number}~"
        if found not in taken and f"{found}.part" not in taken:
            return f"{path}.~{number}~"
    raise LogError(f"{path} has {len(_NUMBERS)} backups beside it. Remove those of no use.")


def backup_of(name: str) -> str:
    """The name of the log of which the directory ``name`` is a backup; "" for any other name."""
    found = re.fullmatch(r"(.+)\.~[0-9]+~", name)
    return found[1] if found else ""


def copy_directory(files: Files, path: str, to: str) -> None:
    """Copy files, and directories in it; durable when this returns."""
    inside = files.list_directories(path)
    source, target = files.open_directory(path), files.make_directory(to)
    try:
        for name in source.names():
            if name not in inside:
                _copy(source, target, name)
        target.sync()
    finally:
        source.close()
        target.close()
    for name in inside:
        copy_directory(files, f"{path}/{name}", f"{to}/{name}")


def _copy(source: Directory, target: Directory, name: str) -> None:
    file = source.open(name)
    try:
        copy = target.open(name, write=True, create=True)
        try:
            offset = 0
            while piece := file.pread(_PIECE, offset):
                write_all(copy, piece, offset)
                offset += len(piece)
            copy.sync()
        finally:
            copy.close()
    finally:
        file.close()
