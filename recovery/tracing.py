"""Gives the spans of runs to a tracer, while the runs are executed.

``recovery.integrations.otel`` is one for OpenTelemetry. Spans, ids and names are those that
``logdump otlp`` makes of the log.
"""

from __future__ import annotations

from recovery.engine import event_listener
from recovery.engine.live_spans import FLUSH_S, SpanReceiver, Tracing
from recovery.inspect.genai_names import REVISION
from recovery.inspect.span import Span
from recovery.inspect.span_values import SpanOptions

__all__ = ["REVISION", "Span", "SpanOptions", "SpanReceiver", "SpanSource", "start"]


class SpanSource:
    """The spans of this process, until ``stop``."""

    def __init__(self, tracing: Tracing) -> None:
        """Not for users: call ``start``."""
        self._tracing = tracing

    def flush(self, timeout_s: float = FLUSH_S) -> bool:
        """Wait until the receiver has all spans that have ended; False when that takes longer than
        ``timeout_s``.

        A process that ends by itself does so. A thread makes the spans, which reads the earlier
        records of a resumed run first.
        """
        return self._tracing.flush(timeout_s)

    def stop(self) -> None:
        """Runs that begin or are resumed from now on give no spans."""
        if event_listener.spans_of == self._tracing.of_run:
            event_listener.spans_of = None
        self._tracing.flush()
        self._tracing.close()


def start(receiver: SpanReceiver, options: SpanOptions | None = None) -> SpanSource:
    """Give ``receiver`` the spans of all runs that this process begins or resumes from now on.

    ``options``: see SpanOptions (its defaults). RuntimeError when another receiver has them.
    """
    if event_listener.spans_of is not None:
        raise RuntimeError("another receiver has the spans of this process: stop() that first")
    tracing = Tracing(receiver, options or SpanOptions())
    event_listener.spans_of = tracing.of_run
    return SpanSource(tracing)
