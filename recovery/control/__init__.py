"""Sends messages to one run from any process: signals, decisions, cancel, resolve."""
