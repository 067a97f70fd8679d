"""Shows how far a command is that takes over a second: on standard error, if that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn
from rich.progress import TimeElapsedColumn as Elapsed

from recovery.cli.terminal import progress
from recovery.text import printable

PATIENCE_S, REFRESH_S = 1.0, 0.2


@contextmanager
def working(
    what: str, done: Callable[[], int] | None = None, total: int | None = None
) -> Iterator[None]:
    """While the block runs, shows ``what`` and, if it is known, how much of ``total`` is ``done``.

    ``done`` is called in a thread. In the block nothing may be printed on the terminal.
    """
    if not sys.stderr.isatty():
        yield
        return
    ended = Event()
    thread = Thread(target=_show, args=(ended, printable(what), done, total), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _show(ended: Event, what: str, done: Callable[[], int] | None, total: int | None) -> None:
    if ended.wait(PATIENCE_S):
        return
    text = TextColumn("{task.description}", markup=False)
    bar = (BarColumn(), TaskProgressColumn()) if total else ()
    # What a block prints into a pipe must not be redirected to standard error.
    with Progress(
        SpinnerColumn(),
        text,
        *bar,
        Elapsed(),
        console=progress(),
        transient=True,
        auto_refresh=False,
        redirect_stdout=False,
        redirect_stderr=False,
    ) as shown:
        task = shown.add_task(what, total=total or None)
        while True:
            if done is not None:
                shown.update(task, completed=done())
            shown.refresh()
            if ended.wait(REFRESH_S):
                return
