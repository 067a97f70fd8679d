"""Keeps the messages of a conversation in its journal, and knows which results they hold."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Any

from recovery.call_journal import CallJournal, FinishedCall

SHARED = ("phase_id", "run_id")  # by which Hive tells conversations in one store apart


class ConversationRecord:
    """The messages of a conversation, in the order of their seq; thread-safe.

    ``is_new``: whether no process has opened the conversation before.
    """

    def __init__(self, journal: CallJournal) -> None:
        self.journal, self.parts = journal, journal.messages
        self.is_new = not journal.values
        self.mutex = threading.RLock()
        # Calls (LSNs) whose outcomes are in the messages, or are not asked for any more.
        self._known: set[int] = set()
        # Of each conversation in here, the last turn: its LSN, and the calls that it asked for.
        self._turns: dict[tuple[Any, ...], tuple[int, Mapping[str, Any]]] = {}
        left = journal.finished()
        for at, part in enumerate(self.parts):
            lsn = journal.message_lsn(at)
            self._notice(part, lsn, [one for one in left if one.ended < lsn])

    def place_of(self, seq: int) -> int:
        """Where the message of this seq is, or would be."""
        return bisect_left(self.parts, seq, key=lambda part: part["seq"])

    def part(self, seq: int) -> Any:
        """The message of this seq, None if there is none."""
        at = self.place_of(seq)
        found = self.parts[at] if at < len(self.parts) else None
        return found if found is not None and found["seq"] == seq else None

    def write(self, start: int, stop: int, new: list[dict[str, Any]]) -> None:
        """``parts[start:stop] = new``; outcomes that the messages hold now are forgotten."""
        with self.mutex:
            self.parts[start:stop] = new
            for at, part in enumerate(new, start):
                self._notice(part, self.journal.message_lsn(at), self.journal.finished())
            if any(part["role"] == "assistant" for part in new):
                self.journal.forget(self.known())

    def missing(self) -> list[FinishedCall]:
        """Calls that are over, and whose outcomes the messages may still need."""
        return [one for one in self.journal.finished() if one.lsn not in self._known]

    def outcome(
        self, call_id: str, tool: str, given: Mapping[str, Any] | None
    ) -> FinishedCall | None:
        """The outcome that is missing of this call. Without arguments (Hive cuts old ones), its id
        and its tool identify it."""
        for one in reversed(self.missing()):
            same = given is None or one.arguments in (None, ((), given))
            if (one.call_id, one.tool) == (call_id, tool) and same:
                return one
        return None

    def known(self) -> list[FinishedCall]:
        """Calls whose outcomes the messages hold, or need no more."""
        return [one for one in self.journal.finished() if one.lsn in self._known]

    def _notice(self, part: Any, lsn: int, over: Iterable[FinishedCall]) -> None:
        """Note which outcomes a message makes known. ``over``: the calls that are over by then.

        The calls of a turn are not asked for any more when the next turn of the same conversation
        begins. A call that no message asks for may be asked for by a message that the model has not
        ended: it has one turn more.
        """
        if part["role"] == "tool":
            self._known |= {one.lsn for one in over if one.call_id == part.get("tool_use_id")}
        elif part["role"] == "assistant":
            whose = conversation_of(part)
            before, past = self._turns.get(whose, (0, {}))
            self._turns[whose] = lsn, ids_of(part)
            asked = {one for _, ids in self._turns.values() for one in ids}
            self._known |= {
                one.lsn
                for one in over
                if one.call_id not in asked and (one.call_id in past or one.ended < before)
            }


def conversation_of(part: Mapping[str, Any]) -> tuple[Any, ...]:
    """Which of the conversations that share a store a message belongs to."""
    return tuple(part.get(name) for name in SHARED)


def ids_of(part: Mapping[str, Any]) -> dict[str, Any]:
    """The calls that an assistant message asks for, by the model's id."""
    return {one["id"]: one for one in part.get("tool_calls") or () if one.get("id")}
