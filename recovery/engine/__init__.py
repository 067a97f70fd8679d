"""Holds one execution of a run: its steps, state and messages; writes its events, and stops it."""
