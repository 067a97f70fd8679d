"""Counts the recorded errors of an agent's own code. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from recovery.errors import DivergenceError
from recovery.journal.events import (
    AgentRaised,
    CallDecided,
    CallFailed,
    CallIntended,
    CallReturned,
    DivergenceAccepted,
    Event,
    RunCancelled,
    RunFailed,
    RunFinished,
    RunParked,
    RunResumed,
    RunUndone,
    SignalTaken,
    StepStarted,
    ValueRecorded,
)
from recovery.values.type_names import type_name

CARRIED_SIZE_MAX = 1000  # characters of a message that a checkpoint keeps

# A run that records one of these after an error has got past it, or a person has decided. (A step
# can be one that the run begins again.)
_FURTHER = (
    CallIntended,
    CallDecided,
    CallReturned,
    SignalTaken,
    CallFailed,
    ValueRecorded,
    RunParked,
    DivergenceAccepted,
    RunFinished,
    RunFailed,
    RunCancelled,
    RunUndone,
)


@dataclass(frozen=True, slots=True)
class RunError:
    """An error that an agent's own code raised, the last one of its run.

    ``step``: where the run was. ``place``: file, line and function that raised it. ``in_a_row``:
    how often it came at this step and place since the run last got further (when a process recovers
    the run by itself, that counts once); ``total``: errors of the run so far. ``lsn`` and
    ``timestamp`` (seconds since 1970): its record. ``goes_on``: whether the process that recorded
    it recovered the run by itself. ``is_past``: whether the run has got further since. ``call``:
    the call whose result could not be recorded, 0 for any other error. ``of_code``: whether
    unchanged code raises it again. ``traceback`` is empty, and ``of_code`` False, if a checkpoint
    was taken since. ``is_sealed``: it is of a subject, and log lines do not have its message.
    """

    type: str
    message: str
    step: int
    place: str
    in_a_row: int
    total: int
    lsn: int
    timestamp: float
    goes_on: bool
    is_past: bool = False
    call: int = 0
    traceback: str = ""
    of_code: bool = False
    is_sealed: bool = False

    def __str__(self) -> str:
        often = f", {self.in_a_row} times in a row" if self.in_a_row > 1 else ""
        where = f" at {self.place}" if self.place else ""
        said = self.message.partition("\n")[0]
        return f"{self.type.removeprefix('builtins.')}: {said} (step {self.step}{where}{often})"


def has_diverged(events: Iterable[Event]) -> bool:
    """Whether a run last stopped by a DivergenceError that is not accepted; by the events after its
    newest checkpoint."""
    diverged = False
    for event in events:
        if isinstance(event, AgentRaised):
            diverged = event.type == type_name(DivergenceError)
        elif isinstance(event, RunResumed | DivergenceAccepted):
            diverged = False
    return diverged


class ErrorTally:
    """Knows the last error of a run's agent, and how many there were."""

    name = "errors"
    wants = frozenset[type[Event]]((AgentRaised, StepStarted, *_FURTHER))

    def __init__(self) -> None:
        self.total = self._in_a_row = self._lsn = self._time_ns = 0
        self._last: AgentRaised | None = None
        self._is_past = False

    def from_checkpoint(self, carried: Any) -> None:
        """See Accumulator.from_checkpoint."""
        match carried:
            case [
                int(total),
                int(in_a_row),
                int(lsn),
                int(time_ns),
                bool(past),
                bool(goes_on),
                int(step),
                int(call),
                str(kind),
                str(message),
                str(place),
            ]:
                self.total, self._in_a_row = total, in_a_row
                self._lsn, self._time_ns, self._is_past = lsn, time_ns, past
                self._last = AgentRaised(kind, message, "", step, place, goes_on, call)
            case _:
                raise ValueError(f"not what a checkpoint carries of errors: {carried!r:.200}")

    def to_checkpoint(self) -> Any:
        """See Accumulator.to_checkpoint."""
        last = self._last
        if last is None:
            return None
        return [
            self.total,
            self._in_a_row,
            self._lsn,
            self._time_ns,
            self._is_past,
            last.goes_on,
            last.step,
            last.call,
            last.type,
            "" if last.sealed else last.message[:CARRIED_SIZE_MAX],
            last.place,
        ]

    def observe(self, lsn: int, time_ns: int, event: Event) -> None:
        """See Accumulator.observe."""
        if isinstance(event, AgentRaised):
            known = self._last
            same = (
                known is not None
                and not self._is_past
                and ((known.type, known.place, known.step) == (event.type, event.place, event.step))
            )
            # Those within a process follow each other in less than a second: an outage is longer.
            again = known is None or not known.goes_on
            self._in_a_row = self._in_a_row + again if same else 1
            self.total += 1
            self._last, self._lsn, self._time_ns, self._is_past = event, lsn, time_ns, False
        elif self._last is not None and not self._is_past:
            further = isinstance(event, StepStarted) and event.step > self._last.step
            self._is_past = further or isinstance(event, _FURTHER)

    @property
    def last(self) -> RunError | None:
        """The last error; None if the agent has raised none."""
        one = self._last
        if one is None:
            return None
        return RunError(
            one.type,
            one.message,
            one.step,
            one.place,
            self._in_a_row,
            self.total,
            self._lsn,
            self._time_ns / 1e9,
            one.goes_on,
            self._is_past,
            one.call,
            one.traceback,
            bool(one.of_code),
            bool(one.sealed),
        )
