"""Follows a log as it grows: across segments, writers and its own removal."""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Iterator
from typing import TextIO

from eventlog import Damage, LogReader, Record
from eventlog.errors import UnsupportedFormatError
from eventlog.read.reader import Position
from eventlog.read.verify import BAD_SNAPSHOT, DAMAGED, Finding
from logdump.context import Context
from logdump.rows import Narrator, Row
from recovery.cli.terminal import note

# How often to read: often while there are new records, and four times a second otherwise.
_POLL_MIN_S, _POLL_MAX_S = 0.02, 0.25
_LOOKS_MAX = 20
_STRANGE_MAX = 3


class Pause:
    """Waits for new records, and notices meanwhile that the reader of the output is gone."""

    def __init__(self, out: TextIO) -> None:
        self._out, self._pause_s = out, _POLL_MIN_S
        self._poll: select.poll | None = None
        with contextlib.suppress(OSError, ValueError, AttributeError):  # a file, or no file at all
            self._poll = select.poll()
            self._poll.register(out.fileno(), 0)  # errors and hang-ups are reported always

    def over(self) -> None:
        """New records have come: read again soon."""
        self._pause_s = _POLL_MIN_S

    def wait(self) -> None:
        """Flush the output, and wait. BrokenPipeError when its reader is gone."""
        self._out.flush()
        if self._poll is None:
            time.sleep(self._pause_s)
        elif self._poll.poll(self._pause_s * 1000):
            raise BrokenPipeError
        self._pause_s = min(_POLL_MAX_S, self._pause_s * 2)


def opened(context: Context, pause: Pause, announced: bool) -> LogReader:
    """The log, as soon as it exists; ``announced``: the user knows that the command waits."""
    strange = 0  # how often the directory held something else than a log
    while True:
        try:
            with contextlib.ExitStack() as closing:
                reader = closing.enter_context(context.read())
                reader.listing.segments_from(1 << 63)
                closing.pop_all()
                return reader
        except FileNotFoundError:
            if not announced:
                note(f"{context.args.path} is not there yet; waiting for it")
            announced = True
        except UnsupportedFormatError:
            strange += 1  # it may be in creation, or in removal
            if strange > _STRANGE_MAX:
                raise
        pause.wait()


def arrivals(
    context: Context, reader: LogReader, first: int, pause: Pause
) -> Iterator[Row | Finding]:
    """Records from LSN ``first`` on, and losses, as they come. Ends when the log is removed.

    A takeover may give the last LSNs to other records. These are yielded as well, and count.
    """
    position = Position(first)
    narrator = None
    try:
        for item in reader.arrivals(first, position):
            if item is None:
                if not reader._directory.is_linked():
                    break
                pause.wait()
                continue
            pause.over()
            if isinstance(item, Record):
                narrator = narrator or Narrator(reader, context.run_id, first)
                yield narrator.row(position.number, position.frame, item)
            else:
                yield _finding(item)
    except (FileNotFoundError, UnsupportedFormatError):
        # Segments are missing. If the log is being removed, its directory is gone at once.
        for _ in range(_LOOKS_MAX):
            if not reader._directory.is_linked():
                break
            pause.wait()
        else:
            raise
    note(f"{context.args.path} was removed; waiting for it to be there again")


def _finding(damage: Damage) -> Finding:
    first, last = damage.first_lsn, damage.last_lsn
    lost = "no record lost" if last < first else f"LSN {first}-{last} lost"
    if first == last:
        lost = f"LSN {first} lost"
    bit = BAD_SNAPSHOT if damage.snapshot else DAMAGED
    return Finding(
        bit, damage.segment, damage.offset, damage.size, first, last, f"{damage.what}: {lost}"
    )
