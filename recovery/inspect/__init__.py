"""Reads runs without their code: status, events, comparison."""
