"""The tool executor of an AgentLoop: each call recorded before it starts, and when it has ended."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from recovery import Call, OutcomeUnknown
from recovery.integrations.hive.keyed_run import Book
from recovery.integrations.hive.plain import fields_of, made, packable, plain, type_beside
from recovery.journal.contract_version import CURRENT
from recovery.journal.events import CallFailed, CallResolved, CallReturned
from recovery.journal.failure import failure
from recovery.journal.rebuilt_errors import rebuilt
from recovery.replay.recorded_call import RecordedCall
from recovery.values.pack import pack

_logger = logging.getLogger("recovery")

PASSED = ("probe_for_tool", "kill_for_tool")  # what an executor may have, and Hive then uses
_current: ContextVar[Call | None] = ContextVar("hive_call", default=None)


def current_call() -> Call | None:
    """The recorded call of a tool inside which this code runs: its idempotency key, its attempt.

    None outside of one. In the thread of the tool, and in what it awaits.
    """
    return _current.get()


@dataclass(slots=True)
class ToolUse:
    """A call that is made again, as Hive's executors see it."""

    id: str
    name: str
    input: dict[str, Any]


class RecordedTools:
    """In the place of Hive's tool executor; for any thread, and for many at once.

    The intent is durable before the tool starts, and the result before the loop has it. A call that
    is asked for again by the same id, tool and input, before the conversation has its result, is
    served it. What the wrapped executor raises is recorded, and raised.
    """

    def __init__(
        self, book: Book, executor: Callable[[Any], Any], policy: Callable[[str], Any]
    ) -> None:
        self._book, self._executor, self._policy = book, executor, policy
        for name in PASSED:
            if hasattr(executor, name):
                setattr(self, name, getattr(executor, name))

    def __call__(self, tool_use: Any) -> Any:
        """A ToolResult, or what gives one when it is awaited; as the wrapped executor does it."""
        given = tool_use.input
        given = dict(plain(given)) if isinstance(given, Mapping) else {"input": plain(given)}
        known = self._book.answer(tool_use.id, tool_use.name, given)
        if known is not None and known.has_outcome:
            return served(known, tool_use)
        policy = self._policy(tool_use.name)
        policy = policy if isinstance(policy, str) else "reconcile"
        return self._make(self._book.intend(tool_use.name, tool_use.id, given, policy), tool_use)

    async def again(self, call: RecordedCall) -> None:
        """Make a call of an earlier process again: that it may be is recorded."""
        given = call.arguments or ((), {})
        use = ToolUse(call.key.call_id, call.key.tool, given[1])
        try:
            found = await asyncio.to_thread(self._make, call, use)
            if inspect.isawaitable(found):
                await found
        except Exception:
            _logger.info("made again, and failed: %s", self._book.call(call), exc_info=True)

    def _make(self, call: RecordedCall, tool_use: Any) -> Any:
        token = _current.set(self._book.call(call))
        try:
            found = self._executor(tool_use)
        except Exception as exc:
            self._book.ended(call, failure(call.lsn, exc))
            raise
        finally:
            _current.reset(token)
        if inspect.isawaitable(found):
            return self._awaited(call, found)
        self._returned(call, found)
        return found

    async def _awaited(self, call: RecordedCall, found: Awaitable[Any]) -> Any:
        token = _current.set(self._book.call(call))
        try:
            result = await found
        except asyncio.CancelledError:
            self._book.cancelled(call)
            raise
        except Exception as exc:
            await asyncio.to_thread(self._book.ended, call, failure(call.lsn, exc))
            raise
        finally:
            _current.reset(token)
        await asyncio.to_thread(self._returned, call, result)
        return result

    def _returned(self, call: RecordedCall, result: Any) -> None:
        # What cannot be carried is told in words: the tool has done what it did.
        held = {
            name: value if packable(value) else plain(value)
            for name, value in fields_of(result).items()
        }
        self._book.ended(call, CallReturned(call.lsn, pack(held, f"result of {call.key.tool}")))


def outcome_of(call: RecordedCall, key: str = "") -> dict[str, Any]:
    """What a call that is over came to: the fields of a ToolResult, but for the id."""
    match call.last:
        case CallReturned(value=value) | CallResolved(how="outcome", value=value):
            if isinstance(value, dict) and "content" in value:
                return {name: one for name, one in value.items() if name != "tool_use_id"}
            return {"content": value if isinstance(value, str) else json.dumps(plain(value))}
        case CallFailed() as failed:
            kind = failed.type.removeprefix("builtins.")
            return {"content": f"{kind}: {failed.message}", "is_error": True}
        case CallResolved(value=reason):
            return {"content": f"This call was given up: {reason}", "is_error": True}
    return unknown(call, key)


def unknown(call: RecordedCall, key: str) -> dict[str, Any]:
    """What the model is told of a call of which nobody knows what became of it."""
    return {"content": str(OutcomeUnknown(call.key.tool, key)), "is_error": True}


def served(call: RecordedCall, tool_use: Any) -> Any:
    """The recorded outcome, as Hive's executors give it."""
    if isinstance(call.last, CallFailed):
        raise rebuilt(call.last, (), CURRENT)
    kind = type_beside(type(tool_use), "ToolResult")
    return made(kind, {"tool_use_id": tool_use.id, **outcome_of(call)})
