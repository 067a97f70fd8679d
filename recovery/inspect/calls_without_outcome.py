"""Says of a call without an outcome what it is, and what a recovery does with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from eventlog import Packed
from recovery.history.load import Ended
from recovery.inspect.inbox_view import awaited
from recovery.journal.call_key import step_of
from recovery.journal.events import RunCancelled, RunStarted, RunUndone
from recovery.replay.matching import Replay
from recovery.replay.recorded_call import RecordedCall
from recovery.replay.run_owners import Owners
from recovery.text import shown_time
from recovery.values.pack import unpack

CallState = Literal["in doubt", "under way", "asks", "waits", "to be made again"]

# What a recovery does with a call in doubt, by the policy of its tool.
_THEN = {
    "park": "parks the run until it is resolved",
    "retry": "makes it again: its tool may be repeated",
    "report": "tells the agent that its outcome is unknown",
    "reconcile": "asks the tool's reconcile function what became of it",
}


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
    ``elsewhere``: a line that names the process that had the run before, if it may still execute
    the call: its lease has ended, or the run was taken from it. A retry might make the call a
    second time. ``elsewhere_until``: until then (seconds since 1970; None: the call has no
    time-out, or no process has taken the run yet).
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
    elsewhere: str = ""
    elsewhere_until: float | None = None

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


def open_calls(
    replay: Replay,
    owners: Owners,
    started: RunStarted | None,
    ended: Ended | None,
    alive: bool,
    now: float,
) -> Iterator[OpenCall]:
    """The calls without an outcome, in the order of the log; of a run that has ended, the side
    effects in doubt. ``now``: by the store's clock (seconds since 1970)."""
    over = ended is not None and not isinstance(ended, RunUndone)
    cancelled = isinstance(ended, RunCancelled)
    doubt = {call.lsn for call in replay.in_doubt()}
    asking = {call.lsn for call in replay.undecided()}
    for call in replay.unmatched():
        if call.has_outcome or call.cancelled or (over and not call.is_open_effect):
            continue
        state: CallState = "to be made again"
        if call.intent.after_crash == "wait":
            state = "waits"
        elif call.lsn in asking:
            state = "asks"
        elif call.lsn in doubt:
            state = "under way" if alive else "in doubt"
        then = "nothing: the run is cancelled" if cancelled else ""
        shown = _open_call(call, state, started, then, now)
        there = owners.executing(call) if call.in_doubt else None
        if there is not None:
            shown = replace(shown, elsewhere=str(there), elsewhere_until=there.until)
        yield shown


def _open_call(
    call: RecordedCall, state: CallState, started: RunStarted | None, then: str, now: float
) -> OpenCall:
    intent = call.intent
    uid = started.uid if started is not None else ""
    expired = state == "asks" and call.asks_until < now
    then = (
        then
        or {
            "in doubt": _THEN.get(intent.after_crash, intent.after_crash),
            "under way": "nothing, while its process is alive",
            "asks": f"denies it: no decision came until {shown_time(call.asks_until)}"
            if expired
            else "waits until it is approved or denied",
            "waits": "goes on waiting",
            "to be made again": "makes it again",
        }[state]
    )
    return OpenCall(
        call.lsn,
        intent.tool,
        intent.call_id,
        step_of(intent.scope),
        state,
        then,
        intent.after_crash,
        call.attempts,
        call.time_ns / 1e9,
        intent.idempotency_key(uid) if started is not None or intent.key else "",
        intent.size,
        intent.child,
        awaited(intent.args)[0] if state == "waits" else (),
        intent.signed is True,
        call.unclaimed_outcomes,
        packed_value(intent.args),
    )


def packed_value(value: Any) -> Packed | None:
    """A recorded value that is there."""
    return value if type(value) is Packed and value != b"\xc0" else None
