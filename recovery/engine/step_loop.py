"""Tracks the loop of steps of a run, and the state and messages that it carries."""

from __future__ import annotations

import logging
import sys
from collections.abc import Collection
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

from eventlog import Packed
from recovery.agent_code.call_site import call_site, is_over, present
from recovery.errors import RecoveryError
from recovery.history.run_state import RunState
from recovery.journal.call_key import BEFORE_STEPS
from recovery.journal.events import BEFORE, BESIDE, RESUMED
from recovery.journal.messages import Messages, Recorder
from recovery.values.pack import pack_message
from recovery.values.sealed import Personal, hiding

if TYPE_CHECKING:
    from recovery.engine.changed_locals import LocalsBefore
    from recovery.engine.execution_base import ExecutionBase
    from recovery.history.load import History

_logger = logging.getLogger("recovery")

_BESIDE = (
    "a task that was started before the loop of steps ({}). A resumed run starts this task again, "
    "and it makes the change twice. Start the task in a step, or have the loop make the change."
)

_UNSURE = (
    "run %s: the code before the loop of steps made %d calls of %s, and %d are recorded. A call "
    "that is not recorded was served the outcome of another one, by order, and was not executed. "
    "If its arguments depend on the steps so far, make it in the loop, or give it a call_id."
)


class Loop:
    """A run's state and messages, from the first line of the agent function on.

    A run that is resumed from a checkpoint has those of the checkpoint. The code before the loop
    has changed them the first time, and the checkpoint has these changes: they are not made again.
    """

    def __init__(self, run: ExecutionBase, history: History, record: Recorder) -> None:
        restored = history.restored
        self._run = run
        # Whether a resumed run executes the code before the loop again.
        self.is_before = restored is not None
        # Whether the run itself executes this code for the first time: the checkpoint of a fork
        # with another task was not made by the code before its loop.
        self._is_first = restored is None or (
            history.has_another_task and not run.replay.later_steps(restored.step)
        )
        self._within: object = None  # the task or thread in which the loop is
        # Keys of the state that were there when a loop was entered, and need not be now.
        self._known: Collection[str] | None = ()
        self._warned: set[str] = set()
        self._locals: LocalsBefore | None = None  # until the first checkpoint
        self.state = RunState(self._warn_of_state, self._mark_state)
        self.messages = Messages(record, self._mark_message)
        if restored is not None:
            self.state.restore(restored.state)
            self._known = restored.removed
            self.messages.restore(restored.messages, restored.refs)
            self.messages.is_past = True
            restored.release()

    def _mark_state(self, key: str, value: Personal) -> Any:
        return self._run.write_or_stop(self._run.subjects.mark_state, key, value)

    def _mark_message(self, message: Personal, path: str) -> Packed:
        packed = hiding(partial(pack_message, message.value, path), path)
        return self._run.write_or_stop(self._run.subjects.mark, message.subject, packed)

    def claim(self, handle: object, frame: FrameType) -> None:
        """Note that the code of ``frame`` enters the loop of steps, by the Run that it holds. A run
        has one loop, because a checkpoint must know where to continue."""
        if self._run.in_loop:
            raise RecoveryError("run.steps() was called before: a run has one loop of steps")
        settings = self._run.settings
        if settings.check_locals and settings.checkpoint_every_n is not None:
            from recovery.engine.changed_locals import LocalsBefore  # noqa: PLC0415 - not in every run

            self._locals = LocalsBefore.of(handle, frame)

    def checkpointed(self) -> None:
        """Note that a checkpoint was taken."""
        if self._locals is not None:
            seen, self._locals = self._locals, None
            seen.look_again(self._run, sys._getframe(1))

    def enter(self) -> None:
        """Begin the loop: from here on changes are made."""
        dropped: set[str] = set()
        if self.is_before:
            self.messages.is_past = False
            dropped = self.state.enter_loop(self._known)
            for tool, made, recorded in self._run.replay.enter_loop():
                _logger.warning(_UNSURE, self._run.run_id, made, tool, recorded)
        self._run.in_loop, self.is_before, self._within = True, False, present()
        self._known = {*(self._known or ()), *dropped, *self.state}

    def removed(self) -> tuple[str, ...]:
        """The keys that the steps have removed from the state: a resumed run does not set them."""
        return tuple(sorted({*(self._known or ())} - self.state.keys()))

    def place_of(self, scope: str) -> str | None:
        """Where a call of this scope is made, as CallIntended.loop says it."""
        if scope != BEFORE_STEPS:
            return None
        if self._run.in_loop:
            return BESIDE
        return BEFORE if self._is_first else RESUMED

    def check_messages(self) -> None:
        """RecoveryError for a change of the messages that a resumed run would make again."""
        if self._is_beside():
            raise RecoveryError(
                f"run.messages was changed by {_BESIDE.format(call_site())} With "
                "checkpoint_every_n=None it is allowed."
            )

    def _warn_of_state(self) -> None:
        """Warn of a change of the state by code that a resumed run would execute again. It is no
        error: assigning the same value again is harmless, and looks the same as counting."""
        if self._is_beside() and (site := call_site()) not in self._warned:
            self._warned.add(site)
            _logger.warning(
                "run %s: run.state was changed by %s", self._run.run_id, _BESIDE.format(site)
            )

    def _is_beside(self) -> bool:
        """Whether a task is running that was started before the loop, beside it."""
        run = self._run
        if not run.in_loop or run.settings.checkpoint_every_n is None:
            return False
        return run.current_scope().path == BEFORE_STEPS and not is_over(self._within)
