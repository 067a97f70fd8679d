"""Links to other runs in a run's first record are what they say, or an error."""

from __future__ import annotations

import pytest

from recovery import RecoveryError
from recovery.journal.events import RunStarted
from recovery.journal.forked_from import ForkedFrom
from recovery.journal.links import ParentRun

FORK = ForkedFrom("old", "uid", 3, 20, until=9, base=8)


def test_a_link_comes_back_as_it_was_recorded():
    parent = ParentRun("above", "uid", 7)
    started = RunStarted("run", 1, "uid", parent.packable(), FORK.packable())
    assert ParentRun.of(started) == parent
    assert ForkedFrom.of(started) == FORK
    assert ParentRun.of(None) is None and ForkedFrom.of(None) is None


@pytest.mark.parametrize("parent", [{}, {"run_id": "above", "uid": "uid"}, {"run_id": 1}])
def test_a_parent_that_makes_no_sense_is_an_error(parent):
    with pytest.raises(RecoveryError, match=r"its parent is .*, which is no link to a run"):
        ParentRun.of(RunStarted("run", 1, "uid", parent))


@pytest.mark.parametrize(
    "changed", [{"run_id": 1}, {"step": "3"}, {"step": True}, {"step": -1}, {"base": 10}]
)
def test_a_fork_of_something_that_makes_no_sense_is_an_error(changed):
    link = FORK.packable() | changed
    with pytest.raises(RecoveryError, match="the link to the run it was forked from is"):
        ForkedFrom.of(RunStarted("run", 1, "uid", forked_from=link))
    with pytest.raises(RecoveryError, match="the link to the run it was forked from is"):
        ForkedFrom.of(RunStarted("run", 1, "uid", forked_from={"run_id": "old"}))
    assert ForkedFrom.of(RunStarted("run", 1, "uid", forked_from=link | FORK.packable())) == FORK
