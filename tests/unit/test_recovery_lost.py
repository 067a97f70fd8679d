"""What may have been among records that are lost: of which steps, inside which calls, how many."""

from __future__ import annotations

from eventlog import Packed
from recovery._events import (
    CallIntended,
    CallReturned,
    Event,
    HistoryDropped,
    LogRepaired,
    MessagesChanged,
    RecordsLost,
    StepStarted,
    ValueRecorded,
)
from recovery._keys import CallKey
from recovery._lost import Losses, losses_in
from recovery._values import Ref


def intent(scope: str = "1", tool: str = "t", lost: bool | None = None) -> CallIntended:
    return CallIntended(scope, tool, "", b"d", 1, "park", lost=lost)


def losses(*events: tuple[int, Event], step: int = 0) -> Losses:
    found = losses_in([(lsn, 0, event) for lsn, event in events], step)
    assert found is not None
    return found


def key(scope: str) -> CallKey:
    return CallKey(scope, "t", "", b"d", 1)


def test_nothing_is_lost_where_nothing_is() -> None:
    assert losses_in([(1, 0, StepStarted(1)), (2, 0, intent())], 0) is None
    assert losses_in([(1, 0, RecordsLost(1, True))], 0) is None, "a checkpoint hides no call"


def test_a_step_that_begins_behind_the_loss_did_not_begin_in_it() -> None:
    found = losses((1, StepStarted(3)), (2, RecordsLost(9)), (10, StepStarted(4)),
                   (11, LogRepaired([[2, 9]])))  # fmt: skip
    assert found.hides(key("3")) and found.hides(key("1")) and not found.hides(key("4"))


def test_steps_that_are_missing_may_have_begun_in_it() -> None:
    found = losses((1, StepStarted(3)), (2, RecordsLost(9)), (10, StepStarted(6)),
                   (11, LogRepaired([[2, 9]])))  # fmt: skip
    assert found.hides(key("5")) and not found.hides(key("6"))


def test_each_step_that_may_have_begun_takes_a_record_and_so_does_the_call() -> None:
    found = losses((1, StepStarted(3)), (2, RecordsLost(4)), (5, LogRepaired([[2, 4]])))
    assert found.hides(key("5")) and not found.hides(key("6"))
    found = losses((7, RecordsLost(7)), (8, LogRepaired([[7, 7]])), step=4)
    assert found.hides(key("4")) and not found.hides(key("5"))


def test_a_step_that_begins_behind_the_repair_says_nothing_of_when_it_did_before() -> None:
    found = losses((1, StepStarted(3)), (2, RecordsLost(9)), (10, LogRepaired([[2, 9]])),
                   (11, StepStarted(4)))  # fmt: skip
    assert found.hides(key("4")) and found.hides(key("5"))


def test_a_step_that_begins_anew_behind_an_accepted_divergence_says_nothing_either() -> None:
    found = losses((1, StepStarted(3)), (2, RecordsLost(9)), (10, HistoryDropped([1])),
                   (11, StepStarted(4)), (12, LogRepaired([[2, 9]])))  # fmt: skip
    assert found.hides(key("4"))


def test_when_as_much_was_done_as_is_lost_what_comes_is_new() -> None:
    events: list[tuple[int, Event]] = [
        (1, StepStarted(3)), (2, RecordsLost(6)), (7, LogRepaired([[2, 6]])),
        (8, intent("3", lost=True)), (9, CallReturned(8, 1)), (10, MessagesChanged(0, 0, [1])),
    ]  # fmt: skip
    # Five are lost, three are accounted for, the beginning of step 4 is one, a call would be one.
    assert losses(*events, (11, StepStarted(4))).hides(key("4"))
    more = losses(*events, (11, ValueRecorded("3", "now", 1, 1)), (12, StepStarted(4)))
    assert not more.hides(key("4")) and more.hides(key("3"))


def test_what_a_task_of_an_earlier_step_does_accounts_for_nothing() -> None:
    found = losses((1, StepStarted(3)), (2, RecordsLost(3)), (4, LogRepaired([[2, 3]])),
                   (5, intent("1", lost=True)), (6, StepStarted(4)))  # fmt: skip
    assert found.hides(key("3"))


def test_calls_inside_a_call_that_began_before_the_loss_ended_may_be_among_it() -> None:
    found = losses((1, StepStarted(1)), (2, intent()), (3, RecordsLost(5)), (6, intent()),
                   (7, StepStarted(2)), (8, LogRepaired([[3, 5]])),
                   (9, intent(lost=True)), (10, intent("2")))  # fmt: skip
    assert found.hides(key("call 2"))
    assert not found.hides(key("call 6")), "it began behind the loss"
    assert found.hides(key("call 9")), "it may have begun in it"
    assert not found.hides(key("call 10"))


def test_a_repair_that_was_interrupted_leaves_losses_that_nobody_speaks_of() -> None:
    assert losses((1, RecordsLost(5))).undeclared()
    assert losses((1, RecordsLost(5)), (6, LogRepaired([[1, 4]]))).undeclared()
    assert not losses((1, RecordsLost(5)), (6, LogRepaired([[1, 2], [3, 5]]))).undeclared()
    # In two frames, or two segments, and of two repairs.
    two = losses((1, RecordsLost(3)), (4, RecordsLost(5)), (6, LogRepaired([[1, 3]])),
                 (7, StepStarted(2)), (8, LogRepaired([[4, 5]])))  # fmt: skip
    assert not two.undeclared() and len(two.gaps) == 1
    assert two.hides(key("2")), "it began behind the first repair"


def test_a_change_that_refers_to_what_is_lost_is_lost_as_well() -> None:
    found = losses((3, RecordsLost(5)), (6, LogRepaired([[3, 5]])))
    assert found.refers_to_lost(MessagesChanged(0, 0, [{"a": 1}, Ref(4, 0)]))
    assert not found.refers_to_lost(MessagesChanged(0, 0, [Ref(2, 0)]))
    assert not found.refers_to_lost(MessagesChanged(0, 0, Packed(b"\x90")))


def test_what_the_same_code_has_done_before_accounts_for_as_much() -> None:
    found = losses((1, StepStarted(3)), (2, RecordsLost(3)), (4, LogRepaired([[2, 3]])))
    assert found.hides(key("3"), before=1) and not found.hides(key("3"), before=2)
