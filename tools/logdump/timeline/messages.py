"""Reconstructs the conversation of a run from the changes of its messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from eventlog.dump import Json
from logdump.timeline.texts import DECODED_SIZE_MAX, Texts
from recovery.errors import RecoveryError
from recovery.inspect.run_event import RunEvent
from recovery.journal.events import MessagesChanged
from recovery.text import printable
from recovery.values.backrefs import parse_reference
from recovery.values.pack import split_list
from recovery.values.render import readable
from recovery.values.types import Ref


class Conversation:
    """Applies the changes of the messages, in the order of the log.

    ``packed_message`` resolves a reference to a message (RecoveryError when it is lost).
    ``outcomes``: calls and their tools, by the LSN of the outcome. ``everything``: all messages
    that the run ever had.
    """

    def __init__(
        self,
        texts: Texts,
        packed_message: Callable[[Any], bytes],
        outcomes: Mapping[int, tuple[int, str]],
    ) -> None:
        self.everything: list[dict[str, Json]] = []
        self._texts, self._packed_message, self._outcomes = texts, packed_message, outcomes
        self._now: list[dict[str, Json]] = []  # without messages older than the shown records
        self._older = 0  # the number of those messages

    def add(self, event: RunEvent, held: MessagesChanged) -> int:
        """Apply a change; returns the number of new messages in it."""
        packed = split_list(held.new) if isinstance(held.new, bytes) else held.new
        new = [self._message(event, one) for one in packed]
        self.everything += new
        self._older = max(self._older, held.start - len(self._now))
        start, stop = (max(0, at - self._older) for at in (held.start, held.stop))
        for gone in self._now[start:stop]:
            gone["removed"] = event.lsn
        self._now[start:stop] = new
        self._older = min(self._older, held.start)
        return len(new)

    def _message(self, event: RunEvent, packed: Any) -> dict[str, Json]:
        made: dict[str, Json] = {"lsn": event.lsn, "step": event.step}
        tools = [""]
        try:
            reference = parse_reference(packed)
        except ValueError:  # no value at all, and shown as that
            reference = None
        if reference is not None:
            made_by = [self._outcomes[lsn] for lsn in reference.lsns if lsn in self._outcomes]
            tools += [tool for _, tool in made_by]
            if made_by:
                made["call"] = made_by[0][0]
            if isinstance(reference, Ref) and made_by:
                made["same"] = True  # the result of that call, which is shown once
            try:
                packed = self._packed_message(reference)
            except (RecoveryError, ValueError) as exc:
                return made | {"lost": self._texts.text(str(exc))}
        value = readable(packed) if len(packed) <= DECODED_SIZE_MAX else None
        name = next((tool for tool in tools if self._texts.hides(tool)), "")
        match value:
            case {"role": str(role), "content": content, **rest} if not rest:
                made["role"], value, name = printable(role), content, name or "content"
            case {"role": str(role), **rest}:
                made["role"], value = printable(role), rest
        if "same" not in made:
            whole = value is not None
            made["text"] = self._texts.value(value, name) if whole else self._texts.packed(packed)
        return made
