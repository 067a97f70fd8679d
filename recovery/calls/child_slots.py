"""How many child runs are at work at once."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future


class ChildSlots:
    """How many children of a tree of runs are at work at once, at one depth of the tree.

    Those of one depth wait for those of the next and never for each other, so nobody waits for a
    place whose holder waits for him. Thread-safe, and safe in signal handlers.
    """

    def __init__(self, limit: int) -> None:
        self._limit = self._free = limit
        self._waiting: deque[Future[bool]] = deque()
        self._mutex = threading.RLock()
        self._below: ChildSlots | None = None

    def below(self) -> ChildSlots:
        """The places for the children of these."""
        with self._mutex:
            self._below = self._below or ChildSlots(self._limit)
            return self._below

    def ask(self) -> Future[bool]:
        """A place, when the future is done; in the order of asking."""
        place: Future[bool] = Future()
        with self._mutex:
            if self._free:
                self._free -= 1
                place.set_result(True)
            else:
                self._waiting.append(place)
        return place

    def withdraw(self, place: Future[bool]) -> None:
        """Wait for it no longer, if it is still waited for."""
        with self._mutex:
            if not place.done():
                self._waiting.remove(place)
                place.set_result(False)

    def leave(self, place: Future[bool]) -> None:
        """Make room for the next one, if this one has got its place."""
        with self._mutex:
            self.withdraw(place)
            if not place.result():
                return
            if self._waiting:
                self._waiting.popleft().set_result(True)
            else:
                self._free += 1
