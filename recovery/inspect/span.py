"""Defines a span of a run's trace, and its ids.

Ids are derived from the run's uid and from LSNs, so the same log, or a longer one of the same run,
gives the same ids.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import xxhash

from recovery.inspect.genai_names import ERROR_TYPE
from recovery.journal.events import AgentRaised, AttemptFailed, CallFailed, RunFailed
from recovery.text import SEALED_TEXT

# Events of a span; further ones are only counted. OpenTelemetry's own limit.
EVENTS_MAX = 128

Attributes = dict[str, Any]  # str, int, float, bool, or a list of str


def trace_id(uid: str) -> str:
    """The trace of the run of that uid and of the runs that it starts: 32 hex digits."""
    return str(xxhash.xxh3_128_hexdigest(_joined("trace", uid)))


def span_id(uid: str, *what: str | int) -> str:
    """The id of a span in a run ("run"; "step", n; "call", LSN): 16 hex digits."""
    return str(xxhash.xxh3_64_hexdigest(_joined("span", uid, *what)))


def _joined(*parts: str | int) -> bytes:
    return "\0".join(map(str, parts)).encode("utf-8", "surrogatepass")


@dataclass(slots=True)
class Span:
    """A span. Times are ns since 1970; ``error`` is None unless it failed.

    ``model``: it is a call of a model. ``links``: (trace id, span id) of its origin.
    """

    id: str
    parent: str
    what: Literal["run", "step", "call", "wait"]
    name: str
    start_ns: int
    end_ns: int = 0
    model: bool = False
    error: str | None = None
    attributes: Attributes = field(default_factory=dict)
    events: list[tuple[str, int, Attributes]] = field(default_factory=list)
    dropped_events: int = 0
    links: list[tuple[str, str]] = field(default_factory=list)

    def event(self, name: str, time_ns: int, **attributes: Any) -> None:
        """Add an event."""
        if len(self.events) < EVENTS_MAX:
            self.events.append((name, time_ns, attributes))
        else:
            self.dropped_events += 1

    def exception(
        self, time_ns: int, failed: AttemptFailed | CallFailed | RunFailed | AgentRaised
    ) -> None:
        """Add an exception, by OpenTelemetry's conventions."""
        about = {
            "exception.type": failed.type.removeprefix("builtins."),
            "exception.message": SEALED_TEXT if failed.sealed else failed.message,
        }
        if failed.traceback and not failed.sealed:
            about["exception.stacktrace"] = failed.traceback
        self.event("exception", time_ns, **about)

    def failed(self, time_ns: int, failed: CallFailed | RunFailed) -> None:
        """End the span with an exception."""
        self.exception(time_ns, failed)
        self.attributes[ERROR_TYPE] = failed.type.removeprefix("builtins.")
        self.error = SEALED_TEXT if failed.sealed else failed.message
