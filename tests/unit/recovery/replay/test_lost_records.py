"""What may have been among records that are lost: of which steps, inside which calls."""

from __future__ import annotations

import pytest

from eventlog import Packed
from recovery.journal.call_key import CallKey
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
    RunStarted,
    SignalTaken,
    StepStarted,
    ValueRecorded,
)
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


@pytest.mark.parametrize("behind", [4, 6])
def test_steps_before_the_one_that_begins_behind_the_loss_may_have_begun_in_it(behind: int) -> None:
    loss = (1, StepStarted(3)), (2, RecordsLost(9))
    found = losses(*loss, (10, StepStarted(behind)), (11, LogRepaired([[2, 9]])))
    steps = [step for step in range(1, 9) if found.may_contain(str(step))]
    assert steps == [*range(1, behind)]


def test_each_step_that_may_have_begun_takes_a_record_and_so_does_the_call() -> None:
    found = losses((1, StepStarted(3)), (2, RecordsLost(4)), (5, LogRepaired([[2, 4]])))
    assert found.may_contain("5") and not found.may_contain("6")
    found = losses((7, RecordsLost(7)), (8, LogRepaired([[7, 7]])), step=4)
    assert found.may_contain("4") and not found.may_contain("5")


def test_a_step_that_begins_behind_the_repair_says_nothing_of_when_it_did_before() -> None:
    found = losses(
        (1, StepStarted(3)), (2, RecordsLost(9)), (10, LogRepaired([[2, 9]])), (11, StepStarted(4))
    )
    assert found.may_contain("4") and found.may_contain("5")


def test_a_step_that_begins_anew_behind_an_accepted_divergence_says_nothing_either() -> None:
    found = losses(
        (1, StepStarted(3)),
        (2, RecordsLost(9)),
        (10, HistoryDropped([1])),
        (11, StepStarted(4)),
        (12, LogRepaired([[2, 9]])),
    )
    assert found.may_contain("4")


@pytest.mark.parametrize("lost", [True, None])
def test_no_outcome_and_no_step_of_now_says_that_nothing_more_is_lost(lost: bool | None) -> None:
    known = CallResolved(6, "outcome", 1, "operator")
    found = losses(
        (1, StepStarted(3)),
        (2, RecordsLost(4)),
        (5, LogRepaired([[2, 4]])),
        (6, intent("3", lost=lost)),
        (7, known),
        (8, intent("3", "u", lost=lost)),
        (9, CallReturned(8, 1)),
        (10, StepStarted(4)),
        (11, StepStarted(5)),
    )
    assert found.may_contain("3") and found.may_contain("5") and not found.may_contain("6")


def repaired(call: bool | None, *given: Event) -> LostRecords:
    """A call that may be lost (True) or is new (None), and what the code was given behind it."""
    loss: list[tuple[int, Event]] = [(2, RecordsLost(4)), (5, LogRepaired([[2, 4]]))]
    then = enumerate((intent("3", lost=call), *given), start=6)
    return losses((1, StepStarted(3)), *loss, *then)


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
def test_code_that_was_given_something_else_may_do_something_else(given: Event) -> None:
    assert repaired(True, given).input_changed
    assert repaired(None, given).input_changed is isinstance(given, ValueRecorded)
    found = losses(
        (1, StepStarted(3)),
        (6, intent("3")),
        (7, RecordsLost(8)),
        (9, LogRepaired([[7, 8]])),
        (10, given),
    )
    assert found.input_changed, "the outcome may have been lost"


@pytest.mark.parametrize(
    "given",
    [
        CallResolved(6, "retry", None, "operator"),
        CallAbandoned(6, 1, "timeout"),
        CallResolved(6, "outcome", 1, "operator"),
    ],
    ids=lambda event: f"{event.kind} {getattr(event, 'how', '')}",
)
def test_what_is_to_be_made_again_and_what_somebody_knows_is_nothing_else(given: Event) -> None:
    assert not repaired(True, given).input_changed


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
    assert found.may_contain("call 2")
    assert not found.may_contain("call 6"), "it began behind the loss"
    assert found.may_contain("call 9"), "it may have begun in it"
    assert not found.may_contain("call 10")


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
    assert two.may_contain("2"), "it began behind the first repair"


def test_a_change_that_refers_to_what_is_lost_is_lost_as_well() -> None:
    found = losses((3, RecordsLost(5)), (6, LogRepaired([[3, 5]])))
    assert found.refers_to_lost(MessagesChanged(0, 0, [{"a": 1}, Ref(4, 0)]))
    assert not found.refers_to_lost(MessagesChanged(0, 0, [Ref(2, 0)]))
    assert not found.refers_to_lost(MessagesChanged(0, 0, Packed(b"\x90")))


def test_a_gap_says_where_it_is_and_who_repaired_it() -> None:
    def said(last: int, *repaired: LogRepaired) -> str:
        begun: list[tuple[int, Event]] = [(1, StepStarted(3)), (2, RecordsLost(last))]
        events = begun + list(enumerate(repaired, last + 1))
        (gap,) = losses(*events).gaps
        return str(gap)

    assert said(4) == "LSN 2-4; in doubt: calls of steps up to 5 without a record"
    one = "; in doubt: calls of steps up to 3 without a record"
    assert said(2, LogRepaired([[2, 2]])) == f"LSN 2 (repaired){one}"
    assert (
        said(2, LogRepaired([[2, 2]], "ann", "a flip")) == f"LSN 2 (repaired by ann: a flip){one}"
    )
    assert said(2, LogRepaired([[1, 1]], "ann", "a flip")) == f"LSN 2{one}", "of another gap"


def test_outcomes_whose_calls_are_lost_may_be_of_calls_of_their_step_and_before() -> None:
    found = losses(
        (1, StepStarted(3)),
        (2, RecordsLost(4)),
        (5, CallReturned(4, 1)),
        (6, StepStarted(4)),
        (7, CallFailed(2, "ValueError", "", [], "")),
        (8, LogRepaired([[2, 4]])),
        (9, CallReturned(1, 1)),
    )
    assert found.unclaimed_outcomes() == (5, 7)
    assert found.unclaimed_outcomes(key("3")) == (5, 7)
    assert found.unclaimed_outcomes(key("4")) == ()  # it began behind the loss
    assert found.unclaimed_outcomes(key("call 1")) == (5, 7)


def test_a_signal_that_a_lost_wait_has_taken_is_kept_for_the_wait_that_is_made_again() -> None:
    def taken(call: int, name: str, inbox: int, several: bool | None = None) -> SignalTaken:
        return SignalTaken(call, 1, name=name, inbox=inbox, uid="u", several=several)

    lost: list[tuple[int, Event]] = [(1, RecordsLost(5))]
    lost += [(6, taken(2, "go", 7)), (7, taken(3, "no", 8, several=True))]
    found = losses(*lost, (8, LogRepaired([[1, 5]])))
    assert found.signal(("no", "go"), several=False) == taken(2, "go", 7)
    assert found.signal(("no", "go"), several=True) == taken(3, "no", 8, several=True)
    assert found.signal(("go",), several=True) is None
    assert found.unclaimed_outcomes() == ()
    found.observe(9, intent(lost=True))
    found.observe(10, taken(9, "go", 7))
    assert found.signal(("go",), several=False) is None
    assert not found.input_changed, "it is what the code was given then"
    found.observe(11, taken(9, "no", 9))
    assert found.input_changed


def test_what_is_lost_of_copies_was_made_in_the_run_that_a_fork_came_from() -> None:
    def forked(first: int, last: int) -> LostRecords:
        origin = {"run_id": "run", "uid": "u", "step": 1, "lsn": 4, "until": 4}
        started = RunStarted("fork", "task", "v", forked_from=origin)
        return losses((1, started), (first, RecordsLost(last)))

    assert forked(2, 4).in_copies and forked(2, 4).uid_of_copies == "u"
    assert forked(2, 5).in_copies and forked(2, 5).uid_of_copies == ""
    assert not forked(5, 5).in_copies and forked(5, 5).uid_of_copies == ""
    alone = losses((1, RecordsLost(2)))
    assert not alone.in_copies and alone.uid_of_copies == ""
