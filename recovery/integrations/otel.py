"""Spans of OpenTelemetry for the runs of this process: ``pip install 'agent-eventlog[otel]'``.

The names and ids are those of ``logdump otlp``, from the same code: an export of the log adds
nothing to what was emitted live. See docs/opentelemetry.md.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib.metadata import version
from threading import local

from recovery.integrations.versions import check_version
from recovery.tracing import Span, SpanOptions, SpanSource, start

check_version("opentelemetry-sdk", "1.30", extra="otel")

from opentelemetry import trace  # noqa: E402 - its version first
from opentelemetry.context import Context, attach, detach  # noqa: E402
from opentelemetry.sdk.trace import Tracer  # noqa: E402
from opentelemetry.sdk.trace.id_generator import IdGenerator  # noqa: E402
from opentelemetry.sdk.trace.sampling import Decision  # noqa: E402
from opentelemetry.trace import (  # noqa: E402
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TracerProvider,
    set_span_in_context,
)

__all__ = ["SpanOptions", "SpanSource", "instrument"]

_NAME = "agent-eventlog"


def instrument(
    tracer_provider: TracerProvider | None = None, options: SpanOptions | None = None
) -> SpanSource:
    """Emit the spans of all runs that this process begins or resumes from now on.

    ``tracer_provider``: the SDK's; None is the one of the process. ``options``: see SpanOptions
    (its defaults). The object that is returned has ``stop()``, and ``flush()`` for a process that
    is about to end.

    Spans go where the provider's processors send them. A BatchSpanProcessor does that in a thread
    of its own, so that no run waits for it. What goes wrong is logged in "recovery". RuntimeError
    when the process is instrumented already, TypeError for a provider that is not the SDK's,
    because ids follow from the run.
    """
    provider = tracer_provider if tracer_provider is not None else trace.get_tracer_provider()
    tracer = provider.get_tracer(_NAME, version(_NAME))
    if isinstance(tracer, trace.NoOpTracer):  # OTEL_SDK_DISABLED
        return start(_Nothing(), options)
    if not isinstance(tracer, Tracer):
        raise TypeError(
            f"{type(provider).__name__} makes no tracers of opentelemetry.sdk, whose spans can be "
            "given the ids that follow from a run. Nothing is instrumented. Give a TracerProvider "
            "of opentelemetry.sdk.trace, or set it first: trace.set_tracer_provider(provider)"
        )
    tracer.id_generator = ids = _GivenIds()
    return start(_Receiver(tracer, ids), options)


class _GivenIds(IdGenerator):
    """Gives the next span of the present thread the ids that it is to have."""

    def __init__(self) -> None:
        self._next = local()

    def set(self, trace_id: int, span_id: int) -> None:
        self._next.ids = trace_id, span_id

    def generate_trace_id(self) -> int:
        return int(self._next.ids[0])

    def generate_span_id(self) -> int:
        return int(self._next.ids[1])


class _Receiver:
    """Makes spans of the SDK."""

    def __init__(self, tracer: Tracer, ids: _GivenIds) -> None:
        self._tracer, self._ids = tracer, ids
        self._flags = lru_cache(1024)(self._sampled)

    def ended(self, trace_id: str, span: Span) -> None:
        """Make the span, at once whole."""
        around = Context()
        if span.parent:
            around = set_span_in_context(self._placeholder(trace_id, span.parent), around)
        self._ids.set(int(trace_id, 16), int(span.id, 16))
        made = self._tracer.start_span(
            span.name,
            around,
            SpanKind.CLIENT if span.model else SpanKind.INTERNAL,
            span.attributes,
            [Link(self._context(*link)) for link in span.links],
            span.start_ns,
        )
        for name, time_ns, about in span.events:
            made.add_event(name, about, time_ns)
        if span.error is not None:
            made.set_status(Status(StatusCode.ERROR, span.error))
        made.end(span.end_ns)

    def enter(self, trace_id: str, span_id: str, what: str) -> Callable[[], None]:
        """Spans that other libraries make in the present code are inside this one."""
        here = self._placeholder(trace_id, span_id)
        if what == "run":  # the caller of the run has a trace of its own
            trace.get_current_span().add_link(here.get_span_context())
        token = attach(set_span_in_context(here))
        return lambda: detach(token)

    def _placeholder(self, trace_id: str, span_id: str) -> NonRecordingSpan:
        return NonRecordingSpan(self._context(trace_id, span_id))

    def _context(self, trace_id: str, span_id: str) -> SpanContext:
        flags = self._flags(trace_id)
        return SpanContext(int(trace_id, 16), int(span_id, 16), False, flags)

    def _sampled(self, trace_id: str) -> TraceFlags:
        """What the sampler says of the trace."""
        result = self._tracer.sampler.should_sample(
            Context(), int(trace_id, 16), "invoke_agent", SpanKind.INTERNAL, {}, []
        )
        sampled = result.decision is Decision.RECORD_AND_SAMPLE
        return TraceFlags(TraceFlags.SAMPLED if sampled else TraceFlags.DEFAULT)


class _Nothing:
    """The SDK is switched off."""

    def ended(self, trace_id: str, span: Span) -> None:
        """It goes nowhere."""

    def enter(self, trace_id: str, span_id: str, what: str) -> Callable[[], None]:
        """There is nothing to come into."""
        return lambda: None
