"""Silences planned deaths: in threads, and in generators that end by them."""

from __future__ import annotations

import gc
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from recovery.errors import LeftBehindError, Stop
from recovery.testing.simulated.simulated_life import Died
from recovery.testing.simulated.virtual_time import StuckError

_PLANNED = (Died, StuckError, Stop, LeftBehindError)


@contextmanager
def quiet() -> Iterator[None]:
    """Logs nothing of the runs, and prints nothing of their deaths."""
    loggers = [logging.getLogger(name) for name in ("recovery", "eventlog", "asyncio")]
    were = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    # What is there now is no leftover of the runs. In a process with large frameworks, to look
    # through it takes longer than a run.
    freezes = not gc.get_freeze_count()
    if freezes:
        gc.freeze()
    try:
        with (
            mock.patch.object(threading, "excepthook", _but_planned(threading.excepthook)),
            mock.patch.object(sys, "unraisablehook", _but_planned(sys.unraisablehook)),
        ):
            yield
            gc.collect()  # generators that are left in cycles
    finally:
        if freezes:
            gc.unfreeze()
        for logger, was in zip(loggers, were, strict=True):
            logger.disabled = was


def _but_planned(hook: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The hook, without the exceptions that end a run on purpose."""
    return lambda args: None if issubclass(args.exc_type, _PLANNED) else hook(args)
