"""What all commands share: where they write, and how they end early."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import typer
from rich.console import Console

from recovery.cli._exit import CLOSED_PIPE, INTERRUPTED


@contextmanager
def ends_politely() -> Iterator[None]:
    """No traceback for a closed pipe and for Ctrl-C; SIGTERM and SIGHUP end the same way."""
    with ExitStack() as stack:
        for signum in (signal.SIGTERM, signal.SIGHUP):
            with suppress(ValueError):  # only the main thread may
                stack.callback(signal.signal, signum, signal.signal(signum, _interrupt))
        try:
            yield
            sys.stdout.flush()
        except BrokenPipeError:
            # The interpreter flushes once more at exit, and would complain about the closed pipe.
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(CLOSED_PIPE) from None
        except KeyboardInterrupt:
            progress().print("interrupted", style="bold")
            raise typer.Exit(INTERRUPTED) from None


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def progress() -> Console:
    """For what is not the result of a command. Heeds NO_COLOR, and knows what is no terminal."""
    return Console(stderr=True, highlight=False, soft_wrap=True)
