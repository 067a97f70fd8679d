"""Stops a replay in pdb, at the line of the agent that begins a step or makes a call."""

from __future__ import annotations

import bdb
import pdb
import sys
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

from recovery.agent.drivers import Drivers
from recovery.errors import RecoveryError
from recovery.journal.call_key import number_of, outer_call
from recovery.journal.encoding import decode_shallow
from recovery.journal.events import CallIntended, StepStarted
from recovery.testing.replaying.execution import Plan, RecordEndError
from recovery.testing.replaying.recorded_run import RecordedRun
from recovery.testing.simulated.user_code import is_users

_LIBRARY = ("recovery.", "eventlog.", "asyncio.", "contextlib")
END = "the record ends here"


class _Pdb(pdb.Pdb):
    """Stops in the agent's code, and shows its frames alone."""

    file = ""  # of the agent: it may be in an installed package

    def stop_here(self, frame: FrameType) -> bool:
        return self._is_shown(frame) and super().stop_here(frame)

    def get_stack(
        self, f: FrameType | None, t: TracebackType | None
    ) -> tuple[list[tuple[FrameType, int]], int]:
        stack, index = super().get_stack(f, t)
        shown = [one for one in stack if self._is_shown(one[0])]
        return (shown, len(shown) - 1) if shown else (stack, index)

    def _is_shown(self, frame: FrameType) -> bool:
        name = frame.f_code.co_filename  # "<string>" is code that dataclasses make
        return name == self.file or (is_users(frame) and not name.startswith("<"))

    def stop_at(self, frame: FrameType) -> None:
        """Let the user act at this frame, and continue as they say. Raises BdbQuit to end."""
        self.reset()
        self.file = frame.f_code.co_filename
        around: FrameType | None = frame
        while around is not None:
            self.botframe = around
            around = around.f_back
        self.interaction(frame, None)
        if self.quitting:
            raise bdb.BdbQuit
        # After `continue` there is nothing to watch for but breakpoints.
        continues = self.stopframe is self.botframe and self.stoplineno == -1 and not self.breaks
        if not continues:
            around = frame
            while around is not None:
                around.f_trace = self.trace_dispatch
                around = around.f_back
            sys.settrace(self.trace_dispatch)


class Debugger:
    """Stops at a step, or at the call of a record (``at``); else only where the record ends."""

    def __init__(self, plan: Plan, at: str | None, say: Callable[[str], None]) -> None:
        self._say, self._pdb = say, _Pdb(nosigint=True)
        self._step, self._lsn = _place(plan.recorded, at)
        plan.on_step, plan.on_call, plan.on_end = self._on_step, self._on_call, self._on_end

    @property
    def is_waiting(self) -> bool:
        """Whether the place has not come."""
        return self._step >= 0 or self._lsn > 0

    def post_mortem(self, error: BaseException) -> None:
        """Stop at the line of the agent that raised an error."""
        self._pdb.reset()
        self._pdb.interaction(None, error.__traceback__)

    def _on_step(self, run: Drivers, step: int) -> None:
        if step == self._step:
            self._stop(run, f"step {step} begins here")

    def _on_call(self, run: Drivers, lsn: int) -> None:
        if self._step == 0 or lsn == self._lsn > 0:
            which = f"call {lsn}" if lsn else "a new call"
            self._stop(run, f"step {run.step}, {which}")

    def _on_end(self, run: Drivers, where: str) -> None:
        self._stop(run, f"{END}: {where}")

    def _stop(self, run: Drivers, why: str) -> None:
        self._step, self._lsn = -1, 0
        self._say(why)
        frame = _frame_of(run)
        if frame is None:
            self._say("no line of the agent is here: it waits for a task of its own")
            return
        try:
            self._pdb.stop_at(frame)
        except bdb.BdbQuit:
            run.stop(RecordEndError("left"))


def _place(recorded: RecordedRun, at: str | None) -> tuple[int, int]:
    """The step, or the LSN of the call of the agent, at which to stop; (-1, 0) for neither.

    A record inside a call, or of its outcome, is at the call.
    """
    if at is None:
        return -1, 0
    kind, _, number = at.rpartition(":")
    wanted = number_of(number)
    if kind not in ("", "lsn", "LSN") or wanted is None:
        raise ValueError(f"--at {at} is no step (--at 3) and no record (--at lsn:38)")
    if not kind:
        return wanted, 0
    if not 0 < wanted <= recorded.records:
        raise RecoveryError(f"the run has no record {wanted}: its last one is {recorded.records}")
    scopes: dict[int, str] = {}
    with recorded.store.backend.claim(recorded.run_id) as log:
        for record in log.records(1):
            event = decode_shallow(record)
            if isinstance(event, CallIntended):
                scopes[record.lsn] = event.scope
            if record.lsn < wanted or event is None:
                continue
            if isinstance(event, StepStarted):
                return event.step, 0
            call = record.lsn if isinstance(event, CallIntended) else getattr(event, "call", 0)
            while call in scopes and (outer := outer_call(scopes[call])):
                call = outer
            if call:
                return -1, call
    return -1, 0


def _is_agents(frame: FrameType) -> bool:
    return not frame.f_globals.get("__name__", "").startswith(_LIBRARY)


def _frame_of(run: Any) -> FrameType | None:
    """The frame of the agent's code that acts now: on the stack, or where its task waits."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_LIBRARY[:2]):
        frame = frame.f_back
    if frame is not None and _is_agents(frame):
        return frame
    task = getattr(run, "_root", None)
    waits: Any = task.get_coro() if task is not None else None
    found = None
    while waits is not None:
        here = getattr(waits, "cr_frame", None)
        found = here if here is not None and _is_agents(here) else found
        waits = getattr(waits, "cr_await", None)
    return found
