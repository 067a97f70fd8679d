"""Processes that own logs on a server: this one, and those that are known to be dead."""

from __future__ import annotations

import os
import secrets
import socket
import time
from pathlib import Path

from eventlog.remote.log_server import Head, LostOwner, Owner

NAMED_MAX = 3


def this_process() -> Owner:
    """This process, for one claim: the token distinguishes it from every other claim."""
    return Owner(os.getpid(), socket.gethostname()[:255], machine(), secrets.token_hex(8))


def machine() -> str:
    """What process ids belong to: this boot of this machine, and their namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        return f"{boot.strip()}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def is_dead(owner: Owner | LostOwner) -> bool:
    """Whether the owner is certainly dead: a process of this machine that does not exist."""
    if not owner.machine or owner.machine != machine():
        return False
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass
    return False


def former_owners(head: Head) -> str:
    """Owners whose lease ended before they released the log, in words; "" if none may be alive."""
    lost = list(head.lost)
    if head.is_held and not head.is_alive:
        lost.append(LostOwner(head.owner.pid, head.owner.host, head.owner.machine, head.since_ns))
    alive = [_named(one) for one in reversed(lost) if not is_dead(one)]
    more = [f"{len(alive) - NAMED_MAX} more"] * (len(alive) > NAMED_MAX)
    return " or ".join([*alive[:NAMED_MAX], *more])


def _named(lost: LostOwner) -> str:
    if not lost.pid:
        return "an earlier process (lease expired)"
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(lost.since_ns / 1e9))
    return f"process {lost.pid} on {lost.host} (owner since {since}, lease expired)"
