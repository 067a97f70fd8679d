"""Waits for events outside the run: a time, a signal, a decision.

A wait is a recorded call that can be begun again at any time: its deadline is the one that was
recorded first. During the wait the run reads its inbox, and may be parked.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator
from dataclasses import replace

from recovery.declare.spec import ToolSpec
from recovery.engine.driver_effects import Sleep, WaitForTurn, Waiting
from recovery.engine.execution import Execution
from recovery.errors import WaitingError
from recovery.journal.call import Call
from recovery.journal.events import RunParked, SignalTaken
from recovery.option_checks import check_seconds
from recovery.replay.call_view import CallOutcome
from recovery.stores.protocol import check_signal_name
from recovery.text import shown_time
from recovery.values.pack import pack, unpack

# A wait polls at once, and then less and less often: after a tenth of the time that it has lasted,
# at most a second.
NAP_MIN_S, NAP_MAX_S = 0.02, 1.0


# The position of new ends of waits in the replay order: after all that is recorded, and among each
# other by the time at which they happened (ns since 1970).
_AFTER_ALL = 1 << 62
# The position of a new call: after the calls that follow from waits that are over.
AFTER_WAITS = 1 << 63


def wait(run: Execution, waiting: Waiting) -> Generator[Sleep, None, None]:
    """Wait until the event has come, or the time ``waiting.until``."""
    run.waits.append(waiting)
    try:
        yield from _until_over(run, waiting)
    finally:
        run.waits.remove(waiting)


def wait_in_turn(run: Execution, waiting: Waiting) -> Generator[Sleep | WaitForTurn, None, None]:
    """``wait``, and then wait until the agent can receive the outcome at once.

    The caller must not wait again before the call returns: then nothing can come between the
    record of the event and the agent that receives it. So a wait that is cancelled earlier has
    consumed nothing. Of several waits, the one that was over first is first.
    """
    run.waits.append(waiting)
    try:
        while True:
            over = yield from _until_over(run, waiting)
            yield from _in_turn(run, waiting, _AFTER_ALL + int(over * 1e9))
            run.inbox.look(at_once=True)
            still = waiting.over(run.wall_clock())
            if still is None:  # another wait has taken it
                continue
            if not _another_is_before(run, waiting, still):
                return
            yield Sleep(NAP_MIN_S)
    finally:
        run.waits.remove(waiting)


def _until_over(run: Execution, waiting: Waiting) -> Generator[Sleep, None, float]:
    """Wait until it is over; returns when that was."""
    waiting.inside = (0, *run.current_scope().calls)[-1]
    run.waiting += 1
    try:
        while True:
            run.check()
            run.inbox.look(at_once=True)
            now = run.wall_clock()
            over = waiting.over(now)
            if over is not None:
                return over
            _park_if_idle(run)
            waited = time.monotonic() - waiting.began
            nap = min(max(NAP_MIN_S, waited / 10), NAP_MAX_S)
            left = math.inf if waiting.until is None else waiting.until - now
            yield Sleep(min(nap, left), min(left, _parks_in(run)))
    finally:
        run.waiting -= 1


def is_due(run: Execution) -> bool:
    """Whether a wait is over, and the agent is about to receive its outcome."""
    return bool(run.waits) and any(waiting.due for waiting in run.waits)


def after_waits(run: Execution) -> Generator[WaitForTurn, None, None]:
    """Wait until the agent has received the waits that are over, and the code that this woke is
    idle."""
    yield from run.wait_until(lambda: not is_due(run), turn=AFTER_WAITS)


def _another_is_before(run: Execution, waiting: Waiting, over: float) -> bool:
    now = run.wall_clock()
    others = (one.over(now) for one in run.waits if one is not waiting)
    return any(other is not None and other < over for other in others)


def _in_turn(run: Execution, waiting: Waiting, turn: int) -> Generator[WaitForTurn, None, None]:
    """Wait until everything recorded has been replayed, and the code that this woke is idle."""
    waiting.due = True
    try:
        # Before the loop of a resumed run, what is recorded of the steps is yet to come.
        yield from run.wait_until(lambda: run.before_loop or run.replay.is_next(turn), turn)
        if not run.before_loop:
            run.replay.stop_waiting(turn)
    finally:
        waiting.due = False


def _park_if_idle(run: Execution) -> None:
    """Park the run if it only waits, has waited for long enough, and will wait longer."""
    limit = run.settings.park_after_s
    # Not inside a tool that is executing: parking would leave its call in doubt.
    if limit is None or run.in_flight > run.waiting + run.children.idle():
        run.idle_since = None
        return
    now, busy = time.monotonic(), (run.executed, run.served, len(run.waits))
    if run.idle_since is None or run.idle_since[1] != busy:
        run.idle_since = now, busy
    ends = [waiting.until for waiting in run.waits if waiting.until is not None]
    wake_at = min(ends, default=None)
    if now - run.idle_since[0] < max(limit, NAP_MIN_S):
        return
    if wake_at is not None and wake_at - run.wall_clock() <= limit:
        return  # not worth it
    waits_for = [waiting.what for waiting in run.waits]
    calls = [waiting.call for waiting in run.waits]
    why = f"waits for {'; '.join(waits_for)}"
    run.record(RunParked(calls, why=why, wake_at=wake_at))
    run.commit()
    run.stop(WaitingError(run.run_id, waits_for, wake_at))


def _parks_in(run: Execution) -> float:
    """In how many seconds the run is parked if nothing happens until then; inf: not at all."""
    limit = run.settings.park_after_s
    if limit is None or run.idle_since is None:
        return math.inf
    left = run.idle_since[0] + max(limit, NAP_MIN_S) - time.monotonic()
    return left if left > 0 else math.inf  # for so little time it is not worth it


# -- sleeping


def _sleep(run: Execution, call: Call) -> Generator[Sleep | WaitForTurn, None, None]:
    """Sleep. A clock that is set back makes it longer by no more than its own duration."""
    (seconds,), until = call.args, call.kwargs["until"]
    began = time.monotonic()

    def slept() -> float | None:
        return run.wall_clock() if time.monotonic() - began >= seconds else None

    yield from wait_in_turn(
        run, Waiting(call.lsn, f"sleep until {shown_time(until)}", until, slept)
    )


SLEEP = ToolSpec("sleep", _sleep, "retry", waits=True, identified_by=0)


def sleep_arguments(run: Execution, seconds: float) -> tuple[tuple[float], dict[str, float]]:
    """The arguments of a call of SLEEP."""
    check_seconds("run.sleep(seconds)", seconds, none=False, above=False)
    seconds = float(seconds)
    if not seconds < float("inf"):
        raise ValueError("run.sleep for ever never ends: run.wait_for waits for a signal")
    return (seconds,), {"until": run.wall_clock() + seconds}


# -- signals


def _wait_for(run: Execution, call: Call) -> Generator[Sleep | WaitForTurn, None, CallOutcome]:
    (wanted,), until, timeout = call.args, call.kwargs["until"], call.kwargs["timeout"]
    several = not isinstance(wanted, str)
    names = tuple(wanted) if several else (wanted,)
    what = f"signal {_listed(names)}" + ("" if until is None else f", until {shown_time(until)}")

    def lost() -> SignalTaken | None:  # by a wait whose record is lost: this one, or one like it
        losses = run.replay.losses
        if losses is None or call.lsn not in losses.assumed:
            return None
        return losses.signal(names, several)

    def came() -> float | None:
        return 0.0 if lost() is not None else run.inbox.came(names, until)

    yield from wait_in_turn(run, Waiting(call.lsn, what, until, came))
    known = lost()
    if known is not None:
        event = replace(known, call=call.lsn)
    else:
        found = run.inbox.take(names, until)
        if found is None:
            raise TimeoutError(f"no signal {_listed(names)} came within {timeout:g} s")
        # Invariant: signals of a name are taken in the order in which they were sent, and recorded
        # as taken in that order: under the mutex, without a break.
        sent, value = found
        if several:
            value = pack((sent.about, unpack(value)), f"signal {sent.about!r}")
        event = SignalTaken(
            call.lsn,
            value,
            name=sent.about,
            inbox=sent.lsn,
            uid=run.uid,
            several=several or None,
            sent=sent.time_ns,
        )
    return CallOutcome(run.record(event), event)


WAIT_FOR = ToolSpec("wait_for", _wait_for, "retry", waits=True, identified_by=1)


def wait_for_arguments(
    run: Execution, names: str | tuple[str, ...], timeout: float | None
) -> tuple[tuple[str | list[str]], dict[str, float | None]]:
    """The arguments of a call of WAIT_FOR."""
    wanted = _wanted(names)
    if timeout is None:
        return (wanted,), {"timeout": None, "until": None}
    check_seconds("timeout", timeout, above=False)
    if not timeout < float("inf"):
        raise ValueError("timeout is a number of seconds; None waits for ever")
    return (wanted,), {"timeout": float(timeout), "until": run.wall_clock() + timeout}


def _wanted(names: object) -> str | list[str]:
    """The names as they are recorded: a single one as text, several as a list."""
    if isinstance(names, str):
        return check_signal_name(names)
    if not isinstance(names, tuple) or not names or not all(isinstance(n, str) for n in names):
        raise TypeError(
            f"run.wait_for is given the name of a signal, or a tuple of names, not {names!r:.80}"
        )
    return [check_signal_name(name) for name in names]


def _listed(names: tuple[str, ...]) -> str:
    return " or ".join(map(repr, names))
