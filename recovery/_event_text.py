"""Events of a run as lines for people."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from recovery._errors import RecoveryError
from recovery._shorten import shorten

if TYPE_CHECKING:
    from recovery._run_event import RunEvent

SHOWN_SIZE = 80  # characters of a value in a line
DECODED_SIZE_MAX = 64 << 10  # of what is decoded for a line of text


def text_of(event: RunEvent) -> str:
    """The line, without where in the log it is."""
    if event.kind == "damage":
        return f"DAMAGE: {event.error}"
    if event.size > DECODED_SIZE_MAX:
        return f"{event.tool or event.kind}: {event.kind} of {event.size:,} bytes"
    try:
        return _text(event, event.body)
    except (RecoveryError, ValueError) as exc:  # a message that is lost, a type that is not here
        return f"{event.kind}: {exc}".splitlines()[0]


def _text(event: RunEvent, body: dict[str, Any]) -> str:
    tool = event.tool or f"call {event.call}"
    after = "" if event.duration_s is None else f" after {event.duration_s:.2f} s"
    lines: dict[str, Callable[[], str]] = {
        "run_started": lambda: f"run {event.run_id} started: {_short(body['task'])}",
        "run_resumed": lambda: f"resumed, recovery {body['recovery']}, after step "
                               f"{body['from_step']}",
        "step": lambda: f"step {body['step']} began",
        "call": lambda: f"{tool}({_arguments(body)})",
        "retry": lambda: f"{tool}: attempt {body['attempt']}",
        "attempt_failed": lambda: f"{tool}: attempt {body['attempt']} failed{after}: {event.error}",
        "abandoned": lambda: f"{tool}: abandoned ({body['why']})",
        "outcome": lambda: f"{tool} returned {_short(body['value'])}{after}",
        "failure": lambda: f"{tool} failed{after}: {event.error}",
        "resolved": lambda: f"{tool} resolved: {body['how']} {_short(body['value'])}"
                            f"{body['who'] and ' by ' + body['who']}",
        "value": lambda: f"{body['name']}() = {_short(body['value'])}",
        "messages": lambda: f"messages[{body['start']}:{body['stop']}] = {_short(body['new'])}",
        "snapshot": lambda: f"checkpoint at the end of step {event.step}",
        "run_parked": lambda: f"parked: {body['why'] or 'calls in doubt'}",
        "run_undone": lambda: f"given up, to be undone{body['who'] and ' by ' + body['who']}",
        "decided": lambda: f"{tool} {'approved' if body['approved'] else 'denied'}"
                           f"{body['who'] and ' by ' + body['who']}"
                           f"{body['why'] and ': ' + body['why']}",
        "signal": lambda: f"signal {body['name']!r} taken: {_short(body['value'])}{after}",
        "run_cancelled": lambda: f"cancelled{body['who'] and ' by ' + body['who']}"
                                 f"{body['why'] and ': ' + body['why']}",
        "lost": lambda: f"lost: records up to LSN {body['last']}" if body["last"] else "lost",
        "repaired": lambda: f"repaired{body['who'] and ' by ' + body['who']}"
                            f"{body['why'] and ': ' + body['why']}; lost: LSN "
                            + ", ".join(f"{one}-{last}" for one, last in body["lost"]),
        "run_finished": lambda: f"finished: {_short(body['result'])}",
        "run_failed": lambda: f"failed: {event.error}",
        "agent_raised": lambda: f"the agent raised {event.error}"
                                f"{body['place'] and ' at ' + body['place']}",
    }  # fmt: skip
    line = lines.get(event.kind)
    return f"{event.kind} {_short(body)}" if line is None else line().replace("\n", " ")


def _arguments(body: dict[str, Any]) -> str:
    match body["args"]:
        case [list(args), dict(kwargs)]:
            shown = [_short(arg) for arg in args]
            return ", ".join(shown + [f"{name}={_short(arg)}" for name, arg in kwargs.items()])
    return f"{body['size']} bytes"


def _short(value: Any) -> str:
    return shorten(value, SHOWN_SIZE)
