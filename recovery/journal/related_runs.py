"""Defines the links of runs: which run started which, as their logs have it. Pure."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Literal

from recovery.errors import RecoveryError
from recovery.journal.events import RunStarted
from recovery.text import shorten

RUN_ID_SIZE_MAX = 128  # see stores.protocol.RUN_ID
_NAME_SIZE_MAX = 32
RETRIED = "retried by its LSN "  # then the LSN of the decision in the parent's log
# The task of a run without an agent function: an integration records a conversation. Its program
# resumes it by opening it again.
CONVERSATION = {"hive": "conversation"}
CALL_JOURNAL = {"journal": "calls"}  # the same of a journal of calls
_KEY_SIZE = 16  # hex digits: 64 bits, which no two calls of a store will share

ChildState = Literal["open", "finished", "failed", "cancelled"]


@dataclass(frozen=True, slots=True)
class ParentRun:
    """The run that started a child run: ``run_id`` (its ``uid``), by the call in record ``lsn``."""

    run_id: str
    uid: str
    lsn: int

    @classmethod
    def of(cls, started: RunStarted | None) -> ParentRun | None:
        """The link in a run's first record; RecoveryError when it makes no sense."""
        link = started.parent if started is not None else None
        match link:
            case None:
                return None
            case {"run_id": str(run_id), "uid": str(uid), "lsn": int(lsn)}:
                return cls(run_id, uid, lsn)
        raise RecoveryError(f"its parent is {shorten(link, 100)}, which is no link to a run")

    def packable(self) -> dict[str, str | int]:
        """The link as a value for RunStarted."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class ChildRun:
    """A child run as its parent's log knows it.

    ``agent`` is the name of its agent function and ``name`` the one that the call gave it (both
    empty where the log has only a digest of the arguments); ``call`` the LSN of the parent's call;
    ``state`` of that call: "open", "finished" (or resolved with an outcome), "failed", or
    "cancelled" by the parent's agent, which continued without it.
    """

    run_id: str
    agent: str
    name: str
    call: int
    state: ChildState


def child_run_id(parent: str, agent: str, key: str) -> str:
    """The run id of a child: equal for equal calls, and different for different calls.

    ``key`` is the call's idempotency key; its digits make the id unique. The prefix is for people,
    and is cut to the room in a run id.
    """
    name = re.sub(r"[^A-Za-z0-9_.@=-]", "_", agent)[:_NAME_SIZE_MAX] or "_"
    tail = f"+{name}-{key[:_KEY_SIZE]}"
    return parent[: RUN_ID_SIZE_MAX - len(tail)] + tail
