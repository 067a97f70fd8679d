"""Replays recorded runs without executing a call: for tests, and under a debugger."""
