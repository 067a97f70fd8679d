"""Asking runs to stop: by a call, or by a signal to the process."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

from recovery._errors import StoppedError
from recovery._family import ParentRun

if TYPE_CHECKING:
    from eventlog import EventLog
    from recovery._checkpoint import CheckpointStore
    from recovery._core import RunCore
    from recovery._history import History


class Life:
    """One going of a run in this process, over its recoveries. Stopped from any thread."""

    parent: ParentRun | None = None  # that started the run

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self._run: RunCore | None = None
        self._error: Exception | None = None

    def claim(self, store: CheckpointStore, takeover: bool) -> EventLog:
        """The run's log, for this process alone."""
        return store.claim(self.run_id, takeover)

    def meet(self, log: EventLog, history: History) -> History:
        """What the log holds, before anything is written; raises what forbids to go on."""
        return history

    def born(self, log: EventLog) -> None:
        """It is recorded that the run has begun, and nothing is executed yet. May take a while."""

    def begin(self, run: RunCore) -> None:
        """The run's present execution is this one."""
        self._run = run
        self.check()

    def check(self) -> None:
        """Raise what the run was stopped with, if it was."""
        if self._error is not None:
            raise self._error

    def stop(self, error: Exception) -> None:
        """Stop at the next safe point."""
        self._error = self._error or error
        if self._run is not None:
            self._run.cancel(self._error)


class Lives:
    """The runs that an agent is executing in this process."""

    def __init__(self) -> None:
        self._lives: set[Life] = set()
        self._mutex = threading.Lock()

    def stop(self, why: str) -> None:
        """Ask all of them to stop."""
        for life in list(self._lives):
            life.stop(StoppedError(life.run_id, why))

    @contextmanager
    def one(self, life: Life, stop_on: Sequence[signal.Signals]) -> Iterator[Life]:
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
