"""Small edits of an agent between a crash and the resumption: what each comes to, by kind.

    python -m tests.contract.code.edits [--verbose]     prints the table, and puts it into the docs

Each edit is made after each of five crashes, which are spread over the run. What counts is who was
paid, written to or noted down, whatever the words: twice is wrong. A run that stops is accepted and
run again: then an effect may come twice, if the error has named it.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any
from unittest import mock

from eventlog import EventLog
from recovery import CheckpointManager, CheckpointStore, InDoubtError, RecoverableAgent, Resolution
from recovery.control.resolve import accept, resolve
from recovery.errors import DivergenceError
from recovery.graph import GraphExecutor
from recovery.inspect.status import status
from recovery.stores.memory import MemoryStore
from tests.contract.code.edited_agents import EDITS, Edit, source_of
from tests.support.lives import RUN, Died

POINTS = 5
TASK = {"customer": "ann", "subject": "a late parcel"}

effects: Counter[str] = Counter()


class Fate:
    """How many records the present process has written, and at which one it dies."""

    records = 0
    at = 0
    dead = False

    @classmethod
    def begin(cls, at: int = 0) -> None:
        cls.records, cls.at, cls.dead = 0, at, False


def _append(log: EventLog, *args: Any, **kwargs: Any) -> Any:
    Fate.records += 1
    Fate.dead = Fate.dead or Fate.records == Fate.at
    if Fate.dead:
        raise Died
    return _APPEND(log, *args, **kwargs)


_APPEND = EventLog.append


def _done(what: str) -> str:
    if Fate.dead:
        raise Died
    effects[what] += 1
    return what


def _answer(messages: Iterable[Any]) -> dict[str, Any]:
    known = [str(one.get("content", "")) for one in messages]
    orders = [found for text in known for found in re.findall(r"Order (\d+)", text)]
    verdict = "refund" if len(orders) % 2 else "thank"
    return {"role": "assistant", "content": f"{verdict} after {len(orders)} orders"}


def shop() -> ModuleType:
    """The outside world, as the agents import it."""
    module = ModuleType("shop")
    parts: dict[str, Callable[..., Any]] = {
        "answer": _answer,
        "orders": lambda number: {"number": number, "cents": 100 * int(number)},
        "pages": lambda query: f"pages on {query}",
        "mails": lambda to="ann/1": _done(f"mail {to}"),
        "refunds": lambda order="order-1": _done(f"refund {order}"),
        "tickets": lambda ticket="ticket-1": _done(f"note {ticket}"),
    }
    for name, part in parts.items():
        part.__name__ = name
        setattr(module, name, part)
    return module


def loaded(source: str) -> dict[str, Any]:
    """The agent's module, of this text."""
    sys.modules["shop"] = shop()
    names: dict[str, Any] = {"__name__": "agents_module"}
    exec(compile(source, "agent.py", "exec"), names)  # noqa: S102 - that is what is tested
    return names


def live(source: str, store: CheckpointStore) -> Any:
    """A life of the run with this source."""
    names = loaded(source)
    if "graph" in names:
        executor = GraphExecutor(checkpoint_manager=CheckpointManager(store))
        return asyncio.run(executor.execute(names["graph"], "a claim", {"order": 1}, RUN)).output
    agent = RecoverableAgent(names["agent"], store, max_recoveries=0)
    return asyncio.run(agent.run_with_recovery(TASK, RUN))["result"]


@dataclass(slots=True)
class Tally:
    """What an edit came to, over the crash points."""

    edit: Edit
    resumes: int = 0
    stops: int = 0
    twice: int = 0
    accepted_twice: int = 0  # after `accept`, named by the error
    unsaid: int = 0  # the same, and not named
    lost: int = 0  # effects that the old code and the new one have, and that nobody made
    failed: int = 0
    seen: list[str] = field(default_factory=list)


def crashed(source: str, at: int) -> CheckpointStore:
    """The store of a run that died when it was about to write its ``at``-th record."""
    effects.clear()
    store = CheckpointStore(MemoryStore())
    Fate.begin(at)
    try:
        live(source, store)
    except BaseException:
        if not Fate.dead:
            raise
    return store


def settled(source: str, store: CheckpointStore) -> Any:
    """A life, once what is in doubt is settled as it was."""
    Fate.begin()
    for _ in range(20):
        try:
            return live(source, store)
        except InDoubtError as parked:
            for call in parked.calls:
                resolve(store, RUN, call.lsn, _found(call.tool, call.args))
    raise AssertionError("it stays in doubt")


def _found(tool: str, args: Sequence[Any]) -> Resolution:
    kind = {"refund": "refund", "refunds": "refund", "note_down": "note", "tickets": "note"}
    first = f"{args[0]}" if args else "1"
    what = f"{kind.get(tool, 'mail')} {first}"
    done = [one for one in effects if one == what or (not args and one.startswith(what[:4]))]
    return Resolution.outcome(done[0]) if done else Resolution.retry()


def resume(tally: Tally, source: str, store: CheckpointStore) -> None:
    """The edited code takes the run up; what came of it is added to the tally."""
    tally.resumes += 1
    try:
        settled(source, store)
    except DivergenceError as stopped:
        tally.stops += 1
        tally.seen.append(str(stopped))
        twice = Counter(what for what, count in effects.items() if count > 1)
        tally.twice += len(twice)
        accept(store, RUN, why="the new code is right")
        _accepted(tally, source, store, str(stopped))
    except Exception as exc:
        tally.failed += 1
        tally.seen.append(f"{type(exc).__name__}: {exc}")
    else:
        tally.twice += sum(count > 1 for count in effects.values())


def _accepted(tally: Tally, source: str, store: CheckpointStore, said: str) -> None:
    for _ in range(20):
        try:
            settled(source, store)
            break
        except DivergenceError as again:
            said += str(again)
            if again.in_doubt:
                doubt = status(store, RUN).in_doubt
                call = next(one for one in doubt if one.lsn == again.in_doubt)
                resolve(store, RUN, call.lsn, _found(call.tool, call.arguments[0]))
            else:
                accept(store, RUN, why="and again")
        except Exception as exc:
            tally.failed += 1
            tally.seen.append(f"after accept: {type(exc).__name__}: {exc}")
            return
    for what in (what for what, count in effects.items() if count > 1):
        named = what.split()[-1] in said or ("executed again" in said and "()" in said)
        tally.accepted_twice += named
        tally.unsaid += not named
        if not named:
            tally.seen.append(f"after accept, {what} twice")


def undisturbed(source: str) -> tuple[set[str], int]:
    """The effects of a run that never crashes, and how many records it writes."""
    effects.clear()
    Fate.begin()
    live(source, CheckpointStore(MemoryStore()))
    return {*effects}, Fate.records


def points(source: str) -> list[int]:
    """Records at which a run dies, spread over it."""
    undisturbed(source)
    return [
        2 + round((Fate.records - 2) * (2 * number + 1) / (2 * POINTS)) for number in range(POINTS)
    ]


def sweep(edits: Iterable[Edit] = EDITS, points_each: int = POINTS) -> list[Tally]:
    """Make each edit after each crash, or after so many of them, others for each edit."""
    tallies = []
    with mock.patch.object(EventLog, "append", _append):
        where = {agent: points(source_of(agent)) for agent in ("support", "claims")}
        for number, edit in enumerate(edits):
            tally = Tally(edit)
            wanted = undisturbed(edit.source)[0] & undisturbed(edit.applied())[0]
            turned = where[edit.agent][number % POINTS :] + where[edit.agent][: number % POINTS]
            for at in turned[:points_each]:
                resume(tally, edit.applied(), crashed(edit.source, at))
                tally.lost += len(wanted - {*effects})
            tallies.append(tally)
    return tallies


def table(tallies: Iterable[Tally]) -> str:
    """A row for each kind of edit, and one for all."""
    rows: dict[str, list[Tally]] = {}
    for tally in tallies:
        rows.setdefault(tally.edit.kind, []).append(tally)
    heads = (
        "what is edited",
        "edits",
        "resumed",
        "stopped",
        "share",
        "effects twice",
        "after `accept`: twice, announced",
        "unannounced",
        "effects lost",
    )
    lines = [f"| {' | '.join(heads)} |", "|---" + "|--:" * (len(heads) - 1) + "|"]
    every = [one for group in rows.values() for one in group]
    for kind, group in [*rows.items(), ("all", every)]:
        resumes, stops = (sum(getattr(one, name) for one in group) for name in ("resumes", "stops"))
        counts = (
            sum(getattr(one, name) for one in group)
            for name in ("twice", "accepted_twice", "unsaid", "lost")
        )
        cells = (kind, len(group), resumes, stops, f"{stops / resumes:.0%}", *counts)
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def main() -> int:
    """Print the table; docs/divergence.md has its sums."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--verbose", action="store_true", help="each edit, and what stopped")
    options = parser.parse_args()
    logging.disable()
    tallies = sweep()
    if options.verbose:
        for one in tallies:
            counts = (
                f"twice={one.twice} after={one.accepted_twice} unsaid={one.unsaid} lost={one.lost}"
            )
            what = f"failed={one.failed}  {one.edit.kind}: {one.edit.what}"
            print(f"{one.stops}/{one.resumes} {counts} {what}")
            for seen in dict.fromkeys(one.seen):
                print("    " + seen.replace("\n", "\n    ")[:900])
    print(table(tallies))
    bad = any(one.twice or one.unsaid or one.lost or one.failed for one in tallies)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
