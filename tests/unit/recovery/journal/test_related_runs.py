"""Links to other runs in a run's first record are what they say, or an error."""

from __future__ import annotations

import pytest

from recovery import RecoveryError
from recovery.errors import DamagedRunError
from recovery.journal.events import RunStarted
from recovery.journal.forked_from import ForkedFrom
from recovery.journal.related_runs import RUN_ID_SIZE_MAX, ParentRun, child_run_id

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


def test_a_fork_is_whole_with_all_that_it_wrote_from_its_checkpoint_on():
    for last, restored in ((9, 8), (30, 25)):
        FORK.check("run", last, restored, ())
    for last, restored in ((8, 8), (9, 0), (30, 7)):
        with pytest.raises(RecoveryError, match=r"a fork of 'old' that was not finished"):
            FORK.check("run", last, restored, ())
        with pytest.raises(DamagedRunError, match="with which the fork began: broken") as caught:
            FORK.check("run", last, restored, ("broken", "too"))
        (damage,) = caught.value.damage
        assert (damage.first_lsn, damage.last_lsn, damage.size) == (8, 8, 0)


def test_the_run_id_of_a_child_has_room_for_its_digits():
    assert (
        child_run_id("above", "a name!", "0123456789abcdef0123") == "above+a_name_-0123456789abcdef"
    )
    assert child_run_id("above", "", "0") == "above+_-0"
    long = child_run_id("p" * RUN_ID_SIZE_MAX, "n" * 40, "0123456789abcdef0123")
    assert long == f"{'p' * (RUN_ID_SIZE_MAX - 50)}+{'n' * 32}-0123456789abcdef"
