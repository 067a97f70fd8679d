"""One life of the agent's process: what it does on the disk, until it dies."""

from __future__ import annotations

import errno
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

from eventlog import EventLog, LogLockedError
from eventlog.files.api import Files
from eventlog.testing import SimulatedDisk
from eventlog.write.log import SEGMENT_SIZE
from recovery.journal.call_key import outer_call
from recovery.stores.log_store import LogStore
from tests.model import language as l
from tests.model import schedule as s
from tests.model.world import RUN, Died, World

DEATHS_MAX = 200  # so often a dead process may try to go on


def tags(tool: l.Tool | None, name: str) -> set[str]:
    """The features that a call under way is one of; without a tool, by what is recorded of it."""
    if tool is None:
        for part in ("wait_for", "sleep", "undo", "child", "agent"):
            if part in name:
                return {"child" if part == "agent" else part}
        return {"node"}
    found = {f"tool: {tool.after_crash}"} | ({"nested calls"} if has_calls(tool) else set())
    for option in ("approval", "undo", "timeout", "sync", "chunks"):
        if getattr(tool, option):
            found.add({"undo": "can be undone", "chunks": "stream"}.get(option, option))
    return found | ({"retry"} if tool.retry > 1 else set())


def has_calls(tool: l.Tool) -> bool:
    """Whether there are calls in its body."""
    return any(isinstance(one, l.Call | l.Child | l.Wait) for one in l.walk(tool.body))


def features(program: l.Program) -> set[str]:
    """What of a program may be under way."""
    found = {"node"} if program.nodes else set()
    for one in l.walk(program):
        match one:
            case l.Call(tool=number) | l.Stream(tool=number):
                tool = program.tools[number]
                found |= tags(tool, "")
                if has_calls(tool) and tool.after_crash != "retry":
                    found.add("calls in a side effect")
            case l.Child():
                found.add("child")
            case l.Undo():
                found.add("undo")
            case l.Wait():
                found.add("wait_for")
            case l.Sleep(own=False):
                found.add("sleep")
            case l.Par() | l.Race() | l.Start():
                found.add("several calls")
                if getattr(one, "kind", "") == "noted":
                    found.add("order")
    return found if "can be undone" in found else found - {"undo"}


class Process:
    """``flights``: what was going on at each changing call of the disk, at which time."""

    def __init__(self, world: World, disk: SimulatedDisk, life: s.Life, number: int = 0) -> None:
        self.world, self.disk = world, disk
        self.number = number  # of the lives before it, if a fault is among them
        self.dead, self.hit = False, Counter[tuple[str, str]]()  # feature and fault
        self.calls = self.effects = self.deaths = 0
        self.life = life
        self.open: dict[int, set[str]] = {}  # calls under way: LSN and what they are
        self.side_effects: set[int] = set()  # the LSNs of calls that are one, or are in one
        self.step, self.begun, self.recovering = 0, False, False
        self.flights: list[frozenset[str]] = []
        self.began, self.times = time.monotonic(), list[float]()  # when that was, in this life
        self.around: list[frozenset[str]] = []  # the same, at each effect
        self.chances = 0
        self.taken_over = False
        self.events: list[Any] = []  # that the run has told
        self.log: EventLog | None = None
        self.people = False  # whether somebody else is at work on the disk
        world.process = self

    def hits(self, fault: str) -> None:
        """A fault hits what is under way."""
        self.hit.update((feature, fault) for feature in self.flight())

    def was_hit(self, fault: str) -> bool:
        return any(hit == fault for _, hit in self.hit)

    def die(self, why: str) -> None:
        self.dead = True
        self.hits(why)
        raise Died

    def check(self) -> None:
        """A dead process does nothing."""
        if self.dead:
            self.deaths += 1
            if self.deaths > DEATHS_MAX:
                threading.Event().wait()
            raise Died

    def dies_around(self, after: bool) -> None:
        if not after:
            self.around.append(self.flight())
        if after:
            self.meets_a_rival()
        if s.DieAround(self.effects - 1, after) in self.life.faults:
            self.die("die after effect" if after else "die before effect")

    def meets_a_rival(self) -> None:
        """A second process comes, if the schedule has it come now."""
        for fault in self.life.faults:
            if not isinstance(fault, s.Rival) or fault.effect != self.effects - 1:
                continue
            self.hits("a second process")
            self.taken_over |= fault.takes_over
            try:
                Store(self.disk).claim(RUN, takeover=fault.takes_over).close()
            except LogLockedError:
                continue
            if not fault.takes_over:
                self.world.broken.append("rival: a second process may have the run")

    def flight(self) -> frozenset[str]:
        """What is under way: the features of the program that a fault hits now."""
        tags = {tag for tags in self.open.values() for tag in tags}
        tags |= {"several calls"} if len(self.open) > 1 else set()
        if not self.begun:
            tags |= {"taking it up"}
        elif not self.step:
            tags |= {"prologue"}
        tags |= {"recovery"} if self.recovering and len(self.around) < 2 else set()
        tags |= {"people"} if self.people else set()
        return frozenset(tags or {"no call"})

    def told(self, event: Any) -> None:
        """The run has recorded something."""
        self.events.append(event)
        self.step, self.begun = max(self.step, event.step), True
        self.recovering |= event.kind == "run_resumed"
        if event.kind == "call":
            tool = self.world.tool(event.tool)
            self.open[event.call] = tags(tool, event.tool)
            if outer_call(event.recorded.scope) in self.side_effects:
                self.open[event.call].add("calls in a side effect")
                self.side_effects.add(event.call)
            elif tool is not None and tool.after_crash != "retry":
                self.side_effects.add(event.call)
        elif event.kind in ("outcome", "failure", "signal", "abandoned", "resolved"):
            self.open.pop(event.call, None)

    def changing(self) -> s.Break | s.Die | None:
        """The fault of the changing call that is about to be made."""
        number, self.calls = self.calls, self.calls + 1
        self.flights.append(self.flight())
        self.times.append(round(time.monotonic() - self.began, 3))
        for fault in self.life.faults:
            if isinstance(fault, s.Die | s.Break) and fault.at == number:
                return fault
        return None

    def disk_call(self, name: str, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if name == "close":  # as the kernel does it for the dead
            return call(*args, **kwargs)
        self.check()
        if name in CHANGING or (name == "open" and kwargs.get("create")):
            match self.changing():
                case s.Die(torn=torn):
                    if name == "pwrite" and torn:
                        call(args[0][:torn], *args[1:], **kwargs)
                    self.die("die at disk call")
                case s.Break(error=error):
                    self.hits("disk error")
                    directory = name == "sync" and hasattr(call.__self__, "entries")  # type: ignore[attr-defined]
                    verb = "sync directory" if directory else VERBS.get(name, name)
                    if error == "SHORT":
                        self.disk.shorten_at(0, 7)
                    else:
                        self.disk.fail_at(verb, 0, getattr(errno, error))
        made = name in ("open", "make_directory", "open_directory")
        result = call(*args, **kwargs)
        return _Proxy(result, self) if made else result


CHANGING = {"pwrite", "sync", "truncate", "publish", "replace", "remove", "move", "delete"}
VERBS = {"pwrite": "write", "open": "create", "move": "rename", "delete": "remove directory"}


class _Proxy:
    """Files, a directory or an open file, whose calls go through a process."""

    def __init__(self, inner: Any, process: Process) -> None:
        self._inner, self._process = inner, process

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            return self._process.disk_call(name, found, args, kwargs)

        setattr(self, name, call)
        return call


class Store(LogStore):
    """Runs on the disk of a process, or (without one) of people who look."""

    def __init__(
        self, disk: SimulatedDisk, process: Process | None = None, size: int = SEGMENT_SIZE
    ) -> None:
        files = disk if process is None else cast(Files, _Proxy(disk, process))
        super().__init__("runs", files, "power")
        self._process, self._size = process, size

    def claim(self, run_id: str, takeover: bool = False) -> EventLog:
        """See RunStore.claim."""
        path, process = self._path(run_id), self._process
        log = EventLog.open(
            path,
            self.durability,
            takeover=takeover,
            files=self.files,
            segment_size=self._size,
        )

        def commit_behind() -> None:
            """Flush now, at certain chances, or not at all: it is as lost as it may be."""
            assert process is not None
            process.chances += 1
            every = process.world.schedule.flush
            if every and process.chances % every == 0:
                log.commit()

        if process is not None:
            process.log = log if run_id == RUN else process.log
            log.commit_behind = commit_behind  # type: ignore[method-assign]
        return log
