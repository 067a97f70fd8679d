"""Decodes bytes to frames, records and verdicts, and encodes them. Pure; see docs/format.md."""
