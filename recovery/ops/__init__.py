"""Copies and removes whole runs: fork, remove, gc."""
