"""Who decides something, for the record."""

from __future__ import annotations

import os
from getpass import getuser


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
