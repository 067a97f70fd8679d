"""Says of a call without an outcome what it is, and what a recovery does with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from eventlog import Packed
from recovery.values.pack import unpack

CallState = Literal["in doubt", "under way", "asks", "waits", "to be made again"]


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A call of a run without an outcome.

    ``lsn``: of its intent, which ``resolve`` and ``approve`` take. ``state``: "in doubt" (begun,
    and its process has died), "under way" (its process is alive), "asks" (for approval), "waits"
    (for a time or a signal), "to be made again" (it failed or was not begun). ``then``: what a
    recovery does with it, in words. ``step``: None for a nested call. ``since``: when it was first
    intended, in seconds since 1970. ``size``: bytes of its arguments. ``child``: the run that it
    started, if it did. ``signals``: those that it waits for, by name. ``signed``: whether a
    decision about it counts only with a signature. ``unclaimed_outcomes``: outcomes (LSNs) in the
    log whose calls were lost; one may be this call's, so that a retry would repeat it.
    """

    lsn: int
    tool: str
    call_id: str
    step: int | None
    state: CallState
    then: str
    after_crash: str
    attempt: int
    since: float
    idempotency_key: str
    size: int
    child: str = ""
    signals: tuple[str, ...] = ()
    signed: bool = False
    unclaimed_outcomes: tuple[int, ...] = ()
    packed: Packed | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """Tool and LSN, as in ``charge#88``."""
        return f"{self.tool}#{self.lsn}"

    @property
    def arguments(self) -> Any:
        """[positional, by name]; None when they were too large to be recorded.

        UnreadableValueError when a type in them is not registered here.
        """
        return None if self.packed is None else unpack(self.packed)
