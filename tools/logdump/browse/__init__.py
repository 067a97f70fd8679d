"""Implements ``logdump browse``, a full-screen viewer of logs."""
