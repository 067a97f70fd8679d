"""Converts spans to OTLP/JSON by OpenTelemetry's names, with as many values as requested."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

from eventlog import Packed
from logdump.otlp.json_output import CLIENT, ERROR, INTERNAL, attributes, text, time
from logdump.otlp.spans import Attributes, Span
from recovery.journal.events import CallIntended
from recovery.values.render import Redaction, readable

# Characters shown of a value; and the size in bytes above which a value is not decoded.
CONTENT_MAX, VALUE_SIZE_MAX = 16 << 10, 1 << 20


class Values:
    """Converts spans, by the options of the command."""

    def __init__(self, args: argparse.Namespace, redaction: Redaction, run_id: str) -> None:
        self._args, self._redaction, self._run_id = args, redaction, run_id

    def span(self, span: Span, trace: str) -> dict[str, Any]:
        """A span as JSON."""
        name, about = self._name(span)
        drawn: dict[str, Any] = {"traceId": trace, "spanId": span.id}
        if span.parent:
            drawn["parentSpanId"] = span.parent
        drawn |= {
            "name": text(name),
            "kind": CLIENT if span.model else INTERNAL,
            "startTimeUnixNano": time(span.start_ns),
            "endTimeUnixNano": time(span.end_ns),
            "attributes": attributes(about | span.attributes),
        }
        if span.events:
            drawn["events"] = [
                {
                    "timeUnixNano": time(at),
                    "name": what,
                    "attributes": attributes(self._shown(found, span)),
                }
                for what, at, found in span.events
            ]
        if span.dropped_events:
            drawn["droppedEventsCount"] = span.dropped_events
        if span.links:
            drawn["links"] = [{"traceId": there, "spanId": one} for there, one in span.links]
        if span.error is not None:
            message = text(_cut(self._redaction.text(span.error, span.name)))
            drawn["status"] = {"code": ERROR, "message": message}
        return drawn

    def _name(self, span: Span) -> tuple[str, Attributes]:
        """Name and first attributes, by the conventions."""
        about: Attributes = {"gen_ai.conversation.id": self._run_id}
        if span.what == "run":
            about = {"gen_ai.operation.name": "invoke_agent", **about}
            if self._args.agent:
                about["gen_ai.agent.name"] = self._args.agent
            return f"invoke_agent {self._args.agent or ''}".rstrip(), about
        if span.what != "call":
            return span.name, about
        if span.model:
            model = span.attributes.get("gen_ai.request.model", "")
            return f"chat {model}".rstrip(), {
                "gen_ai.operation.name": "chat",
                "gen_ai.provider.name": self._args.provider,
                **about,
                "agent_eventlog.tool": span.name,
            }
        return f"execute_tool {span.name}", {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": span.name,
            "gen_ai.tool.type": "function",
            **about,
        }

    def _shown(self, found: Attributes, span: Span) -> Attributes:
        """The attributes of an event; the text of an exception may quote a value."""
        return {
            key: _cut(self._redaction.text(value, span.name))
            if key in ("exception.message", "exception.stacktrace")
            else value
            for key, value in found.items()
        }

    # -- values

    def of_call(self, model: bool, intent: CallIntended, outcome: Packed | None) -> Attributes:
        """The attributes for a call's arguments and outcome."""
        about: Attributes = {}
        if intent.call_id and not model:
            about["gen_ai.tool.call.id"] = intent.call_id
        if model:
            about |= _named("gen_ai.request.model", self._model(intent.args, intent.tool))
            about |= _named("gen_ai.response.model", self._model(outcome, intent.tool))
        if not self._args.content:
            return about
        names = (
            ("agent_eventlog.arguments", "agent_eventlog.result")
            if model
            else ("gen_ai.tool.call.arguments", "gen_ai.tool.call.result")
        )
        forms = (_by_name, None)
        for name, packed, form in zip(names, (intent.args, outcome), forms, strict=True):
            if type(packed) is Packed and packed != b"\xc0":
                about[name] = self._content(packed, intent.tool, form)
        return about

    def of_run(self, what: str, value: Any) -> Attributes:
        """The attributes for the run's task and result."""
        if not self._args.content or type(value) is not Packed:
            return {}
        return {f"agent_eventlog.{what}": self._content(value, what)}

    def _content(self, packed: Packed, name: str, form: Callable[[Any], Any] | None = None) -> str:
        if len(packed) > VALUE_SIZE_MAX:
            return f"<{len(packed)} bytes>"
        shown = self._redaction.shown(readable(packed), name)
        if form is not None:
            shown = form(shown)
        return _cut(json.dumps(shown, ensure_ascii=False, default=str))

    def _model(self, packed: Any, tool: str) -> str:
        """The model named in arguments or a reply; "" when there is none."""
        if type(packed) is not Packed or len(packed) > VALUE_SIZE_MAX:
            return ""
        match self._redaction.shown(readable(packed), tool):
            case {"model": str(model)} | [list(), {"model": str(model)}]:
                return model
        return ""


def _cut(found: str) -> str:
    return found if len(found) <= CONTENT_MAX else found[: CONTENT_MAX - 3] + "..."


def _by_name(args: Any) -> Any:
    """Arguments as an object, as the conventions want; those without a name are in "args"."""
    match args:
        case [list(positional), dict(named)]:
            return {"args": positional, **named} if positional else named
    return args


def _named(name: str, value: str) -> Attributes:
    return {name: value} if value else {}
