"""Records the moments and effects of one run of an agent, and kills it at one of them."""

from __future__ import annotations

import json
import shutil
import socket
import tempfile
import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from recovery.testing.processes import probe
from recovery.testing.processes.process_tree import Kill

Where = Literal["call", "return", "request", "answer", "record", "disk"]

_IN_WORDS: Mapping[Where, str] = {
    "call": "before {name} did anything (call {nth})",
    "return": "after {name} had done its work, before it returned (call {nth})",
    "request": "before {name} was forwarded (request {nth})",
    "answer": "after {name} was answered, before the agent got the answer (request {nth})",
    "record": "after record {nth} of the log was written",
    "disk": "after disk call {name} (number {nth})",
}


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment in a run where it can be killed: the ``nth`` of its kind, whatever else happens.

    Not its index in the order of all moments, which concurrent calls change from run to run.
    """

    where: Where
    name: str
    nth: int

    def __str__(self) -> str:
        return _IN_WORDS[self.where].format(name=short(self.name), nth=self.nth)


@dataclass(frozen=True, slots=True)
class Effect:
    """A tool's call, or a request. ``done``: it has certainly taken place; else it was begun.

    ``key``: the Idempotency-Key under which it was requested.
    """

    name: str
    args: Mapping[str, str]
    key: str = ""
    done: bool = False


def short(name: str) -> str:
    """The name of a tool without its module; a request unchanged."""
    return name if "/" in name else name.rpartition(":")[2]


class Watch:
    """One run, over all its sessions. Used by several threads.

    ``target``: the moment at which to kill it, once (``hit``: it came). ``parked``: the calls for
    which the run, by its last report, waited for a person. A session is known by its token, so a
    late report of one session is never counted for the next.
    """

    def __init__(self, target: Moment | None = None) -> None:
        self.target, self.hit, self.parked = target, False, ""
        self.moments: list[Moment] = []
        self.life = ""
        self._effects: list[Effect | None] = []  # None: refused
        self._open: dict[tuple[str, str], int] = {}  # effects by session and call
        self._counts: Counter[tuple[Where, str]] = Counter()
        self._kill: Kill | None = None
        self._dying = False
        self._lock = threading.Lock()

    def begin(self, life: str) -> None:
        """A new session is about to begin."""
        with self._lock:
            self.life, self.parked = life, ""
            self._kill, self._dying = None, False

    def attach(self, kill: Kill) -> None:
        """How to kill the session that has begun."""
        with self._lock:
            self._kill = kill
            if self._dying:  # it reached the target before this
                kill()

    def end(self) -> None:
        """The session is over: no later report of it is permitted."""
        with self._lock:
            self._dying = True

    @property
    def effects(self) -> list[Effect]:
        """The effects, in the order in which they began."""
        with self._lock:
            return [effect for effect in self._effects if effect is not None]

    def may(self, where: Where, name: str, life: str) -> bool:
        """A moment has come; returns whether the process may continue."""
        with self._lock:
            if self._dying or life != self.life:
                return False
            self._counts[where, name] += 1
            moment = Moment(where, name, self._counts[where, name])
            self.moments.append(moment)
            if moment != self.target or self.hit:
                return True
            self.hit = self._dying = True
            if self._kill is not None:
                self._kill()
            return False

    def began(self, life: str, call: str, effect: Effect) -> None:
        """An effect was begun; it is not known yet whether it took place."""
        with self._lock:
            self._open[life, call] = len(self._effects)
            self._effects.append(effect)

    def done(self, life: str, call: str) -> None:
        """It has taken place, also if its process does not learn it."""
        with self._lock:
            index = self._open.pop((life, call), None)
            effect = None if index is None else self._effects[index]
            if index is not None and effect is not None:
                self._effects[index] = replace(effect, done=True)

    def refused(self, life: str, call: str) -> None:
        """It did not take place."""
        with self._lock:
            index = self._open.pop((life, call), None)
            if index is not None:
                self._effects[index] = None

    def park(self, life: str, calls: str) -> None:
        """The session is about to end because it waits for a person."""
        with self._lock:
            if life == self.life:
                self.parked = calls


class Listener:
    """The socket on which the processes of agents report. A context manager."""

    def __init__(self, tools: list[str], disk: bool) -> None:
        # In the directory for temporary files itself: the name of such a socket must be short.
        self._folder = Path(tempfile.mkdtemp(prefix="crashtest-"))
        self._tools, self._disk = tools, disk
        self._socket = socket.socket(socket.AF_UNIX)
        self.watch = Watch()

    def __enter__(self) -> Listener:
        shutil.copyfile(Path(probe.__file__), self._folder / "sitecustomize.py")
        self._socket.bind(str(self._folder / "line"))
        self._socket.listen(128)
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # close() alone does not wake the thread
        self._socket.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """The environment that makes an agent's process report, if it is a Python process."""
        path = [str(self._folder), *filter(None, [base.get("PYTHONPATH")])]
        return {
            **base,
            "PYTHONPATH": ":".join(path),
            "PYTHONDONTWRITEBYTECODE": "1",  # a kill while that is written says nothing
            "CRASHTEST_SOCKET": str(self._folder / "line"),
            "CRASHTEST_PROBE": json.dumps({"tools": self._tools, "disk": self._disk}),
        }

    def _serve(self) -> None:
        while True:
            try:
                line, _ = self._socket.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._hear, args=(line,), daemon=True).start()

    def _hear(self, line: socket.socket) -> None:
        """One thread of an agent: answer as long as it may continue; no answer if it must die."""
        with line, suppress(OSError), line.makefile("rb") as said:
            for text in said:
                if not text.endswith(b"\n") or not _may(self.watch, json.loads(text)):
                    said.read()  # until the process is dead
                    return
                line.sendall(b"\n")


def _may(watch: Watch, said: dict[str, Any]) -> bool:
    """Whether the process that reports this may continue."""
    life, name, call = str(said["life"]), str(said["name"]), str(said.get("id", ""))
    match said["at"]:
        case "call":
            if not watch.may("call", name, life):
                return False
            watch.began(life, call, Effect(name, said["args"]))
            return True
        case "return":
            watch.done(life, call)
            return watch.may("return", name, life)
        case "record" | "disk" as where:
            return watch.may(where, name, life)
        case "parked":
            watch.park(life, name)
            return True
        case at:
            raise AssertionError(f"the probe said {at!r}")
