"""Asks the runs of an agent to stop: by a call, or by a signal to the process."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import Any

from recovery.engine.run_session import RunSession
from recovery.errors import RecoveryError, StoppedError

# The module that a command imports for the agent in it.
imported_module: ContextVar[str] = ContextVar("recovery_imported_module", default="")


class ImportedRunError(RecoveryError):
    """A module executes a run while a command imports it."""


class RunSessions:
    """The runs that an agent is executing in this process."""

    def __init__(self) -> None:
        self._lives: set[RunSession] = set()
        self._mutex = threading.Lock()

    def stop(self, why: str) -> None:
        """Ask all of them to stop."""
        for session in list(self._lives):
            session.stop(StoppedError(session.run_id, why))

    @contextmanager
    def one(self, session: RunSession, stop_on: Sequence[signal.Signals]) -> Iterator[RunSession]:
        """One more, which the signals stop. ImportedRunError in a module that is being imported."""
        if module := imported_module.get():
            raise ImportedRunError(
                f"module {module} executes run {session.run_id!r} when it is imported. Nothing was "
                "executed. Put what executes runs under `if __name__ == '__main__':` in it."
            )
        self._lives.add(session)
        try:
            with handled(stop_on, self.stop):
                yield session
        finally:
            self._lives.discard(session)


@contextmanager
def handled(signals: Sequence[signal.Signals], stop: Callable[[str], None]) -> Iterator[None]:
    """While the block runs, the first signal stops the runs; a second one has its former effect.

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
