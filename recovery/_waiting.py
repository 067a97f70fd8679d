"""Waiting for what is outside of the run: a time, a signal, somebody's decision.

A wait is a recorded call that can be begun again at any time: its deadline is the one that was
recorded first. While it lasts the run looks into its inbox, and may be parked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import field, replace
from typing import TypeVar

from eventlog._dataclass import dataclass
from recovery._core import RunCore
from recovery._doubt import Settled
from recovery._effects import Nap
from recovery._errors import WaitingError
from recovery._events import RunParked, SignalTaken
from recovery._tool import Call, ToolSpec
from recovery.stores.protocol import check_signal_name

T = TypeVar("T")

# A wait looks for what it waits for at once, soon again, and less and less often: after a tenth of
# the time that it has lasted, at most a second.
NAP_MIN_S, NAP_MAX_S = 0.02, 1.0


@dataclass(eq=False, slots=True)
class Waiting:
    """A wait that is under way, for ``until`` (seconds since 1970) if it ends by itself."""

    call: int
    what: str
    until: float | None
    began: float = field(default_factory=time.monotonic)


def wait(
    run: RunCore, waiting: Waiting, ready: Callable[[], T | None]
) -> Generator[Nap, None, T | None]:
    """Until ``ready()`` gives something: that; None when ``waiting.until`` has come first."""
    run.waiting += 1
    run.waits.append(waiting)
    try:
        while True:
            run.check()
            run.inbox.look(at_once=True)
            found = ready()
            if found is not None:
                return found
            left = None if waiting.until is None else waiting.until - run.wall_clock()
            if left is not None and left <= 0:
                return None
            _park_if_idle(run)
            waited = time.monotonic() - waiting.began
            nap = min(max(NAP_MIN_S, waited / 10), NAP_MAX_S)
            yield Nap(nap if left is None else min(nap, left))
    finally:
        run.waits.remove(waiting)
        run.waiting -= 1


def _park_if_idle(run: RunCore) -> None:
    """Stop the run, when all that it does is wait, has been for long enough, and will be."""
    limit = run.settings.park_after_s
    # Inside a tool that is at work too: parking would leave it in doubt.
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
    run.emit(RunParked(calls, why=why, wake_at=wake_at))
    run.commit()
    run.stop(WaitingError(run.run_id, waits_for, wake_at))


# -- sleeping


def _sleep(run: RunCore, call: Call) -> Generator[Nap, None, None]:
    """A clock that is set back makes it longer by no more than it was to be."""
    (seconds,), until = call.args, call.kwargs["until"]
    waiting = Waiting(call.lsn, f"sleep until {_shown(until)}", until)

    def slept() -> bool | None:
        return time.monotonic() - waiting.began >= seconds or None

    yield from wait(run, waiting, slept)


SLEEP = ToolSpec("sleep", _sleep, "retry", waits=True, identified_by=0)


def sleep_arguments(run: RunCore, seconds: float) -> tuple[tuple[float], dict[str, float]]:
    """The arguments of a call of SLEEP."""
    seconds = float(seconds)
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"run.sleep is for 0 seconds or more, not {seconds}")
    return (seconds,), {"until": run.wall_clock() + seconds}


def _shown(until: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(until))
    except (ValueError, OverflowError, OSError):
        return f"{until:.0f} s after 1970"


# -- signals


def _wait_for(run: RunCore, call: Call) -> Generator[Nap, None, Settled]:
    (name,), until, timeout = call.args, call.kwargs["until"], call.kwargs["timeout"]
    what = f"signal {name!r}" + ("" if until is None else f", until {_shown(until)}")

    def taken() -> Settled | None:
        losses = run.replay.losses
        known = losses.signal(name) if losses is not None and call.lsn in losses.presumed else None
        if known is not None:  # by a wait whose record is lost: this one, or one like it
            event = replace(known, call=call.lsn)
            return Settled(run.emit(event), event)
        found = run.inbox.take(name)
        if found is None:
            return None
        # Invariant: signals of a name are taken in the order in which they were sent, and recorded
        # as taken in that order: under the mutex, with nothing between.
        lsn, value = found
        event = SignalTaken(call.lsn, value, name=name, inbox=lsn, uid=run.uid)
        return Settled(run.emit(event), event)

    found = yield from wait(run, Waiting(call.lsn, what, until), taken)
    if found is None:
        raise TimeoutError(f"no signal {name!r} came within {timeout:g} s")
    return found


WAIT_FOR = ToolSpec("wait_for", _wait_for, "retry", waits=True, identified_by=1)


def wait_for_arguments(
    run: RunCore, name: str, timeout: float | None
) -> tuple[tuple[str], dict[str, float | None]]:
    """The arguments of a call of WAIT_FOR."""
    check_signal_name(name)
    if timeout is None:
        return (name,), {"timeout": None, "until": None}
    if not 0 <= timeout < float("inf"):
        raise ValueError(f"timeout is 0 seconds or more, or None, not {timeout}")
    return (name,), {"timeout": float(timeout), "until": run.wall_clock() + timeout}
