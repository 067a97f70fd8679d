"""Operates on whole runs: fork, remove, gc."""
