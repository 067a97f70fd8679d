"""Fixtures of the tests of agents."""

from tests.unit.conftest import clock, fresh

__all__ = ["clock", "fresh"]
