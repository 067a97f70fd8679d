"""Which run started which, as their logs have it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, Literal

from eventlog._dataclass import dataclass
from recovery._errors import RecoveryError
from recovery._events import (
    CallAbandoned,
    CallFailed,
    CallIntended,
    CallResolved,
    CallRetried,
    CallReturned,
    ChildStarted,
    Event,
    RunStarted,
)
from recovery._shorten import shorten

RUN_ID_SIZE_MAX = 128  # see stores.protocol.RUN_ID
_NAME_SIZE_MAX = 32
RETRIED = "retried by its LSN "  # then the LSN, in the parent's log, of somebody's decision
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
    empty where the log has the arguments by digest alone); ``call`` the LSN of the parent's call;
    ``state`` what became of that: "open", "finished" (or resolved with an outcome), "failed", or
    "cancelled" by the parent's agent, which went on without it.
    """

    run_id: str
    agent: str
    name: str
    call: int
    state: ChildState


def child_run_id(parent: str, agent: str, key: str) -> str:
    """The run id of a child: the same whenever the call is the same, and of no other call.

    ``key`` is the call's idempotency key. What makes it unique is its digits; what stands before
    them is for people, and cut where a run id has no room for it.
    """
    name = re.sub(r"[^A-Za-z0-9_.@=-]", "_", agent)[:_NAME_SIZE_MAX] or "_"
    tail = f"+{name}-{key[:_KEY_SIZE]}"
    return parent[: RUN_ID_SIZE_MAX - len(tail)] + tail


def children_of(events: Iterable[tuple[int, Event | None]]) -> list[ChildRun]:
    """The children in (LSN, event) of a run's log, in their order."""
    made: dict[int, CallIntended] = {}
    begun: dict[int, str] = {}
    state: dict[int, ChildState] = {}
    for lsn, event in events:
        match event:
            case CallIntended(child=str(child)) if child:
                made[lsn] = event
            case ChildStarted(call=call, run_id=child):
                begun[call] = child
            case CallReturned(call=call) | CallResolved(call=call, how="outcome"):
                state[call] = "finished"
            case CallFailed(call=call) | CallResolved(call=call, how="fail"):
                state[call] = "failed"
            case CallAbandoned(call=call, why="cancelled", went_on=True):
                state[call] = "cancelled"
            case CallResolved(call=call) | CallRetried(call=call):
                state[call] = "open"
    found = []
    for lsn, intent in made.items():
        agent = name = ""
        match intent.args:
            case [[str(agent), _, str(name)], _]:
                pass
        child = begun.get(lsn, intent.child)
        found.append(ChildRun(child, agent, name, lsn, state.get(lsn, "open")))
    return found


class Retries:
    """The newest decision in the parent to retry this run, which its failed call was resolved by.

    Each counts once. They come in the order of the parent's log, so that the newest is enough.
    """

    name, wants = "retries", frozenset[type[Event]]((CallResolved,))

    def __init__(self) -> None:
        self.newest = ("", "")  # who and why

    def restore(self, carried: Any) -> None:
        """See Tally.restore."""
        who, why = carried
        self.newest = str(who), str(why)

    def observe(self, lsn: int, time_ns: int, event: Event) -> None:
        """See Tally.observe."""
        match event:
            case CallResolved(how="retry", who=who, why=why):
                if who.startswith("run ") and why.startswith(RETRIED):
                    self.newest = who, why

    def carry(self) -> Any:
        """See Tally.carry."""
        return list(self.newest) if self.newest[0] else None
