"""Reads the keys of encrypted logs from a file or the environment."""

from __future__ import annotations

import os

from eventlog.encryption import Encryption, parse_keys, read_key_file

_taken: dict[str, str] = {}  # removed from the environment


def take_from_environment() -> None:
    """At the start of a command: remove the key from the environment, which every process that a
    tool starts inherits."""
    _taken.clear()
    if (text := os.environ.pop("EVENTLOG_KEY", None)) is not None:
        _taken["EVENTLOG_KEY"] = text


class KeyFileError(Exception):
    """The keys are not where the user said."""


def encryption_from(key_file: str | None, *, reading: bool) -> Encryption | None:
    """The keys in ``key_file``, $EVENTLOG_KEY or the file $EVENTLOG_KEY_FILE; None without any.

    New records are encrypted under the last key with an id. ``reading``: unencrypted logs are
    accepted as well. A writer with a key refuses them, because the other programs that read the log
    would not have the key.
    """
    where, text = "$EVENTLOG_KEY", _taken.get("EVENTLOG_KEY")
    path = key_file or (os.environ.get("EVENTLOG_KEY_FILE") if text is None else None)
    try:
        if path is not None:
            where = path
            text = read_key_file(path).decode("utf-8")
        if text is None:
            return None
        keys = parse_keys(text)
    except (OSError, ValueError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else exc
        if isinstance(exc, UnicodeDecodeError):  # its text would show a part of the key
            reason = "not text"
        raise KeyFileError(f"no key was read from {where}: {reason}") from None
    lines = [line.split() for line in text.splitlines()]
    ids = [words[0] for words in lines if len(words) == 2 and words[0][:1] != "#"]
    try:
        return Encryption(keys, ids[-1] if ids else "1", accept_clear=reading)
    except ImportError as exc:  # it names the extra
        raise KeyFileError(str(exc)) from None
