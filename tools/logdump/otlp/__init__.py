"""Implements ``logdump otlp``, which exports a run as spans of OpenTelemetry."""
