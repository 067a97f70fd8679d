"""The loop of steps of a run: whether it has begun, and the state and messages that it carries."""

from __future__ import annotations

import logging
import sys
from collections.abc import Collection
from types import FrameType
from typing import TYPE_CHECKING

from recovery.agent_code.call_site import call_site, is_over, present
from recovery.errors import RecoveryError
from recovery.history.run_state import RunState
from recovery.journal.events import BEFORE, BESIDE, RESUMED
from recovery.journal.keys import BEFORE_STEPS
from recovery.journal.messages import Messages, Recorder

if TYPE_CHECKING:
    from recovery.engine.changed_locals import LocalsBefore
    from recovery.engine.execution_base import ExecutionBase
    from recovery.history.load import History

_logger = logging.getLogger("recovery")

_BESIDE = (
    "a task that was started before the loop of steps ({}). A resumed run starts this task again, "
    "and it makes the change twice. Start the task in a step, or have the loop make the change."
)


class Loop:
    """A run's state and messages, from the first line of the agent function on.

    In a run that is resumed from a checkpoint they are what that has. The changes that the code
    before the loop makes were made, and saved, the first time: they are not made again.
    """

    def __init__(self, run: ExecutionBase, history: History, record: Recorder) -> None:
        restored = history.restored
        self._run = run
        # Whether the code before the loop is at work again, in a resumed run.
        self.is_before = restored is not None
        # Whether this is what the run itself does first: a fork with another task has a checkpoint,
        # which the code before its loop has not made.
        self._is_first = restored is None or (
            history.has_another_task and not run.replay.later_steps(restored.step)
        )
        self._within: object = None  # the task or thread in which the loop is
        # Keys of the state that were there when a loop was entered, and need not be now.
        self._known: Collection[str] | None = ()
        self._warned: set[str] = set()
        self._locals: LocalsBefore | None = None  # until the first checkpoint
        self.state = RunState(self._warn_of_state)
        self.messages = Messages(record)
        if restored is not None:
            self.state.restore(restored.state)
            self._known = restored.removed
            self.messages.restore(restored.messages, restored.refs)
            self.messages.is_past = True
            restored.release()

    def claim(self, handle: object, frame: FrameType) -> None:
        """The code of ``frame`` asks for the loop of steps, by the Run that it holds. There is one
        in a run, for a checkpoint must know where to go on."""
        if self._run.in_loop:
            raise RecoveryError("run.steps() was called before: a run has one loop of steps")
        settings = self._run.settings
        if settings.check_locals and settings.checkpoint_every_n is not None:
            from recovery.engine.changed_locals import LocalsBefore  # noqa: PLC0415 - not in every run

            self._locals = LocalsBefore.of(handle, frame)

    def checkpointed(self) -> None:
        """A checkpoint was taken."""
        if self._locals is not None:
            seen, self._locals = self._locals, None
            seen.look_again(self._run, sys._getframe(1))

    def enter(self) -> None:
        """The loop begins: from here on changes are made."""
        dropped: set[str] = set()
        if self.is_before:
            self.messages.is_past = False
            dropped = self.state.enter_loop(self._known)
            self._run.replay.enter_loop()
        self._run.in_loop, self.is_before, self._within = True, False, present()
        self._known = {*(self._known or ()), *dropped, *self.state}

    def removed(self) -> tuple[str, ...]:
        """The keys that the steps have removed from the state: a resumption sets them no more."""
        return tuple(sorted({*(self._known or ())} - self.state.keys()))

    def place_of(self, scope: str) -> str | None:
        """Where a call of this scope is made, as CallIntended.loop says it."""
        if scope != BEFORE_STEPS:
            return None
        if self._run.in_loop:
            return BESIDE
        return BEFORE if self._is_first else RESUMED

    def check_messages(self) -> None:
        """RecoveryError for a change of the messages that a resumption would make again."""
        if self._is_beside():
            raise RecoveryError(
                f"run.messages was changed by {_BESIDE.format(call_site())} With "
                "checkpoint_every_n=None it is allowed."
            )

    def _warn_of_state(self) -> None:
        """Say where the state is changed by code that a resumption would run again: to assign the
        same value again does no harm, and nobody can tell that from counting."""
        if self._is_beside() and (site := call_site()) not in self._warned:
            self._warned.add(site)
            _logger.warning(
                "run %s: run.state was changed by %s", self._run.run_id, _BESIDE.format(site)
            )

    def _is_beside(self) -> bool:
        """Whether a task is at work that was started before the loop, and runs beside it."""
        run = self._run
        if not run.in_loop or run.settings.checkpoint_every_n is None:
            return False
        return run.current_scope().path == BEFORE_STEPS and not is_over(self._within)
