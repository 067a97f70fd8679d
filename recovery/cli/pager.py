"""Shows output in a pager, where the screen is not enough."""

from __future__ import annotations

import io
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

from recovery.text import columns

DEFAULT = "less"
PATIENCE_S = 0.5


@contextmanager
def paged(*, wanted: bool = True) -> Iterator[None]:
    """Within the block, standard output that exceeds the screen goes to $PAGER, or else to less.

    Not if it is no terminal, nor if $PAGER is empty (--no-pager) or does not exist. Output that
    comes slowly is shown as it comes, without a pager.
    """
    command = _command() if wanted and sys.stdout.isatty() else []
    if not command:
        yield
        return
    before = sys.stdout
    sys.stdout = screen = _Screen(before, command)
    try:
        yield
        screen.end()
    finally:
        sys.stdout = before
        screen.leave()


def _command() -> list[str]:
    if os.environ.get("TERM", "dumb") == "dumb":
        return []
    with suppress(ValueError):  # quotes that are not closed
        words = shlex.split(os.environ.get("PAGER", DEFAULT))
        if words and words != ["cat"] and shutil.which(words[0]):
            return words
    return []


class _Screen(io.TextIOBase):
    """A terminal that keeps back what fits it, until it is known whether more comes."""

    def __init__(self, terminal: TextIO, command: list[str]) -> None:
        self._terminal, self._command = terminal, command
        self._kept: list[str] | None = []
        self._width, self._room = shutil.get_terminal_size()
        self._began = time.monotonic()
        self._pager: subprocess.Popen[str] | None = None

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._terminal.encoding

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._terminal.fileno()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self._kept is None:
            return self._out.write(text)
        self._kept.append(text)
        for line in text.split("\n")[1:]:  # a folded line takes several of the screen's
            self._room -= 1 + columns(line) // self._width
        if self._room < 2:
            self._start()
            self._release()
        elif time.monotonic() > self._began + PATIENCE_S:
            self._release()
        return len(text)

    def flush(self) -> None:
        if self._kept is None:
            self._out.flush()

    @property
    def _out(self) -> TextIO:
        pipe = self._pager.stdin if self._pager is not None else None
        return pipe or self._terminal  # type: ignore[return-value]

    def _start(self) -> None:
        # R: colours. X: the text stays on the screen. F: a screenful ends it, as a late resize.
        env = {"LESS": "FRX", "LESSCHARSET": "utf-8"} | os.environ
        self._pager = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            env=env,
            encoding="utf-8",
            errors="backslashreplace",
        )

    def _release(self) -> None:
        kept, self._kept = "".join(self._kept or ()), None
        self._out.write(kept)

    def end(self) -> None:
        """All is written. BrokenPipeError when the pager was left before."""
        if self._kept is not None:
            self._release()
        self.flush()

    def leave(self) -> None:
        """Wait until the user leaves the pager; Ctrl-C is its own meanwhile."""
        if self._kept is not None:
            self._release()
        if self._pager is None or self._pager.stdin is None:
            return
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            with suppress(BrokenPipeError):
                self._pager.stdin.close()
            self._pager.wait()
        finally:
            signal.signal(signal.SIGINT, before)
