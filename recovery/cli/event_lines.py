"""Formats events of a run, one line each, without types of values and without secrets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from eventlog import Packed
from recovery.inspect.run_event import DECODED_SIZE_MAX, text_of
from recovery.reports import RunEvent
from recovery.text import duration, printable
from recovery.values.render import Redaction, arguments_text, readable, short

WIDTH = 60  # columns of a value


def line(event: RunEvent, redaction: Redaction) -> str:
    """The event, without time and position. ``redaction``: values to hide, by tool or name."""
    held = event._recorded
    tool = event.tool or f"call {event.call}"
    after = "" if event.duration_s is None else f" after {duration(event.duration_s)}"

    def value(field: str, name: str) -> str:
        packed = getattr(held, field)
        if type(packed) is not Packed:
            return "..." if packed is not None else "null"
        if len(packed) > DECODED_SIZE_MAX:
            return f"{len(packed):,} bytes"
        return short(redaction.shown(readable(packed), name), WIDTH)

    def field(name: str) -> Any:
        return getattr(held, name)

    lines: dict[str, Callable[[], str]] = {
        "run_started": lambda: f"began: {value('task', 'task')}",
        "call": lambda: f"{tool}{called_with(field('args'), field('size'), tool, redaction)}",
        "child_started": lambda: f"child run {field('run_id')} began",
        "outcome": lambda: f"{tool} returned {value('value', tool)}{after}",
        "resolved": lambda: (
            f"{tool} resolved: {field('how')} {value('value', tool)}"
            f"{field('who') and ' by ' + field('who')}"
        ),
        "signal": lambda: f"signal {field('name')!r}: {value('value', field('name'))}{after}",
        "value": lambda: f"{field('name')}() = {value('value', field('name'))}",
        "messages": lambda: (
            f"messages[{field('start')}:{field('stop')}] = {value('new', 'messages')}"
        ),
        "run_finished": lambda: f"finished: {value('result', 'result')}",
    }
    if (told := lines.get(event.kind)) is not None:
        return printable(told())
    return printable(redaction.text(text_of(event), event.kind))


def called_with(args: Any, size: int, tool: str, redaction: Redaction) -> str:
    """The arguments of a call in parentheses; their size, if they are large or not recorded."""
    if type(args) is not Packed or len(args) > DECODED_SIZE_MAX:
        return f"({size} bytes)"
    return arguments_text(redaction.shown(readable(args), tool), WIDTH)
