"""What may have been among records that are lost: of which steps, inside which calls, how many."""

from __future__ import annotations

import pytest

from eventlog import Packed
from recovery.journal.events import (
    CallAbandoned,
    CallFailed,
    CallIntended,
    CallResolved,
    CallReturned,
    Event,
    HistoryDropped,
    LogRepaired,
    MessagesChanged,
    RecordsLost,
    StepStarted,
    ValueRecorded,
)
from recovery.journal.keys import CallKey
from recovery.replay.lost_records import LostRecords, losses_in
from recovery.values.types import Ref


def intent(scope: str = "1", tool: str = "t", lost: bool | None = None) -> CallIntended:
    return CallIntended(scope, tool, "", b"d", 1, "park", lost=lost)


def losses(*events: tuple[int, Event], step: int = 0) -> LostRecords:
    found = losses_in([(lsn, 0, event) for lsn, event in events], step)
    assert found is not None
    return found


def key(scope: str) -> CallKey:
    return CallKey(scope, "t", "", b"d", 1)


def test_nothing_is_lost_where_nothing_is() -> None:
    assert losses_in([(1, 0, StepStarted(1)), (2, 0, intent())], 0) is None
    assert losses_in([(1, 0, RecordsLost(1, True))], 0) is None, "a checkpoint hides no call"


def test_a_step_that_begins_behind_the_loss_did_not_begin_in_it() -> None:
    found = losses(
        (1, StepStarted(3)), (2, RecordsLost(9)), (10, StepStarted(4)), (11, LogRepaired([[2, 9]]))
    )
    assert found.hides(key("3")) and found.hides(key("1")) and not found.hides(key("4"))


def test_steps_that_are_missing_may_have_begun_in_it() -> None:
    found = losses(
        (1, StepStarted(3)), (2, RecordsLost(9)), (10, StepStarted(6)), (11, LogRepaired([[2, 9]]))
    )
    assert found.hides(key("5")) and not found.hides(key("6"))


def test_each_step_that_may_have_begun_takes_a_record_and_so_does_the_call() -> None:
    found = losses((1, StepStarted(3)), (2, RecordsLost(4)), (5, LogRepaired([[2, 4]])))
    assert found.hides(key("5")) and not found.hides(key("6"))
    found = losses((7, RecordsLost(7)), (8, LogRepaired([[7, 7]])), step=4)
    assert found.hides(key("4")) and not found.hides(key("5"))


def test_a_step_that_begins_behind_the_repair_says_nothing_of_when_it_did_before() -> None:
    found = losses(
        (1, StepStarted(3)), (2, RecordsLost(9)), (10, LogRepaired([[2, 9]])), (11, StepStarted(4))
    )
    assert found.hides(key("4")) and found.hides(key("5"))


def test_a_step_that_begins_anew_behind_an_accepted_divergence_says_nothing_either() -> None:
    found = losses(
        (1, StepStarted(3)),
        (2, RecordsLost(9)),
        (10, HistoryDropped([1])),
        (11, StepStarted(4)),
        (12, LogRepaired([[2, 9]])),
    )
    assert found.hides(key("4"))


def was_made(lsn: int, scope: str = "3") -> list[tuple[int, Event]]:
    """A call that may be among what is lost, and somebody who knows that it took place."""
    return [(lsn, intent(scope, lost=True)), (lsn + 1, CallResolved(lsn, "outcome", 1, "operator"))]


REPAIRED: list[tuple[int, Event]] = [
    (1, StepStarted(3)),
    (2, RecordsLost(4)),
    (5, LogRepaired([[2, 4]])),
]


def test_when_as_much_was_there_as_is_lost_the_next_step_is_new() -> None:
    # Three are lost: the call that was made, the beginning of step 4, and one more may be.
    assert losses(*REPAIRED, *was_made(6), (8, StepStarted(4))).hides(key("4"))
    more = losses(*REPAIRED, *was_made(6), *was_made(8, "1"), (10, StepStarted(4)))
    assert not more.hides(key("4")) and more.hides(key("3"))


@pytest.mark.parametrize(
    "given",
    [
        CallReturned(6, 1),
        CallFailed(6, "ValueError", "", [], ""),
        CallResolved(6, "fail", "why", "operator"),
        CallResolved(6, "outcome", 1, "after_crash=report"),
        CallAbandoned(6, 1, "cancelled", went_on=True),
        ValueRecorded("3", "now", 1, 1),
    ],
    ids=lambda event: f"{event.kind} {getattr(event, 'how', '')}",
)
def test_code_that_was_given_something_else_may_come_to_what_is_lost_later(given: Event) -> None:
    for call in (intent("3", lost=True), intent("3")):
        found = losses(
            (1, StepStarted(3)),
            (2, RecordsLost(4)),
            (5, LogRepaired([[2, 4]])),
            (6, call),
            (7, given),
            (8, StepStarted(4)),
        )
        new = call.lost is None and not isinstance(given, ValueRecorded)
        assert found.hides(key("3"), before=9) is not new, "its outcome is that of a new call"
    found = losses(
        (1, StepStarted(3)),
        (6, intent("3")),
        (7, RecordsLost(8)),
        (9, LogRepaired([[7, 8]])),
        (10, given),
        (11, StepStarted(4)),
    )
    assert found.hides(key("4"), before=9), "the outcome may have been lost"
    made = [*was_made(6), *was_made(8)]
    found = losses(*REPAIRED, *made, (10, ValueRecorded("3", "now", 1, 1)), (11, StepStarted(4)))
    assert found.hides(key("4")), "as much was there as is lost, and step 4 may be another one"


def test_what_is_to_be_made_again_was_given_nothing_yet() -> None:
    for given in (CallResolved(6, "retry", None, "operator"), CallAbandoned(6, 1, "timeout")):
        found = losses(*REPAIRED, (6, intent("3", lost=True)), (7, given))
        assert not found.hides(key("3"), before=3)


def test_an_outcome_that_is_not_lost_accounts_for_nothing() -> None:
    found = losses(
        (1, StepStarted(3)),
        (2, RecordsLost(2)),
        (3, CallReturned(2, 1)),
        (4, RecordsLost(4)),
        (5, LogRepaired([[2, 2], [4, 4]])),
    )
    assert found.hides(key("3"), before=2) and not found.hides(key("3"), before=3)


def test_calls_inside_a_call_that_began_before_the_loss_ended_may_be_among_it() -> None:
    found = losses(
        (1, StepStarted(1)),
        (2, intent()),
        (3, RecordsLost(5)),
        (6, intent()),
        (7, StepStarted(2)),
        (8, LogRepaired([[3, 5]])),
        (9, intent(lost=True)),
        (10, intent("2")),
    )
    assert found.hides(key("call 2"))
    assert not found.hides(key("call 6")), "it began behind the loss"
    assert found.hides(key("call 9")), "it may have begun in it"
    assert not found.hides(key("call 10"))


def test_a_repair_that_was_interrupted_leaves_losses_that_nobody_speaks_of() -> None:
    assert losses((1, RecordsLost(5))).undeclared()
    assert losses((1, RecordsLost(5)), (6, LogRepaired([[1, 4]]))).undeclared()
    assert not losses((1, RecordsLost(5)), (6, LogRepaired([[1, 2], [3, 5]]))).undeclared()
    # In two frames, or two segments, and of two repairs.
    two = losses(
        (1, RecordsLost(3)),
        (4, RecordsLost(5)),
        (6, LogRepaired([[1, 3]])),
        (7, StepStarted(2)),
        (8, LogRepaired([[4, 5]])),
    )
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
