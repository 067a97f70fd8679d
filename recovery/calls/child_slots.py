"""Limits how many child runs execute at once."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress


class ChildSlots:
    """Slots for the children of a tree of runs that execute at once, at one depth of the tree.

    Children of one depth wait for those of the next and never for each other, so they cannot
    deadlock on slots. Thread-safe, and safe in signal handlers.
    """

    def __init__(self, limit: int) -> None:
        self._limit = self._free = limit
        self._waiting: deque[Future[bool]] = deque()
        self._mutex = threading.RLock()
        self._below: ChildSlots | None = None

    def below(self) -> ChildSlots:
        """The slots for the children of these."""
        with self._mutex:
            self._below = self._below or ChildSlots(self._limit)
            return self._below

    def ask(self) -> Future[bool]:
        """Request a slot, which is acquired when the future is done; first come, first served."""
        place: Future[bool] = Future()
        with self._mutex:
            if self._free:
                self._free -= 1
                place.set_result(True)
            else:
                self._waiting.append(place)
        return place

    def withdraw(self, place: Future[bool]) -> None:
        """Cancel the request, if its slot was not acquired."""
        with self._mutex:
            if not place.done():
                # A signal handler may have done so just now, or does so in between.
                with suppress(ValueError):
                    self._waiting.remove(place)
                _end(place, False)

    def leave(self, place: Future[bool]) -> None:
        """Release the slot, if it was acquired."""
        with self._mutex:
            self.withdraw(place)
            if not place.result():
                return
            while self._waiting:
                if _end(self._waiting.popleft(), True):
                    return
            self._free += 1


def _end(place: Future[bool], is_acquired: bool) -> bool:
    """Whether it has ended so: not if a signal handler has withdrawn it."""
    try:
        place.set_result(is_acquired)
    except InvalidStateError:
        return False
    return True
