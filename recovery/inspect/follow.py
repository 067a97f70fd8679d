"""Follows the events of a run, live or after the fact, from any process."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Generator, Iterator
from typing import Literal

from eventlog import ReadableLog, Record, Snapshot
from recovery.history.find_run import Store, backend_of, no_such_run
from recovery.inspect.run_event import EventReader, RunEvent, carried_by
from recovery.option_checks import check_one_of
from recovery.replay.progress import ProgressTally
from recovery.stores.protocol import RunStore, check_run_id
from recovery.values.backrefs import is_chunk

Until = Literal["ended", "parked", "now"]
_Arrivals = Generator["RunEvent | None", None, None]

# How long a follower waits before it reads again. A step of an agent takes seconds, and one process
# may have hundreds of followers, so the pauses grow while no events come.
PAUSE_S, PAUSE_MAX_S = 0.02, 0.25
# How much is read at a time before the event loop may run other tasks.
BATCH, BATCH_SIZE = 256, 1 << 20


class RunEvents:
    """The events of a run in the order of its log: for ``for`` and for ``async for``.

    Each iteration begins at the event after LSN ``after``. Takes no lock and writes nothing; the
    caller may leave the loop at any time.
    """

    def __init__(self, store: RunStore, run_id: str, after: int, until: Until) -> None:
        self._store, self._run_id = store, check_run_id(run_id)
        self._after, self._until = after, until

    def __iter__(self) -> Iterator[RunEvent]:
        pause = PAUSE_S
        for event in self._arrivals():
            if event is not None:
                pause = PAUSE_S
                yield event
            else:
                time.sleep(pause)
                pause = min(pause * 1.5, PAUSE_MAX_S)

    async def __aiter__(self) -> AsyncIterator[RunEvent]:
        pause = PAUSE_S
        arrivals = self._arrivals()
        reading = asyncio.ensure_future(asyncio.to_thread(_batch, arrivals))
        try:
            while found := await asyncio.shield(reading):
                for event in found:
                    if event is not None:
                        pause = PAUSE_S
                        yield event
                    else:
                        await asyncio.sleep(pause)
                        pause = min(pause * 1.5, PAUSE_MAX_S)
                reading = asyncio.ensure_future(asyncio.to_thread(_batch, arrivals))
        finally:
            if reading.done():
                arrivals.close()
            else:  # cancelled while the thread reads: the thread finishes
                reading.add_done_callback(lambda read: _close(read, arrivals))

    def _arrivals(self) -> _Arrivals:
        """The events; None where there are no more now."""
        reader = self._store.read(self._run_id)
        while reader is None:
            if self._until == "now":
                raise no_such_run(self._store, self._run_id)
            yield None
            reader = self._store.read(self._run_id)
        with reader:
            tally = ProgressTally()
            start = restore_tally(tally, reader, self._after)
            events = EventReader(self._run_id, tally, self._fetch)
            for item in reader.arrivals(start):
                if isinstance(item, Snapshot) and is_chunk(item):
                    continue
                if item is not None:
                    event = events.from_log(item)
                    if event.lsn > self._after:
                        yield event
                elif self._is_over(tally):
                    return
                else:
                    yield None

    def _is_over(self, tally: ProgressTally) -> bool:
        # At the end of the log: a failed run may be resumed when its failed call is resolved.
        match self._until:
            case "now":
                return True
            case "parked":
                return tally.status != "running"
        return tally.status not in ("running", "parked")

    def _fetch(self, lsns: set[int]) -> dict[int, Record]:
        # With a reader of its own: values may be decoded later, and in another thread.
        reader = self._store.read(self._run_id)
        if reader is None:
            return {}
        with reader:
            return reader.fetch(lsns)


def events(store: Store, run_id: str, *, after: int = 0, until: Until = "ended") -> RunEvents:
    """See RunHandle.events."""
    check_one_of("until", until, ("ended", "parked", "now"))
    return RunEvents(backend_of(store), run_id, after, until)


def _batch(arrivals: _Arrivals) -> list[RunEvent | None]:
    """The present events, up to a limit, then None; empty when the run is over."""
    found: list[RunEvent | None] = []
    size = 0
    for event in arrivals:
        found.append(event)
        size += event.size if event is not None else 0
        if event is None or len(found) == BATCH or size > BATCH_SIZE:
            break
    return found


def _close(read: asyncio.Future[list[RunEvent | None]], arrivals: _Arrivals) -> None:
    if not read.cancelled():
        read.exception()  # retrieved, because no task awaits it any more
    with contextlib.suppress(ValueError):  # the thread still reads, and closes the reader itself
        arrivals.close()


def restore_tally(tally: ProgressTally, reader: ReadableLog, after: int) -> int:
    """Restore the counts of the newest checkpoint up to ``after``; returns the LSN to read from."""
    for snapshot in reader.snapshots() if after else ():
        carried, _ = carried_by(snapshot) if snapshot.lsn <= after else (None, 0)
        if carried is not None:
            tally.from_checkpoint(carried)
            return snapshot.lsn + 1
    return 1
