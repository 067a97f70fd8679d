"""Fixtures of the tests of agents; see `lives`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import recovery._agent_errors
from recovery.testing._time import Clock, virtual_time
from tests.unit.lives import Limited, executed


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing has been executed yet, and an agent that fails is run again at once."""
    executed.clear()
    monkeypatch.setattr(recovery._agent_errors, "BACKOFF_S", 0.0)


@pytest.fixture
def clock() -> Iterator[Clock]:
    """Virtual time, which moves where something waits for it."""
    clock = Limited()
    clock.begin()
    with virtual_time(clock):
        yield clock
