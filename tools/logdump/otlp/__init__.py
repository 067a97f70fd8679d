"""``logdump otlp``: a run as spans of OpenTelemetry."""
