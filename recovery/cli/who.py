"""Who decides something, for the record; and who has a log that somebody else wants."""

from __future__ import annotations

import os
from getpass import getuser

from eventlog import LogLockedError


def who_or_login(who: str | None) -> str:
    """``who``, as it was given; else the login name, or the number of a user who has none."""
    if who is not None:
        return who
    try:
        return getuser()
    except (KeyError, OSError):  # a container without names for its users
        return f"user {os.getuid()}"
    except ImportError:  # no POSIX, and no variable says it
        return ""


def holder(exc: LogLockedError) -> str:
    """Who has the log, and what can be done about it, in words of the commands."""
    owner = f"process {exc.pid} on {exc.host}, since {exc.since}" if exc.pid else "another process"
    return (
        f"{exc.path} is held by {owner}. Nothing was changed. Stop that process first (SIGTERM, if "
        "its agent has stop_on=, loses nothing)"
    )
