"""Asks the runs of an agent to stop: by a call, or by a signal to the process."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from recovery.engine.lifecycle import RunSession
from recovery.errors import StoppedError


class RunSessions:
    """The runs that an agent is executing in this process."""

    def __init__(self) -> None:
        self._lives: set[RunSession] = set()
        self._mutex = threading.Lock()

    def stop(self, why: str) -> None:
        """Ask all of them to stop."""
        for life in list(self._lives):
            life.stop(StoppedError(life.run_id, why))

    @contextmanager
    def one(self, life: RunSession, stop_on: Sequence[signal.Signals]) -> Iterator[RunSession]:
        """One more, which the signals stop."""
        self._lives.add(life)
        try:
            with handled(stop_on, self.stop):
                yield life
        finally:
            self._lives.discard(life)


@contextmanager
def handled(signals: Sequence[signal.Signals], stop: Callable[[str], None]) -> Iterator[None]:
    """While the block runs, the first signal stops, and a second does what it did before.

    RuntimeError outside of the main thread, where Python cannot handle signals.
    """
    if not signals:
        yield
        return
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("stop_on= needs the main thread; elsewhere, call agent.stop() yourself")
    before: dict[int, Any] = {}

    def restore() -> None:
        for number, handler in before.items():
            if signal.getsignal(number) is handle:
                signal.signal(number, handler)

    def handle(number: int, frame: FrameType | None) -> None:
        restore()
        stop(f"{signal.Signals(number).name} received")

    for one in signals:
        before[one] = signal.signal(one, handle)
    try:
        yield
    finally:
        restore()
