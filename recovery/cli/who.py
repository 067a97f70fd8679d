"""Names who decides something, for the record; and the process that has a locked log."""

from __future__ import annotations

import os
from getpass import getuser

from eventlog import LogLockedError


def who_or_login(who: str | None) -> str:
    """``who``, if it was given; else the login name, or the number of a user without one."""
    if who is not None:
        return who
    try:
        return getuser()
    except (KeyError, OSError):  # a container without user names
        return f"user {os.getuid()}"
    except ImportError:  # no POSIX, and no such variable
        return ""


def holder(exc: LogLockedError) -> str:
    """The process that has the log, and the commands that help."""
    owner = f"process {exc.pid} on {exc.host}, since {exc.since}" if exc.pid else "another process"
    return (
        f"{exc.path} is held by {owner}. Nothing was changed. Stop that process first (SIGTERM, if "
        "its agent has stop_on=, loses nothing)"
    )


def in_words(exc: Exception) -> str:
    """The text of an error, in words for a command line."""
    return f"{holder(exc)}." if isinstance(exc, LogLockedError) else str(exc)
