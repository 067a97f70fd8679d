"""logdump otlp: a run as OpenTelemetry's protobuf classes read it, and by its conventions."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from logdump import main
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from eventlog import EventLog, Packed, Record
from eventlog.repair import repair
from recovery.journal.events import AttemptFailed, CallAbandoned, HistoryDropped
from tests.cli.harness import RUNS, call
from tests.cli.screens.timelines import Script

Span = dict[str, Any]
SOUND = (
    "cancelled",
    "crashed_in_doubt",
    "failed",
    "finished",
    "forked",
    "origin",
    "parent",
    "parked",
    "resolved",
    "sleeping",
    "torn",
    "waiting",
)
ENDED = ("returned", "failed", "resolved")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(RUNS, tmp_path_factory.mktemp("otlp") / "runs"))


def lines(store: Path, run: str, *options: str, code: int = 0) -> list[str]:
    done = call("logdump", "otlp", *options, run, cwd=store)
    assert done.code == code, done
    assert done.out.isascii()
    return done.out.splitlines()


def parsed(line: str) -> ExportTraceServiceRequest:
    """The line as protobuf has it; its JSON has bytes in base64, and OTLP's has ids in hex."""
    request = json.loads(line)
    for span in spans_in(request):
        for part in (span, *span.get("links", ())):
            for key in ("traceId", "spanId", "parentSpanId"):
                if key in part:
                    part[key] = base64.b64encode(bytes.fromhex(part[key])).decode()
    message = ExportTraceServiceRequest()
    json_format.ParseDict(request, message, ignore_unknown_fields=False)
    return message


def spans_in(request: dict[str, Any]) -> list[Span]:
    found = []
    for resource in request["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            found += scope["spans"]
    return found


def told(store: Path, run: str, *options: str, code: int = 0) -> list[Span]:
    return [
        span
        for line in lines(store, run, *options, code=code)
        for span in spans_in(json.loads(line))
    ]


def about(span: Span) -> dict[str, Any]:
    """Attributes, as values."""
    found = {}
    for one in span.get("attributes", ()):
        ((kind, value),) = one["value"].items()
        found[one["key"]] = int(value) if kind == "intValue" else value
    return found


def state(span: Span) -> str:
    return str(about(span).get("agent_eventlog.call.state", ""))


@pytest.mark.parametrize("options", [(), ("--content",)], ids=["bare", "content"])
@pytest.mark.parametrize("run", SOUND)
def test_opentelemetrys_own_classes_read_it(
    store: Path, run: str, options: tuple[str, ...]
) -> None:
    for line in lines(store, run, *options):
        message = parsed(line)
        (resource,) = message.resource_spans
        assert resource.resource.attributes[0].key == "service.name"
        for span in resource.scope_spans[0].spans:
            assert (len(span.trace_id), len(span.span_id)) == (16, 8)
            assert len(span.parent_span_id) in (0, 8)
            assert 0 < span.start_time_unix_nano <= span.end_time_unix_nano


def test_what_is_no_field_is_refused() -> None:
    with pytest.raises(json_format.ParseError, match="spanid"):
        parsed('{"resourceSpans":[{"scopeSpans":[{"spans":[{"spanid":"00"}]}]}]}')


@pytest.mark.parametrize("run", SOUND)
def test_each_span_is_told_once_inside_another_of_its_trace(store: Path, run: str) -> None:
    spans = told(store, run)
    ids = Counter(span["spanId"] for span in spans)
    assert max(ids.values()) == 1 and len({span["traceId"] for span in spans}) == 1
    *others, last = spans
    assert last["name"] == "invoke_agent" and "parentSpanId" not in last
    assert all(span["parentSpanId"] in ids for span in others)
    steps = {s["spanId"] for s in spans if s["name"].startswith("step ")}
    assert all(s["parentSpanId"] == last["spanId"] for s in others if s["spanId"] in steps)


def test_names_kinds_and_attributes_are_those_of_the_conventions(store: Path) -> None:
    spans = told(store, "finished", "--agent", "planner", "--provider", "openai", "--service", "s")
    run = spans[-1]
    assert (run["name"], run["kind"]) == ("invoke_agent planner", 1)
    found = about(run)
    assert found["gen_ai.operation.name"] == "invoke_agent"
    assert found["gen_ai.agent.name"] == "planner"
    assert found["gen_ai.conversation.id"] == found["agent_eventlog.run.id"] == "finished"
    models = [span for span in spans if span["name"] == "chat"]
    tools = [span for span in spans if span["name"].startswith("execute_tool ")]
    steps = [span for span in spans if span["name"].startswith("step ")]
    assert len(models) + len(tools) + len(steps) + 1 == len(spans) and len(models) == 8
    for span in models:
        found = about(span)
        assert span["kind"] == 3 and found["gen_ai.operation.name"] == "chat"
        assert found["gen_ai.provider.name"] == "openai"
        assert found["agent_eventlog.tool"] == "ask_model"
        assert found["gen_ai.usage.input_tokens"] > found["gen_ai.usage.output_tokens"] > 0
    for span in tools:
        found = about(span)
        assert span["kind"] == 1 and found["gen_ai.operation.name"] == "execute_tool"
        assert span["name"] == f"execute_tool {found['gen_ai.tool.name']}"
        assert found["gen_ai.tool.type"] == "function"
        assert found["gen_ai.tool.call.id"].startswith("call_")
        assert "gen_ai.usage.input_tokens" not in found
    total = about(run)["gen_ai.usage.input_tokens"]
    assert total == sum(about(span)["gen_ai.usage.input_tokens"] for span in models)
    (line,) = lines(store, "finished", "--service", "s")
    (service,) = json.loads(line)["resourceSpans"][0]["resource"]["attributes"]
    assert service == {"key": "service.name", "value": {"stringValue": "s"}}


def test_a_crash_a_retry_and_a_yes_are_events(store: Path) -> None:
    spans = {s["name"]: s for s in told(store, "finished")}
    events = {name: [e["name"] for e in s.get("events", ())] for name, s in spans.items()}
    assert events["execute_tool weather"] == ["exception", "retry"]
    assert events["execute_tool tickets"] == ["process ended", "retry"]
    assert events["execute_tool charge"] == ["approved"]
    assert events["invoke_agent"] == ["run parked", "run resumed", "process ended", "run resumed"]
    failed = about(spans["execute_tool weather"]["events"][0])
    assert failed["exception.type"] == "ConnectionError" and failed["exception.message"]
    assert about(spans["execute_tool weather"])["agent_eventlog.attempts"] == 2
    assert "status" not in spans["execute_tool weather"], "the call returned"


def test_what_failed_has_a_status_and_a_type(store: Path) -> None:
    spans = told(store, "failed")
    failed = [span for span in spans if "status" in span]
    assert spans[-1] in failed and len(failed) > 1
    for span in failed:
        assert span["status"]["code"] == 2 and span["status"]["message"]
        assert about(span)["error.type"] == about(span["events"][-1])["exception.type"]
    assert about(spans[-1])["agent_eventlog.run.status"] == "failed"


def test_a_call_in_doubt_has_no_status_and_ends_where_the_log_does(store: Path) -> None:
    spans = told(store, "crashed_in_doubt")
    (doubt,) = [span for span in spans if state(span) not in (*ENDED, "")]
    assert state(doubt) == "in doubt" and "status" not in doubt
    assert doubt["endTimeUnixNano"] == spans[-1]["endTimeUnixNano"]
    assert about(spans[-1])["agent_eventlog.run.status"] == "running"


def test_each_call_says_how_it_stands_in_the_words_of_the_documentation(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "logdump.md").read_text()
    run = Script(tmp_path / "run", "task")
    run.step()
    known = {
        "sent": "in doubt",
        "wait_for": "waiting",
        "asking": "asks",
        "flaky": "to be made again",
        "queued": "not begun",
        "of_old_code": "dropped",
    }
    calls = {
        name: run.call(
            name,
            after="wait" if name == "wait_for" else "park",
            asks_until=9e9 if name == "asking" else None,
        )
        for name in known
    }
    run.note(AttemptFailed(calls["flaky"], 1, "builtins.OSError", "no", 9e9))
    run.note(CallAbandoned(calls["queued"], 1, "cancelled"))
    run.note(HistoryDropped([calls["of_old_code"]]))

    def found() -> dict[str, str]:
        spans = told(tmp_path, "run")
        return {
            str(about(span).get("gen_ai.tool.name", span["name"])): state(span)
            for span in spans
            if state(span)
        }

    assert found() == known | {"sent": "under way"}  # its process is alive
    run.die()
    assert found() == known
    assert all(f"`{word}`" in page for word in (*known.values(), "under way"))


def test_a_child_is_inside_the_call_that_started_it(store: Path) -> None:
    parent = told(store, "parent")
    calls = {span["spanId"]: span for span in parent if span["name"] == "execute_tool child"}
    children = [path.name for path in store.iterdir() if path.name.startswith("parent+")]
    assert len(children) == len(calls) == 2
    for name in children:
        child = told(store, name)
        caller = calls.pop(child[-1]["parentSpanId"])
        assert {span["traceId"] for span in child} == {caller["traceId"]}
        assert about(caller)["agent_eventlog.child.run.id"] == name
        assert int(caller["startTimeUnixNano"]) <= int(child[-1]["startTimeUnixNano"])
        assert int(child[-1]["endTimeUnixNano"]) <= int(caller["endTimeUnixNano"])


def test_a_child_of_a_child_is_in_the_trace_of_the_first(store: Path, tmp_path: Path) -> None:
    first, second, third = "19a47e1e70bcc9515adfa480fc2f8bf3", "b" * 32, "c" * 32
    for name, uid, link in (
        ("first", first, None),
        ("second", second, ("first", first)),
        ("third", third, ("second", second)),
    ):
        parent = {"run_id": link[0], "uid": link[1], "lsn": 3} if link else None
        with EventLog.open(tmp_path / name) as log:
            log.append("run_started", {"run_id": name, "task": 1, "uid": uid, "parent": parent})
    traces = {told(tmp_path, name)[-1]["traceId"] for name in ("first", "second", "third")}
    assert len(traces) == 1
    shutil.rmtree(tmp_path / "first")
    assert {told(tmp_path, "third")[-1]["traceId"]} == traces, "second says which that is"


def test_a_fork_links_to_its_origin_and_tells_only_its_own(store: Path) -> None:
    origin, fork = told(store, "origin"), told(store, "forked")
    (link,) = fork[-1]["links"]
    assert link["spanId"] == origin[-1]["spanId"] and link["traceId"] == origin[-1]["traceId"]
    assert fork[-1]["traceId"] != origin[-1]["traceId"]
    began = int(fork[-1]["startTimeUnixNano"])
    assert all(int(span["startTimeUnixNano"]) >= began for span in fork)
    assert [e["name"] for e in fork[-1]["events"]] == ["run resumed"], "which is no crash"
    steps = {span["name"] for span in fork if span["name"].startswith("step")}
    assert steps == {f"step {n}" for n in (5, 6, 7, 8)}


def cut(path: Path, records: list[Record]) -> None:
    with EventLog.open(path, "none") as log:
        for record in records:
            log.append(record.kind, Packed(record.packed), time_ns=record.time_ns)


@pytest.mark.parametrize("run", ["finished", "failed"])
def test_a_longer_log_tells_the_same_of_what_had_ended(
    store: Path, tmp_path: Path, run: str
) -> None:
    """Whenever it is exported: over a crash, resumptions, retries and replays."""
    with EventLog.read(store / run) as reader:
        records = list(reader.records())
    whole = {span["spanId"]: span for span in told(store, run)}
    ended = 0
    for count in range(1, len(records), 2):
        cut(tmp_path / str(count) / run, records[:count])
        spans = told(tmp_path / str(count), run)
        assert {span["spanId"] for span in spans} <= set(whole)
        done = [span for span in spans if state(span) in ENDED]
        assert all(span == whole[span["spanId"]] for span in done)
        assert len(done) >= ended
        ended = len(done)
    assert ended >= 7


@pytest.mark.parametrize("run", ["finished", "failed", "crashed_in_doubt", "waiting"])
def test_values_are_told_when_they_are_asked_for(store: Path, run: str) -> None:
    bare = told(store, run)
    keys = {key for span in bare for key in about(span)}
    contents = {
        "gen_ai.tool.call.arguments",
        "gen_ai.tool.call.result",
        "agent_eventlog.arguments",
        "agent_eventlog.result",
        "agent_eventlog.task",
    }
    assert not keys & contents
    assert "Vienna" not in json.dumps(bare)
    full = told(store, run, "--content")
    assert "Vienna" in json.dumps(full)
    arguments = [about(s)["gen_ai.tool.call.arguments"] for s in full if "search" in s["name"]]
    assert {"args": ["flights Vienna to Osaka, 4 May"]} in [json.loads(one) for one in arguments]
    hidden = told(store, run, "--content", "--redact", "*")
    assert "Vienna" not in json.dumps(hidden) and "[redacted]" in json.dumps(hidden)
    some = told(store, run, "--content", "--redact", "search")
    assert all(
        about(span).get("gen_ai.tool.call.arguments") == '"[redacted]"'
        for span in some
        if span["name"] == "execute_tool search"
    )


def test_exceptions_are_hidden_as_well(store: Path) -> None:
    spans = told(store, "failed", "--redact", "*")
    for span in spans:
        if "status" in span:
            assert span["status"]["message"] == "[redacted]"
        for event in span.get("events", ()):
            if event["name"] == "exception":
                assert about(event)["exception.message"] == "[redacted]"
                assert about(event)["exception.type"]


def test_a_tool_is_a_model_when_somebody_says_so(store: Path) -> None:
    spans = told(store, "finished", "--chat", "sea*")
    assert not [span for span in spans if span["name"] == "execute_tool search"]
    tools = Counter(about(span).get("agent_eventlog.tool") for span in spans)
    assert (tools["search"], tools["ask_model"]) == (4, 8)


def test_a_model_is_named_where_the_call_or_the_reply_names_it(tmp_path: Path) -> None:
    with EventLog.open(tmp_path / "run") as log:
        log.append("run_started", {"run_id": "run", "task": 1, "uid": "a" * 32})
        call = {
            "scope": "0",
            "tool": "ask",
            "call_id": "",
            "digest": b"",
            "occurrence": 1,
            "after_crash": "retry",
        }
        log.append("call", {**call, "args": [[], {"model": "m-1", "n": 1}]})
        log.append("outcome", {"call": 2, "value": {"model": "m-1-0613"}, "usage": [1, 2, 0.5]})
    (chat, run) = told(tmp_path, "run")
    assert chat["name"] == "chat m-1" and chat["parentSpanId"] == run["spanId"]
    assert about(chat)["gen_ai.request.model"] == "m-1"
    assert about(chat)["gen_ai.response.model"] == "m-1-0613"
    with EventLog.open(tmp_path / "whole") as log:
        log.append("run_started", {"run_id": "whole", "task": 1, "uid": "a" * 32})
        log.append("call", {**call, "args": [[[1], {"model": "m-2"}], {}]})
        reply = {"id": "r", "model": "m", "choices": [{"finish_reason": "stop"}]}
        log.append("outcome", {"call": 2, "value": reply, "usage": [1, 2, 0.5]})
    (chat, _) = told(tmp_path, "whole")
    assert chat["name"] == "chat m-2" and about(chat)["gen_ai.response.id"] == "r"
    assert about(chat)["gen_ai.response.finish_reasons"] == {"values": [{"stringValue": "stop"}]}
    assert about(told(tmp_path, "run", "--redact", "model")[0])["gen_ai.request.model"] == (
        "[redacted]"
    )


@pytest.mark.parametrize(
    ("run", "code"),
    [("damaged_early", 2), ("damaged_frame", 2), ("damaged_snapshot", 8), ("missing_segment", 4)],
)
def test_a_damaged_log_is_told_as_far_as_it_goes(store: Path, run: str, code: int) -> None:
    spans = told(store, run, code=code)
    ids = {span["spanId"] for span in spans}
    assert about(spans[-1])["agent_eventlog.lost_records"] > 0
    assert len(ids) == len(spans) > 10
    assert all(span.get("parentSpanId", spans[-1]["spanId"]) in ids for span in spans)
    for line in lines(store, run, code=code):
        parsed(line)


def test_what_a_repair_has_marked_as_lost_is_counted(store: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(store / "missing_segment", tmp_path / "missing_segment"))
    lost = about(told(tmp_path, path.name, code=4)[-1])["agent_eventlog.lost_records"]
    repair(path)
    spans = told(tmp_path, path.name)
    assert about(spans[-1])["agent_eventlog.lost_records"] == lost > 0


def test_lines_are_no_longer_than_a_collector_reads(tmp_path: Path) -> None:
    with EventLog.open(tmp_path / "run", "none") as log:
        log.append("run_started", {"run_id": "run", "task": 1, "uid": "a" * 32})
        for i in range(40):
            lsn = log.append(
                "call",
                {
                    "scope": "0",
                    "tool": "t",
                    "call_id": "",
                    "digest": b"",
                    "occurrence": i,
                    "after_crash": "retry",
                    "args": [["\U0001f600" * 30_000], {}],
                },
            )
            if i % 2:
                log.append("outcome", {"call": lsn, "value": "\u4eac" * 60_000})
            else:
                log.append(
                    "failure",
                    {
                        "call": lsn,
                        "type": "E",
                        "message": "\0" * 50_000,
                        "traceback": "\0" * 50_000,
                    },
                )
    found = lines(tmp_path, "run", "--content")
    assert max(map(len, found)) < 1 << 20 and len(found) > 5
    for line in found:
        parsed(line)


def long_run(store: Path, steps: int) -> str:
    with EventLog.open(store / str(steps), "none", segment_size=64 << 10) as log:
        log.append("run_started", {"run_id": "run", "task": 1, "uid": "a" * 32})
        for step in range(1, steps + 1):
            log.append("step", {"step": step})
            lsn = log.append(
                "call",
                {
                    "scope": str(step),
                    "tool": "t",
                    "call_id": "",
                    "digest": b"",
                    "occurrence": 1,
                    "after_crash": "retry",
                },
            )
            log.append("outcome", {"call": lsn, "value": "x" * 500})
    return str(steps)


def test_spans_are_told_as_they_end(tmp_path: Path) -> None:
    """100 a line; and what is held is a line and the calls that are open."""
    peaks = []
    for steps in (250, 1000):
        run = long_run(tmp_path, steps)
        found = [spans_in(json.loads(line)) for line in lines(tmp_path, run)]
        assert [len(spans) for spans in found] == [100] * (steps // 50) + [1]
        with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
            tracemalloc.start()
            try:
                assert main(["otlp", str(tmp_path / run)]) == 0
                peaks.append(tracemalloc.get_traced_memory()[1])
            finally:
                tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]
