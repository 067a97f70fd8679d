"""Work in a forked process that says what it does, and is ended when it hangs."""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

PR_SET_PDEATHSIG = 1  # whoever ends the run ends this process, too
TICK_S = 0.25
IDLE_SHARE = 0.05  # of one processor: whoever uses less is waiting, even on a machine under load


class Allowed(NamedTuple):
    """How long a process may say nothing: seconds of CPU, and seconds in which it only waits."""

    cpu_s: float
    idle_s: float


class Forked:
    """A forked process that does this work. ``said``: what it says, one after the other; the last
    is "silent" if it was ended because it said nothing for longer than allowed.

    ``spent_s``: the CPU time that it took, and the time for which it was seen to wait in vain: the
    same on a machine that has nothing else to do and on one that has.
    """

    def __init__(self, work: Callable[..., None], *args: Any) -> None:
        self.spent_s = 0.0
        self._began = time.monotonic()
        self._last_cpu_s = 0.0
        reads, writes = os.pipe()
        self._child = os.fork()
        if not self._child:
            try:
                os.setsid()
                if sys.platform == "linux":
                    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
                # Ignored in the background.
                signal.signal(signal.SIGINT, signal.default_int_handler)
                os.close(reads)
                nowhere = os.open(os.devnull, os.O_RDWR)
                for one in (0, 1, 2):
                    os.dup2(nowhere, one)
                work(lambda said: os.write(writes, json.dumps(said).encode() + b"\n"), *args)
            finally:
                os._exit(0)
        os.close(writes)
        self._reads = reads

    def said(self, allowed: Callable[[Any], Allowed]) -> Iterator[Any]:
        """``allowed``: for how long it may be silent after what it said last (None: nothing)."""
        last, rest = None, b""
        try:
            while self._speaks(*allowed(last)):
                part = os.read(self._reads, 1 << 20)
                if not part:
                    return
                *lines, rest = (rest + part).split(b"\n")
                for line in lines:
                    last = json.loads(line)
                    yield last
            yield ["silent"]
        finally:
            os.close(self._reads)
            with suppress(ProcessLookupError):
                os.killpg(self._child, signal.SIGKILL)
            os.waitpid(self._child, 0)

    def _speaks(self, cpu_s: float, idle_s: float) -> bool:
        """Wait until it says something, or nothing for too long."""
        first = self._cpu_s()
        watched, used = time.monotonic(), first
        while not select.select([self._reads], [], [], TICK_S)[0]:
            now, cpu = time.monotonic(), self._cpu_s()
            if cpu - first > cpu_s:
                return False
            if now - watched > idle_s:
                if cpu - used < IDLE_SHARE * (now - watched):
                    self.spent_s += now - watched
                    return False
                watched, used = now, cpu
        self._cpu_s()
        return True

    def _cpu_s(self) -> float:
        """The CPU time of the process; where the system does not tell, the time since it began."""
        cpu_s = self._last_cpu_s
        try:
            cpu_s = time.clock_gettime(~self._child << 3 | 2)  # Linux: the clock of a process
        except OSError:
            if not self._last_cpu_s:
                cpu_s = time.monotonic() - self._began
        self.spent_s += max(0.0, cpu_s - self._last_cpu_s)
        self._last_cpu_s = cpu_s
        return cpu_s
