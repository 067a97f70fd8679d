"""What is outside of a process: what its tools have done, and people who look after its runs."""

from __future__ import annotations

import asyncio
import random
import time
import zlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from eventlog import LogError
from eventlog.testing import Crash
from recovery import Call, RecoveryError, Resolution, current_call
from recovery.agent.checkpoint_store import CheckpointStore
from recovery.control.send import _asking, approve, deny, pending, signal
from recovery.declare.scope import current_scope
from recovery.inspect.status import status
from tests.model import language as l
from tests.model import values as v
from tests.model.schedule import Schedule, Signal

RUN = "run"
LAMBDA = "<lambda>"  # the name of a tool that has none
STUMBLED = "agent "  # what an agent function asks before it raises
SIGNALS_MAX = 60  # that people send beyond the schedule
PATIENCE = 2  # so often a person says that a call is to be made again


class Died(Crash, SystemExit):
    """The process died here. A SystemExit, for which an event loop stops at once."""


@dataclass(frozen=True)
class Done:
    """Something done outside: by which tool, with what, in which call (its idempotency key).
    ``calls``: the LSNs of that call and of those around it, in the run itself."""

    label: str
    key: str
    tool: str
    arg: str
    calls: tuple[int, ...] = ()  # the innermost last

    @property
    def lsn(self) -> int:
        """Of the call; 0 for one of another run."""
        return (0, *self.calls)[-1]


@dataclass
class World:
    """All lives of a run act on one world."""

    program: l.Program
    schedule: Schedule
    done: list[Done] = field(default_factory=list)
    replies: dict[str, str] = field(default_factory=dict)  # by idempotency key
    counts: Counter[str] = field(default_factory=Counter)
    askers: dict[str, set[str]] = field(default_factory=dict)  # the calls that were counted
    asked_in: dict[str, set[int]] = field(default_factory=dict)  # and in which lives
    settled: Counter[str] = field(default_factory=Counter)
    given_up: set[str] = field(default_factory=set)
    asked_about: set[str] = field(default_factory=set)  # tools of whose calls somebody was asked
    found: set[str] = field(default_factory=set)  # keys of calls that have another one now
    yes: dict[str, tuple[str, str]] = field(default_factory=dict)  # approved: tool and arguments
    sent: Counter[str] = field(default_factory=Counter)
    planned: set[int] = field(default_factory=set)
    foreign: set[str] = field(default_factory=set)  # keys of another run than this fork
    acknowledged: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)  # rules
    process: Any = None  # that is alive
    looked: Any = None  # how things stood when people last looked
    late: Counter[str] = field(default_factory=Counter)  # time-outs of asyncio, by variable
    fine: Counter[str] = field(default_factory=Counter)  # and those that did not run out

    # -- for tools

    def do(self, name: str, arg: Any) -> str:
        """Do something outside; the reply."""
        process = self.process
        process.check()
        process.effects += 1
        process.dies_around(after=False)
        call = current_call()
        key = call.idempotency_key if call is not None else ""
        scope = current_scope.get() if call is not None and call.run_id == RUN else None
        calls = scope.calls if scope is not None else ()
        done = Done(f"{name}({v.text(arg)})", key, name, v.text(arg), calls)
        self.done.append(done)
        if key and key in self.foreign:
            self.broken.append(f"fork: {name}({v.text(arg)}) has the key of a call of another run")
        reply = v.text(f"{name}:{v.text(arg)}")
        self.replies[key] = reply
        tool = self.tool(name)
        if tool is not None and tool.after_crash != "retry" and process.log.durable_lsn < done.lsn:
            self.broken.append(f"intent: {name}({v.text(arg)}) is not durably known to be begun")
        if tool is not None and tool.approval and self.yes.get(key) != (name, v.text(arg)):
            self.broken.append(
                f"approval: {name}({v.text(arg)}) was executed, and nobody has approved it"
            )
        process.dies_around(after=True)
        return reply

    def nth(self, name: str, of: Any) -> int:
        """How often this has been asked with these arguments, from 1."""
        self.process.check()
        key = f"{name} {v.text(of)}"
        self.counts[key] += 1
        call = current_call()
        self.askers.setdefault(key, set()).add(call.idempotency_key if call else "")
        self.asked_in.setdefault(key, set()).add(id(self.process))
        return self.counts[key]

    async def pause(self, seconds: float) -> None:
        """Something of the program's own: behind a crash it takes another time in each life."""
        process = self.process
        if process.number:
            rng = random.Random(f"{process.number} {seconds} {process.effects}")
            seconds *= rng.choice((0, 0.01, 0.5, 1, 7))
            for _ in range(rng.choice((0, 1, 4, 70))):
                await asyncio.sleep(0)
        await asyncio.sleep(seconds)

    def look(self, call: Call) -> Resolution:
        """What a service says that is asked about a call; the first time it may not know."""
        self.process.check()
        self.counts[f"look {call.idempotency_key}"] += 1
        if self.counts[f"look {call.idempotency_key}"] == 1:
            match zlib.crc32(f"{call.tool} {v.text(list(call.args))}".encode()) % 6:
                case 0:
                    raise OSError("the service does not answer")
                case 1:
                    return Resolution.unknown()
        return self.resolution(call)

    # -- people

    def tool(self, name: str) -> l.Tool | None:
        return next((tool for tool in self.program.tools if tool.name == name), None)

    def resolution(self, call: Call) -> Resolution:
        """What a person says who looks at what was done outside."""
        key, names = call.idempotency_key, self.names(call)
        tool = self.tool(names[0])
        self.settled[key] += 1
        self.asked_about.update(names)
        if key in self.replies:
            if tool is None:  # of an undo
                return Resolution.outcome(self.replies[key])
            if _is_plain(tool) and tool.shape != "strange":
                return Resolution.outcome(v.shaped(tool.shape, self.replies[key]))
            return self.give_up(names)
        return Resolution.retry() if self.settled[key] <= PATIENCE else self.give_up(names)

    def find(self, call: Call, recorded: set[str]) -> None:
        """A person looks for a call whose id may have been another one: what is done of such a
        call, and not recorded, was done in it."""
        shown = [*call.args, *call.kwargs.values()]
        arg = v.text(shown[0]) if shown else ""
        for one in self.done:
            if (one.tool, one.arg) == (call.tool, arg) and one.key not in recorded | self.found:
                self.found.add(one.key)
                self.replies.setdefault(call.idempotency_key, self.replies[one.key])
                return

    def names(self, call: Call) -> list[str]:
        """The tools of which this may be a call: of a lambda, what has done something in it."""
        if call.tool != LAMBDA:
            return [call.tool]
        found = [one.tool for one in self.done if one.key == call.idempotency_key]
        return found[:1] or [tool.name for tool in self.program.tools]

    def give_up(self, tools: list[str]) -> Resolution:
        self.given_up.update(tools)
        return Resolution.fail("a person gives up")

    def look_after(self, store: CheckpointStore, seconds: float) -> None:
        """Send the signals that are due, say yes or no, send what is waited for."""
        due = [one for one in self.schedule.signals if one.seconds <= seconds]
        now = self.process, self.process and self.process.calls, len(due)
        if now == self.looked:  # nothing has happened since they last looked
            return
        self.looked = now
        try:
            self.act(store, due)
        except (RecoveryError, LogError, OSError):  # it has just ended, or not quite begun
            self.looked = None

    def act(self, store: CheckpointStore, due: list[Signal]) -> None:
        runs = store.backend.run_ids()
        for number, one in enumerate(due):
            if number not in self.planned and RUN in runs:
                self.send(store, RUN, one.name)
                self.planned.add(number)
        for run_id in runs:
            for call in pending(store, run_id):
                self.decide(store, run_id, call)
            if len(due) < len(self.schedule.signals):
                continue
            for open_call in status(store, run_id).calls:
                waits = open_call.tool.endswith("wait_for")
                if waits and self.sent.total() < SIGNALS_MAX:
                    self.send(store, run_id, open_call.arguments[0][0])

    def send(self, store: CheckpointStore, run_id: str, name: str) -> None:
        value = f"{name}-{self.sent[name] + 1}"
        for _ in range(1 + self.sent.total() % 2):  # at times it is not known to have arrived
            signal(store, run_id, name, value, key=value)
        self.sent[name] += 1
        self.looked = None
        self.acknowledged.append(value)

    def decide(self, store: CheckpointStore, run_id: str, call: Call) -> None:
        shown = [*call.args, *call.kwargs.values()]
        arg = shown[0] if shown else "?"
        tool = self.tool(call.tool)
        if v.refused(call.tool, arg):  # and somebody has said yes to another call of that LSN
            uid = status(store, run_id).uid
            yes = {"uid": uid, "call": call.lsn, "of": "0" * 32, "approved": True}
            store.backend.post(run_id, "decision", yes)
            deny(store, run_id, call, who="ann", why="no")
            return
        until = {one.lsn: one.asks_until for _, one in _asking(store, run_id)[1]}
        if tool is not None and time.time() <= until[call.lsn]:  # else it does not count
            self.yes[call.idempotency_key] = (tool.name, v.text(arg))
        approve(store, run_id, call, who="ann")
        self.looked = None


def _is_plain(tool: l.Tool) -> bool:
    """Whether the tool does one thing outside, and returns the reply."""
    does = [one for one in l.walk(tool.body) if isinstance(one, l.Do)]
    others = any(isinstance(one, l.Call | l.Child | l.Wait) for one in l.walk(tool.body))
    return len(does) == 1 and not others and tool.result == l.Var(does[0].var)
