"""Builds the model of a run that its timeline is drawn from: JSON-able, with bounded texts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from eventlog import Record
from eventlog.dump import Json
from logdump.timeline.calls import STATES, Calls
from logdump.timeline.layout import Axis
from logdump.timeline.messages import Conversation
from logdump.timeline.texts import Texts
from recovery.inspect.run_event import RunEvent
from recovery.inspect.status import RunStatus
from recovery.journal.events import (
    AgentRaised,
    CallResolved,
    DivergenceAccepted,
    HistoryDropped,
    LogRepaired,
    MessagesChanged,
    RecordsLost,
    RunCancelled,
    RunFailed,
    RunFinished,
    RunParked,
    RunResumed,
    RunStarted,
    RunUndone,
    StepStarted,
    ValueRecorded,
)
from recovery.text import printable

VERSION = 1
LSNS_SHOWN = 20

# Records that users and other programs write into the log of a run that no process has.
_FROM_OUTSIDE = (
    CallResolved,
    DivergenceAccepted,
    RunUndone,
    RunCancelled,
    RecordsLost,
    LogRepaired,
)
_ENDS: dict[type, str] = {
    RunParked: "parked",
    RunFinished: "finished",
    RunFailed: "failed",
    RunCancelled: "cancelled",
}


class Timeline:
    """Reads the events of a run, in order, and builds the model.

    ``packed_message`` resolves a reference to a message (RecoveryError when it is lost).
    """

    def __init__(self, texts: Texts, packed_message: Callable[[Any], bytes]) -> None:
        self._texts, self._axis, self._calls = texts, Axis(), Calls(texts)
        self._conversation = Conversation(texts, packed_message, self._calls.outcomes)
        self._lsns: list[Json] = []  # [index, LSN] where LSNs are not consecutive
        self._index, self._last_lsn, self._time_us = 0, 0, 0
        self._started: RunStarted | None = None
        self._steps: list[Json] = []
        self._lives: list[dict[str, Json]] = []
        self._own_lsn = 0  # the last record by the process that had the run
        self._rests = ""  # why no process works on the run
        self._marks: list[Json] = []
        self._damage: list[dict[str, Json]] = []
        self._last: RunEvent | None = None

    # -- taking in

    def add(self, event: RunEvent) -> None:
        """Add the next event."""
        self._last = event
        if event.damage is not None:
            self._add_damage(event)
            return
        held = event.recorded
        self._take_place(event, held)
        add = _ADD.get(type(held))
        if add is not None:
            add(self, event, held)
        elif self._calls.add(event):
            pass
        elif isinstance(held, Record):  # of a kind that this version does not know
            self._mark(event, self._texts.packed(held.packed, event.kind))
        else:
            self._mark(event, self._texts.text(str(event).partition(": ")[2]))
        if not isinstance(held, _FROM_OUTSIDE):
            self._own_lsn = event.lsn

    def _take_place(self, event: RunEvent, held: Any) -> None:
        idle = self._rests or isinstance(held, (RunResumed, *_FROM_OUTSIDE)) or self._calls.idle
        if not isinstance(held, RecordsLost):  # their time is that of the repair
            self._time_us = round(event.timestamp * 1e6)
        self._axis.add(self._time_us, not idle)
        if event.lsn != self._last_lsn + 1 or not self._index:
            self._lsns.append([self._index, event.lsn])
        self._index, self._last_lsn = self._index + 1, event.lsn
        if not self._lives:
            self._lives.append({"n": 0, "from": event.lsn})
            self._calls.shown_from = self._calls.life_from = event.lsn

    def _add_damage(self, event: RunEvent) -> None:
        found = event.damage
        assert found is not None
        lost: list[Json] = [found.first_lsn, found.last_lsn] if found.lost else []
        before = max(0, self._index - 1)
        self._damage.append(
            {
                "lsn": self._last_lsn,
                "before": before,
                "i": self._index,
                "lost": lost,
                "text": printable(event.error),
            }
        )

    def _mark(self, event: RunEvent, text: Json) -> None:
        self._marks.append(
            {"lsn": event.lsn, "kind": printable(event.kind), "step": event.step, "text": text}
        )

    def _add_lost(self, event: RunEvent, held: RecordsLost) -> None:
        """Lost records, after a repair; the first one stands for all."""
        if held.last:
            what = "a checkpoint" if held.snapshot else "records"
            text = f"LSN {event.lsn}-{held.last}: {what} lost, and marked as lost by a repair"
            behind = self._index + held.last - event.lsn  # the first record after the gap
            self._damage.append(
                {
                    "lsn": event.lsn,
                    "before": max(0, self._index - 2),
                    "i": behind,
                    "lost": [event.lsn, held.last],
                    "text": text,
                }
            )

    # -- the run

    def _add_started(self, event: RunEvent, held: RunStarted) -> None:
        self._started, self._calls.uid = held, held.uid

    def _add_resumed(self, event: RunEvent, held: RunResumed) -> None:
        self._end_life(self._calls.cut(self._own_lsn))
        self._calls.life_from = event.lsn
        self._lives.append({"n": held.recovery, "from": event.lsn, "step": held.from_step})
        self._rests = ""

    def _end_life(self, cut: int) -> None:
        life = self._lives[-1]
        lost = self._damage and self._damage[-1]["i"] == self._index - 1 and self._index > 1
        life["to"], life["end"] = self._own_lsn, self._rests or ("lost" if lost else "gone")
        if cut:
            life["cut"] = cut

    def _add_step(self, event: RunEvent, held: StepStarted) -> None:
        self._steps.append([held.step, event.lsn])

    def _add_end(self, event: RunEvent, held: Any) -> None:
        self._rests = _ENDS[type(held)]
        if isinstance(held, RunFinished):
            self._mark(event, self._texts.packed(held.result))
        elif isinstance(held, RunFailed):
            text = f"{event.error}\n\n{held.traceback}".strip()
            self._mark(event, self._texts.text(text))
        elif isinstance(held, RunCancelled):
            self._mark(event, self._texts.text(f"by {held.who}: {held.why}"))
        else:
            why = held.why or f"calls in doubt: {_lsns(held.calls)}"
            self._mark(event, self._texts.text(why))

    def _add_raised(self, event: RunEvent, held: AgentRaised) -> None:
        where = f"{event.error}\nat {held.place}" if held.place else event.error
        self._mark(event, self._texts.text(f"{where}\n\n{held.traceback}".strip()))
        if not held.goes_on:
            self._rests = "raised"

    def _add_value(self, event: RunEvent, held: ValueRecorded) -> None:
        text = self._texts.packed(held.value, held.name)
        self._marks.append(
            {
                "lsn": event.lsn,
                "kind": "value",
                "name": printable(held.name),
                "step": event.step,
                "text": text,
            }
        )

    def _add_dropped(self, event: RunEvent, held: HistoryDropped) -> None:
        self._mark(event, f"the code may do without records {_lsns(held.records)}")
        self._calls.drop(held.records, event.lsn)

    def _add_messages(self, event: RunEvent, held: MessagesChanged) -> None:
        if not self._conversation.add(event, held):
            self._mark(event, f"messages {held.start} to {held.stop - 1} were removed")

    # -- giving out

    def model(self, status: RunStatus, older: int = 0) -> dict[str, Any]:
        """The whole model. ``status``: of the run; ``older``: the number of records before the
        first."""
        live = status.owner is not None and status.owner.alive
        if self._lives:
            self._end_life(0 if live else self._calls.at_work)
            if live and not self._rests:
                self._lives[-1]["end"] = "live"
        stands = {call.lsn: call for call in status.calls}
        self._calls.settle(stands, live, (self._last_lsn, self._own_lsn))
        axis, lanes = self._axis, self._calls.lanes()
        return {
            "version": VERSION,
            "run": self._run(status) | {"older": older},
            "began": axis.began_us,
            "pauses": axis.pauses_us,
            "breaks": axis.breaks(),
            "setBack": axis.set_back,
            "lsns": self._lsns,
            "steps": self._steps,
            "lives": self._lives,
            "lanes": lanes,
            "states": STATES,
            "calls": self._calls.as_json(),
            "marks": self._marks,
            "messages": self._conversation.everything,
            "damage": self._damage,
        }

    def _run(self, status: RunStatus) -> dict[str, Json]:
        started, last = self._started, self._last
        about: dict[str, Json] = {
            "run_id": printable(started.run_id if started is not None else status.run_id),
            "state": status.state,
            "why": self._texts.text(status.why),
            "torn": status.torn,
            "recoveries": status.recoveries,
            "records": self._index,
            "last": self._last_lsn,
        }
        if status.packed_task is not None:
            about["task"] = self._texts.packed(status.packed_task, "task")
        if started is not None:
            about["parent"], about["forked"] = _link(started.parent), _link(started.forked_from)
        if last is not None:
            usage = last.progress.usage
            about |= {
                "steps": usage.steps,
                "attempts": usage.calls,
                "failed": last.progress.failed,
                "tokens": usage.tokens,
                "cost": usage.cost,
                "seconds": usage.seconds,
            }
        return about


def _lsns(lsns: list[int]) -> str:
    shown, more = ", ".join(map(str, lsns[:LSNS_SHOWN])), len(lsns) - LSNS_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def _link(link: Any) -> Json:
    match link:
        case {"run_id": str(run_id)}:
            return printable(run_id)
    return ""


_ADD: dict[type, Callable[[Timeline, RunEvent, Any], None]] = {
    RunStarted: Timeline._add_started,
    RunResumed: Timeline._add_resumed,
    StepStarted: Timeline._add_step,
    AgentRaised: Timeline._add_raised,
    ValueRecorded: Timeline._add_value,
    HistoryDropped: Timeline._add_dropped,
    MessagesChanged: Timeline._add_messages,
    RecordsLost: Timeline._add_lost,
    RunParked: Timeline._add_end,
    RunFinished: Timeline._add_end,
    RunFailed: Timeline._add_end,
    RunCancelled: Timeline._add_end,
}
