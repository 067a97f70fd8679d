"""Defines a call that is over, as a loop that reads its journal sees it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from recovery.journal.call import Arguments


@dataclass(frozen=True, slots=True)
class FinishedCall:
    """A call that has an outcome, which the loop has not forgotten.

    ``value`` is what it returned, or ``error`` what it raised. Of a call that the loop cancelled,
    ``value`` is an OutcomeUnknown. ``lsn`` is the record of its intent, ``ended`` that of its
    outcome. ``tool`` and ``call_id`` are those of the call. ``arguments``: (positional, by name) of
    a call that an earlier process made; None of others, and where they were too large to be
    recorded.
    """

    lsn: int
    ended: int
    tool: str
    call_id: str
    arguments: Arguments | None = None
    value: Any = None
    error: Exception | None = None
