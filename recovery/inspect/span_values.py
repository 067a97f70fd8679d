"""Completes spans: their names and attributes by OpenTelemetry's conventions, and their values."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from eventlog.format.record import Packed
from recovery.inspect import genai_names as genai
from recovery.inspect.span import Attributes, Span
from recovery.journal.events import CallIntended
from recovery.text import SEALED_TEXT
from recovery.values.pack import split_list, unpack, unpack_map
from recovery.values.render import Redaction, readable
from recovery.values.sealed import may_hold_sealed

# Characters shown of a value; and the size in bytes above which a value is not decoded.
CONTENT_MAX, VALUE_SIZE_MAX = 16 << 10, 1 << 20
NAME_SIZE_MAX = 1 << 10  # of a model, in bytes
_TIME_MAX = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class SpanOptions:
    """What spans have in them. Patterns are those of file names, as in ``ask_*``.

    ``chat``: patterns of tools that call a model, beside those that recorded tokens. ``without``:
    patterns of tools whose calls have no span, because another library makes one for them; calls
    inside them belong to the span around them. ``content``: whether arguments, results and the task
    are there, too. ``agent``: the agent's name (gen_ai.agent.name). ``provider``: the value of
    gen_ai.provider.name. ``redact``: patterns of parameters, keys and tools whose values are
    hidden; "*" hides all.
    """

    chat: Sequence[str] = ()
    without: Sequence[str] = ()
    content: bool = False
    agent: str = ""
    provider: str = genai.PROVIDER_UNKNOWN
    redact: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name in ("chat", "without", "redact"):
            if isinstance(getattr(self, name), str):
                raise TypeError(f"{name} is a list of patterns, not {getattr(self, name)!r:.80}")


class SpanValues:
    """Completes the spans of a run, by the options."""

    def __init__(self, options: SpanOptions, run_id: str) -> None:
        self._options, self._run_id = options, run_id
        self._redaction = Redaction(options.redact)

    def is_model(self, tool: str) -> bool:
        """Whether the user says that the tool calls a model."""
        return any(fnmatchcase(tool, one) for one in self._options.chat)

    def is_left_out(self, tool: str) -> bool:
        """Whether calls of the tool have no span."""
        return any(fnmatchcase(tool, one) for one in self._options.without)

    def complete(self, span: Span) -> Span:
        """The span, with its final name and attributes. Once for each span."""
        tool = span.name
        name, about = self._name(span)
        span.name = _text(name)
        span.attributes = {key: _plain(one) for key, one in (about | span.attributes).items()}
        span.start_ns, span.end_ns = _time(span.start_ns), _time(span.end_ns)
        span.events = [
            (what, _time(at), self._shown(found, tool)) for what, at, found in span.events
        ]
        if span.error is not None:
            span.error = _text(_cut(self._redaction.text(span.error, tool)))
        return span

    def _name(self, span: Span) -> tuple[str, Attributes]:
        """Name and first attributes, by the conventions."""
        about: Attributes = {genai.CONVERSATION: self._run_id}
        if span.what == "run":
            about = {genai.OPERATION: genai.INVOKE_AGENT, **about}
            if self._options.agent:
                about[genai.AGENT] = self._options.agent
            return f"{genai.INVOKE_AGENT} {self._options.agent}".rstrip(), about
        if span.what != "call":
            return span.name, about
        if span.model:
            model = span.attributes.get(genai.REQUEST_MODEL, "")
            return f"{genai.CHAT} {model}".rstrip(), {
                genai.OPERATION: genai.CHAT,
                genai.PROVIDER: self._options.provider,
                **about,
                "agent_eventlog.tool": span.name,
            }
        return f"{genai.EXECUTE_TOOL} {span.name}", {
            genai.OPERATION: genai.EXECUTE_TOOL,
            genai.TOOL: span.name,
            genai.TOOL_TYPE: "function",
            **about,
        }

    def _shown(self, found: Attributes, tool: str) -> Attributes:
        """The attributes of an event; the text of an exception may quote a value."""
        return {
            key: _text(_cut(self._redaction.text(value, tool)))
            if key in ("exception.message", "exception.stacktrace")
            else _plain(value)
            for key, value in found.items()
        }

    # -- values

    def of_call(self, model: bool, intent: CallIntended, outcome: Packed | None) -> Attributes:
        """The attributes for a call's arguments and outcome."""
        about: Attributes = {}
        if intent.call_id and not model:
            about[genai.TOOL_CALL] = intent.call_id
        if model and not self._redaction.hides(intent.tool):
            about |= self._of_model(_request(intent.args), _parts(outcome))
        if not self._options.content:
            return about
        names = (
            ("agent_eventlog.arguments", "agent_eventlog.result")
            if model
            else (genai.TOOL_ARGUMENTS, genai.TOOL_RESULT)
        )
        forms = (_by_name, None)
        for name, packed, form in zip(names, (intent.args, outcome), forms, strict=True):
            if type(packed) is Packed and packed != b"\xc0":
                about[name] = self._content(packed, intent.tool, form)
        return about

    def _of_model(self, request: dict[str, Packed], reply: dict[str, Packed]) -> Attributes:
        """What a request and a reply say of themselves, as the APIs of Anthropic and OpenAI do."""
        about = {
            genai.REQUEST_MODEL: self._name_in(request, "model"),
            genai.RESPONSE_MODEL: self._name_in(reply, "model"),
            genai.RESPONSE_ID: self._name_in(reply, "id") if "model" in reply else "",
            genai.FINISH_REASONS: self._finish_reasons(reply) if "model" in reply else [],
        }
        return {name: value for name, value in about.items() if value}

    def _finish_reasons(self, reply: dict[str, Packed]) -> list[str]:
        reasons = [self._name_in(reply, "stop_reason")]
        with suppress(ValueError):
            choices = split_list(reply["choices"]) if "choices" in reply else []
            reasons += [self._name_in(_parts(one), "finish_reason") for one in choices]
        return [one for one in reasons if one]

    def _name_in(self, parts: dict[str, Packed], key: str) -> str:
        """The short text under this key; "" when there is none."""
        packed = parts.get(key, b"")
        is_str = packed[:1] in (b"\xd9", b"\xda") or (packed[:1] and packed[0] & 0xE0 == 0xA0)
        with suppress(ValueError):
            if is_str and len(packed) <= NAME_SIZE_MAX:
                return self._redaction.text(str(unpack(packed)), key)
        return ""

    def of_run(self, what: str, value: Any) -> Attributes:
        """The attributes for the run's task and result."""
        if not self._options.content or type(value) is not Packed:
            return {}
        return {f"agent_eventlog.{what}": self._content(value, what)}

    def _content(self, packed: Packed, name: str, form: Callable[[Any], Any] | None = None) -> str:
        if may_hold_sealed(packed):  # spans leave the process, and cannot be forgotten
            return SEALED_TEXT
        if len(packed) > VALUE_SIZE_MAX:
            return f"<{len(packed)} bytes>"
        shown = self._redaction.shown(readable(packed), name)
        if form is not None:
            shown = form(shown)
        return _cut(json.dumps(shown, ensure_ascii=False, default=str))


def _text(value: str) -> str:
    """Text without lone surrogates, which protobuf cannot hold."""
    return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")


def _plain(value: Any) -> Any:
    """A value that an attribute can have: bool, int of 64 bits, float, str, list of str."""
    if isinstance(value, bool | float):
        return value
    if isinstance(value, int) and -(1 << 63) <= value < 1 << 63:
        return value
    return [*map(_text, value)] if isinstance(value, list) else _text(str(value))


def _time(time_ns: int) -> int:
    return min(max(time_ns, 0), _TIME_MAX)


def _cut(found: str) -> str:
    return found if len(found) <= CONTENT_MAX else found[: CONTENT_MAX - 3] + "..."


def _by_name(args: Any) -> Any:
    """Arguments as an object, as the conventions want; those without a name are in "args"."""
    match args:
        case [list(positional), dict(named)]:
            return {"args": positional, **named} if positional else named
    return args


# Requests and replies may be large: only the parts that spans have are decoded.


def _parts(packed: Any) -> dict[str, Packed]:
    """The parts of a packed dict; none of another value."""
    try:
        return unpack_map(packed) if type(packed) is Packed else {}
    except ValueError:
        return {}


def _request(args: Any) -> dict[str, Packed]:
    """The request to a model in the arguments of a call: those by name, or a dict that has it."""
    try:
        positional, named = split_list(args if type(args) is Packed else b"")
        found = [_parts(one) for one in (named, *split_list(positional))]
    except ValueError:
        return {}
    return next((one for one in found if "model" in one), {})
