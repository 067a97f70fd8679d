"""A run as spans: whatever is recorded, each call is told once, inside something that is told."""

from __future__ import annotations

import base64
import json
from collections import Counter
from dataclasses import MISSING, fields
from typing import Any

from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st
from logdump.otlp.json_output import request, span_line
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from eventlog import Packed, Record
from recovery.inspect.span import Span, span_id, trace_id
from recovery.inspect.span_values import SpanOptions, SpanValues
from recovery.inspect.spans import Spans
from recovery.journal.encoding import decode_shallow, encode
from recovery.journal.events import (
    AttemptFailed,
    CallAbandoned,
    CallDecided,
    CallFailed,
    CallIntended,
    CallResolved,
    CallRetried,
    CallReturned,
    Event,
    HistoryDropped,
    RunCancelled,
    RunFailed,
    RunFinished,
    RunParked,
    RunResumed,
    RunUndone,
    StepStarted,
)

KINDS: list[type[Event]] = [
    AttemptFailed,
    CallAbandoned,
    CallDecided,
    CallFailed,
    CallIntended,
    CallIntended,
    CallIntended,
    CallResolved,
    CallRetried,
    CallReturned,
    CallReturned,
    HistoryDropped,
    RunCancelled,
    RunFailed,
    RunFinished,
    RunParked,
    RunResumed,
    RunUndone,
    StepStarted,
    StepStarted,
]
calls = st.integers(1, 40)
# By the name of a field: likely values, and what nobody has meant.
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "call": calls,
    "step": st.one_of(st.integers(0, 6), st.sampled_from([-1, (1 << 64) - 1])),
    "scope": st.one_of(
        st.integers(0, 6).map(str), calls.map(lambda lsn: f"call {lsn}"), st.text(max_size=3)
    ),
    "tool": st.sampled_from(["send", "ask", "\ud800\x00"]),
    "usage": st.sampled_from([None, [1, 2, 0.5], [1, "2", 3]]),
    "how": st.sampled_from(["outcome", "retry", "fail"]),
    "after_crash": st.sampled_from(["park", "wait", "retry"]),
    "why": st.sampled_from(["timeout", "cancelled"]),
    "asks_until": st.sampled_from([None, 5.0, float("inf")]),
    "occurrence": st.sampled_from([1, 2, (1 << 64) - 1]),
    "records": st.lists(calls, max_size=3),
    "child": st.sampled_from(["", "child"]),
    "args": st.sampled_from([None, [[1], {"model": "m"}], [[], {}], "x"]),
    "value": st.sampled_from([None, {"model": "m", "text": "\ud800"}, [1]]),
}
PLAIN: dict[str, Any] = {
    "int": 1,
    "str": "x",
    "bytes": b"d",
    "bool": True,
    "float": 1.0,
    "Any": 1,
    "list[int]": [1],
}


@st.composite
def events(draw: st.DrawFn) -> Event:
    kind = draw(st.sampled_from(KINDS))
    given_: dict[str, Any] = {}
    for one in fields(kind):
        if one.name in VALUES:
            given_[one.name] = draw(VALUES[one.name])
        elif one.default is MISSING and one.default_factory is MISSING:
            given_[one.name] = PLAIN[str(one.type)]
    return kind(**given_)


def told(given_: list[tuple[int, Event]], until: int, alive: bool) -> list[Span]:
    run = Span(span_id("u", "run"), "", "run", "", 5)
    intents: dict[int, tuple[int, CallIntended]] = {}
    spans = Spans("u", run, until, SpanValues(OPTIONS, "run"), intents.get)
    found: list[Span] = []
    for lsn, (time_ns, event) in enumerate(given_, 1):
        shallow_events = decode_shallow(Record(lsn, event.kind, time_ns, Packed(encode(event)[1])))
        assert shallow_events is not None
        if isinstance(shallow_events, CallIntended):
            intents[lsn] = time_ns, shallow_events
        found += spans.observe(lsn, time_ns, shallow_events)
    found += spans.finish(alive)
    assert found[-1] is run
    return found


OPTIONS = SpanOptions(chat=["ask"], content=True, agent="a", provider="p")


programs = st.lists(st.tuples(st.integers(-5, 1 << 65), events()), max_size=25)


@given(programs, st.integers(0, 10), st.booleans())
def test_each_span_is_told_once_inside_one_that_is_told(
    program: list[tuple[int, Event]], until: int, alive: bool
) -> None:
    spans = told(program, until, alive)
    ids = Counter(span.id for span in spans)
    assert max(ids.values()) == 1
    assert all(span.parent in ids for span in spans[:-1])
    assert all(span.start_ns <= span.end_ns for span in spans)
    texts = [span_line(span, trace_id("u")) for span in spans]
    made = json.loads(request("s", "1", texts))
    for span in made["resourceSpans"][0]["scopeSpans"][0]["spans"]:
        for key in ("traceId", "spanId", "parentSpanId"):
            if key in span:
                span[key] = base64.b64encode(bytes.fromhex(span[key])).decode()
    message = ExportTraceServiceRequest()
    json_format.ParseDict(made, message, ignore_unknown_fields=False)
    assert ExportTraceServiceRequest.FromString(message.SerializeToString()) == message


@given(programs, st.data())
def test_what_had_ended_is_told_the_same_of_a_longer_log(
    program: list[tuple[int, Event]], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(program)))
    whole = {span.id: span for span in told(program, 0, True)}
    for span in told(program[:cut], 0, True):
        assert span.id in whole
        if span.attributes.get("agent_eventlog.call.state") in ("returned", "failed", "resolved"):
            assert span == whole[span.id]


def test_a_call_inside_one_that_a_fork_came_with_has_that_around_it() -> None:
    made = CallIntended("0", "t", "", b"d", 1, "park")
    inside = CallIntended("call 1", "t", "", b"d", 1, "park")
    outer, inner = 1, 2
    spans = told([(outer, made), (inner, inside)], 1, False)
    assert [span.attributes.get("agent_eventlog.lsn") for span in spans] == [inner, outer, None]
    assert [span.parent for span in spans] == [spans[1].id, spans[2].id, ""]
    assert len(told([(outer, made)], 1, False)) == 1, "the call is the other run's to tell"


def test_calls_inside_calls_may_be_as_deep_as_they_like() -> None:
    made = CallIntended("0", "t", "", b"d", 1, "park")
    program: list[tuple[int, Event]] = [(1, made)]
    program += [
        (n, CallIntended(f"call {n - 1}", "t", "", b"d", 1, "park")) for n in range(2, 3000)
    ]
    program.append((3000, CallReturned(1, None)))
    spans = told(program, 0, False)
    assert len(spans) == 3000 and spans[-2].attributes["agent_eventlog.lsn"] == 1
    assert Counter(span.parent for span in spans).most_common(1)[0][1] == 1
