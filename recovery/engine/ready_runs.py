"""Knows which runs have something ready to run in an event loop, however many run in it."""

from __future__ import annotations

import asyncio
from contextvars import Context
from typing import Any
from weakref import ref

from recovery.declare.scope import current_scope

# Callbacks that are looked at each time; when there are more, they are noted.
LOOKED_AT_MAX = 8
_ANY = 0  # in place of a run: a callback without a context may be of any run


class ReadyRuns:
    """Whose callbacks are ready in a loop. Not thread-safe: for that loop.

    Loops take callbacks from the left of ``_ready``, and add to its right. So each callback is
    looked at once, up to a marker. ``_last`` has the position of the last one of each run, counted
    from an earlier marker.
    """

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._ready: Any = getattr(loop, "_ready", None)
        # The loop's own, which wakes it for what another thread has added.
        self._wakes = getattr(getattr(loop, "_read_from_self", None), "__func__", None)
        self._marker: ref[asyncio.Handle] | None = None
        self._noted, self._last = 0, dict[int, int]()

    @property
    def is_known(self) -> bool:
        """Whether the loop shows what is ready; uvloop does not."""
        return self._ready is not None

    def may_have(self, run: object, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether a callback of this run may be ready."""
        if not self._ready:
            return False
        newer = self._newer()
        if len(newer) > LOOKED_AT_MAX:
            newer = self._note(loop)
        run_id = id(run)
        if any(self._run_of(one) in (run_id, _ANY) for one in newer):
            return True
        # If another thread adds one now, a callback that was taken counts as ready.
        taken = self._noted + len(newer) - len(self._ready)
        return max(self._last.get(run_id, 0), self._last.get(_ANY, 0)) > taken

    def _newer(self) -> list[asyncio.Handle]:
        """What came after the marker, the newest first; everything if the marker was taken."""
        marker = self._marker and self._marker()
        while True:
            newer = list[asyncio.Handle]()
            try:
                for handle in reversed(self._ready):
                    if handle is marker:
                        return newer
                    newer.append(handle)
            except RuntimeError:  # another thread has added one meanwhile
                continue
            self._marker, self._noted = None, 0
            self._last.clear()
            return newer

    def _note(self, loop: asyncio.AbstractEventLoop) -> list[asyncio.Handle]:
        """Note what there is up to a new marker; what came after that."""
        # A marker is no callback of others, which may be added again. It comes first, because
        # another thread may add a callback at any time.
        marker = loop.call_soon(_mark, context=Context())
        newer = self._newer()
        at = newer.index(marker)
        for position, handle in enumerate(reversed(newer[at + 1 :]), self._noted + 1):
            self._last[self._run_of(handle)] = position
        self._noted += len(newer) - at
        self._marker = ref(marker)
        return newer[:at]

    def _run_of(self, handle: asyncio.Handle) -> int:
        """The id of the run whose context a callback has."""
        context = getattr(handle, "_context", None)
        scope = None if context is None else context.get(current_scope)
        if scope is not None:
            return id(scope.run)
        callback = getattr(handle, "_callback", None)
        wakes = self._wakes is not None and getattr(callback, "__func__", None) is self._wakes
        return -1 if wakes else _ANY


def _mark() -> None:
    """Is called by the loop when the marker is taken."""
