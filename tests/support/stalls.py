"""A plug-in of pytest: the machine stalls at random, as a loaded one does. See `make stalls`.

Event loops, threads that begin and flushes are held up for some hundredths of a second, in each
test for three seconds at most. A test that leaves a loaded machine too little time fails soon then.
Processes that a test starts are not held up.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

SHARE, PAUSES_S, BUDGET_S = 0.1, (0.02, 0.06, 0.15), 3.0
_sleep = time.sleep  # the real one, whatever a test does to the clock


class _Stalls:
    def __init__(self) -> None:
        self._random, self._left_s = random.Random(), 0.0

    def begin(self, seed: str) -> None:
        self._random, self._left_s = random.Random(seed), BUDGET_S

    def before(self, function: Callable[..., Any], share: float = SHARE) -> Callable[..., Any]:
        """The function, held up now and then before it begins."""

        def held_up(*args: Any) -> Any:
            if self._left_s > 0 and self._random.random() < share:
                pause_s = self._random.choice(PAUSES_S)
                self._left_s -= pause_s
                _sleep(pause_s)
            return function(*args)

        # Else the library takes this frame, below a thread's code, for the user's.
        held_up.__code__ = held_up.__code__.replace(co_filename=threading.__file__)
        return held_up


_stalls = _Stalls()


def pytest_configure() -> None:
    loop: Any = asyncio.base_events.BaseEventLoop
    loop._run_once = _stalls.before(loop._run_once)
    thread: Any = threading.Thread
    thread.run = _stalls.before(thread.run, 3 * SHARE)
    for name in ("fsync", "fdatasync"):
        setattr(os, name, _stalls.before(getattr(os, name)))


def pytest_runtest_setup(item: pytest.Item) -> None:
    _stalls.begin(f"{item.config.option.hypothesis_seed} {item.nodeid}")
