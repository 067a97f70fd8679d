"""A conversation that grows, in a run of recovery."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import msgpack

from recovery import CheckpointStore, RecoverableAgent, tool
from recovery.errors import StoppedError

from .raw import reply, text

TEXT_SIZE = 2000  # of what the tool finds


@tool(after_crash="retry")
def ask_model(messages: list[Any], number: int) -> dict[str, Any]:
    return reply(number)


@tool(after_crash="retry")
def search(number: int) -> str:
    return text(TEXT_SIZE, number)


@tool(after_crash="retry")
def search_for(number: int, call_id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text(TEXT_SIZE, number)}


class Conversation:
    """A reply of the model and the result of a tool with each step; every third, a checkpoint."""

    def __init__(self, directory: Path, case: dict[str, Any]) -> None:
        self._agent = RecoverableAgent(self._work, CheckpointStore(directory), 3)
        self._until = 0

    def grow(self, steps: int) -> None:
        """Go on to the end of this step. The log is closed then."""
        self._until = steps
        with suppress(StoppedError):
            self._agent.run_with_recovery_sync("talk", "run")
            raise RuntimeError("the agent was to be stopped")

    def news(self) -> int:
        """Bytes of what is new with a step, packed."""
        return sum(len(msgpack.packb(part)) for part in (reply(1), text(TEXT_SIZE, 1)))

    def _work(self, run: Any) -> None:
        for number in run.steps():
            if number > self._until:
                self._agent.stop()
            said = run.call(ask_model, run.messages, number)
            run.messages.append(said)
            run.messages.append(self._result(run, number, said["tool_calls"][0]["id"]))

    def _result(self, run: Any, number: int, call_id: str) -> dict[str, Any]:
        found = run.call(search, number, call_id=call_id)
        return {"role": "tool", "tool_call_id": call_id, "content": found}


class WholeMessages(Conversation):
    """The same; the tool returns the message, which is then nothing but its outcome."""

    def _result(self, run: Any, number: int, call_id: str) -> dict[str, Any]:
        message: dict[str, Any] = run.call(search_for, number, call_id)
        return message
