"""Bytes to frames, records and verdicts, and back. Pure; docs/format.md is the spec."""
