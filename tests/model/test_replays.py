"""A run of a random program is replayed: that executes no effect, and gives the run's result."""

from __future__ import annotations

import linecache
import logging
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

from recovery import CheckpointStore
from recovery.graph import Graph
from recovery.testing import replay
from tests.model import language as l
from tests.model import values as v
from tests.model.hunt import Hunt
from tests.model.lived import Lived
from tests.model.printer import printed
from tests.model.process import Store

SEED, PROGRAMS = 20261124, 5


class Outside:
    """The outside of a program that is replayed. No tool may use it."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.done: list[str] = []
        self.process = mock.MagicMock(number=0)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in ("do", "look"):
            return found

        def used(*args: Any) -> Any:
            self.done.append(f"{name}{args}")
            return found(*args)

        return used


def agent_of(program: l.Program, outside: Outside) -> Any:
    """The agent, or the graph, of a program's code."""
    source, name = printed(program), "<replayed program>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    names: dict[str, Any] = {"outside": outside, "__name__": "agent_of_a_stranger"}
    exec(compile(source, name, "exec", dont_inherit=True), names)  # noqa: S102 - printed here
    return names["agent0"] if program.agents else names.get("graph")


def finished() -> Iterator[Lived]:
    """Runs that finished: the code was not edited, and the beginning is in the log."""
    hunt = Hunt(SEED)
    for number in range(PROGRAMS):
        for case, found in hunt.cases(number, schedules=3):
            lived = found.lived
            if lived.end.how == "finished" and not case.program.keep and not lived.edited:
                yield lived


def replayed(lived: Lived) -> bool:
    """Replay the run, and compare; False for a flexible graph, whose plan comes from outside."""
    outside = Outside(lived.world)
    agent = agent_of(lived.program, outside)
    if agent is None:
        return False
    made = replay(CheckpointStore(Store(lived.disks[-1])), agent, "run")
    assert not outside.done
    assert not made.record_end
    if not isinstance(agent, Graph):
        assert v.full(made.result) == v.full(lived.end.value)
    return True


def test_random_programs_are_replayed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "recovery")
    counts = 0
    for lived in finished():
        try:
            counts += replayed(lived)
        except BaseException as exc:
            exc.add_note(f"{printed(lived.program)}\n{lived.schedule}")
            raise
    assert counts > PROGRAMS // 2
