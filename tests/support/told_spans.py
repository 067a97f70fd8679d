"""Spans as plain values, told live by OpenTelemetry's SDK or made of a log by ``logdump otlp``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from recovery.integrations.otel import SpanOptions, SpanSource, instrument
from tests.cli.harness import call

Plain = dict[str, Any]


class Collected(SpanExporter):
    """Keeps what is exported, and appends it to a file that other processes can read."""

    def __init__(self, file: Path | None = None) -> None:
        self.spans: list[Plain] = []
        self._file = file

    def export(self, spans: Any) -> SpanExportResult:
        told = [plain(span) for span in spans]
        self.spans += told
        if self._file is not None:
            with self._file.open("a") as out:
                out.writelines(json.dumps(one) + "\n" for one in told)
        return SpanExportResult.SUCCESS

    def of_runs(self) -> list[Plain]:
        """Without those of other libraries."""
        return [span for span in self.spans if span["scope"] == "agent-eventlog"]


def provider_of(exporter: SpanExporter, **options: Any) -> TracerProvider:
    """A provider that exports each span at once."""
    provider = TracerProvider(shutdown_on_exit=False, **options)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider


@contextmanager
def told_live(
    options: SpanOptions | None = None, file: Path | None = None
) -> Iterator[tuple[Collected, SpanSource]]:
    """What is told meanwhile."""
    told = Collected(file)
    source = instrument(provider_of(told), options)
    try:
        yield told, source
        assert source.flush()
    finally:
        source.stop()


def plain(span: ReadableSpan) -> Plain:
    assert span.context is not None and span.instrumentation_scope is not None
    return {
        "scope": span.instrumentation_scope.name,
        "trace": f"{span.context.trace_id:032x}",
        "id": f"{span.context.span_id:016x}",
        "parent": f"{span.parent.span_id:016x}" if span.parent is not None else "",
        "name": span.name,
        "kind": span.kind.value + 1,
        "start": span.start_time,
        "end": span.end_time,
        "attributes": _values(span.attributes),
        "events": [[one.timestamp, one.name, _values(one.attributes)] for one in span.events],
        "links": [[f"{x.context.trace_id:032x}", f"{x.context.span_id:016x}"] for x in span.links],
        "error": span.status.description if span.status.status_code.value == 2 else None,
    }


def exported(run: Path, *options: str) -> list[Plain]:
    """The spans that ``logdump otlp`` makes of a log."""
    done = call("logdump", "otlp", *options, run.name, cwd=run.parent)
    assert done.code == 0, done
    return [
        {
            "scope": scope["scope"]["name"],
            "trace": span["traceId"],
            "id": span["spanId"],
            "parent": span.get("parentSpanId", ""),
            "name": span["name"],
            "kind": span["kind"],
            "start": int(span["startTimeUnixNano"]),
            "end": int(span["endTimeUnixNano"]),
            "attributes": _of_json(span["attributes"]),
            "events": [
                [int(one["timeUnixNano"]), one["name"], _of_json(one["attributes"])]
                for one in span.get("events", ())
            ],
            "links": [[one["traceId"], one["spanId"]] for one in span.get("links", ())],
            "error": span["status"]["message"] if "status" in span else None,
        }
        for line in done.out.splitlines()
        for resource in json.loads(line)["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]


def by_id(spans: list[Plain]) -> dict[str, Plain]:
    """The spans by their ids; none is told twice."""
    found = {span["id"]: span for span in spans}
    twice = [span["name"] for span in spans if spans.count(span) > 1]
    assert len(found) == len(spans), f"told twice: {twice}"
    return found


def _values(attributes: Any) -> Plain:
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in (attributes or {}).items()
    }


def _of_json(attributes: list[Plain]) -> Plain:
    return {one["key"]: _value(one["value"]) for one in attributes}


def _value(value: Plain) -> Any:
    ((kind, found),) = value.items()
    if kind == "arrayValue":
        return [_value(one) for one in found["values"]]
    return int(found) if kind == "intValue" else found
