"""Decides from recorded events, without I/O: what is served, executed again, in doubt, or new."""
