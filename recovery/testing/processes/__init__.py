"""Kills real processes."""
