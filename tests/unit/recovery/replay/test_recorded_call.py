"""What the events about a call make of it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from recovery.journal.events import (
    BEFORE,
    RESUMED,
    AttemptFailed,
    CallAbandoned,
    CallDecided,
    CallFailed,
    CallIntended,
    CallResolved,
    CallRetried,
    CallReturned,
    HistoryDropped,
    StepStarted,
)
from recovery.replay.recorded_call import RecordedCall, Tries, dropped_by, fold, put_in_doubt

ASKS: dict[str, Any] = {"asks_until": 9.0}
WAITS, READS = {"after_crash": "wait"}, {"after_crash": "retry"}
EVENTS: dict[str, Any] = {
    "returned": CallReturned(4, 1),
    "failed": CallFailed(4, "E", ""),
    "failed for good": CallFailed(4, "recovery.PermanentError", ""),
    "to be tried again": AttemptFailed(4, 1, "E", "", 9.0),
    "outcome": CallResolved(4, "outcome", 1),
    "fail": CallResolved(4, "fail", "no"),
    "retry": CallResolved(4, "retry"),
    "tried again": CallRetried(4, 2),
    "stopped": CallAbandoned(4, 1, "timeout", went_on=False, begun=False),
    "stopped late": CallAbandoned(4, 1, "timeout", went_on=False, begun=True),
    "cancelled": CallAbandoned(4, 1, "cancelled", went_on=True, begun=False),
    "cancelled late": CallAbandoned(4, 1, "cancelled", went_on=True, begun=True),
    "approved": CallDecided(4, True, "ann", ""),
    "denied": CallDecided(4, False, "ann", ""),
}
PROPERTIES = {
    "over": "has_outcome",
    "doubt": "in_doubt",
    "effect": "is_open_effect",
    "cancelled": "cancelled",
    "not begun": "was_not_begun",
    "repeat": "is_to_be_repeated",
    "may have run": "may_have_run",
    "lacks": "lacks_approval",
    "undecided": "is_undecided",
}
OPEN = "doubt, effect, may have run"


def call(options: dict[str, Any], events: str = "", mark: str = "") -> RecordedCall:
    given = {"after_crash": "park", **options}
    made = RecordedCall.of(4, 4000, CallIntended("1", "tool", "", b"d", 1, **given))
    for lsn, event in enumerate(filter(None, events.split(", ")), 5):
        made.apply(lsn, lsn * 1000, EVENTS[event])
    if mark:
        setattr(made, mark, True)
    return made


@pytest.mark.parametrize(
    ("options", "events", "mark", "found"),
    [
        ({}, "", "", OPEN),
        (READS, "", "", "doubt, may have run"),
        (WAITS, "", "", ""),
        (WAITS, "retry", "", "repeat"),
        ({}, "returned", "", "over, may have run"),
        ({}, "returned", "from_past_attempt", "over, may have run"),
        ({}, "failed", "", "over, may have run"),
        ({}, "failed", "from_past_attempt", "repeat, may have run"),
        ({}, "failed", "parked_run", "repeat, may have run"),
        ({}, "failed for good", "from_past_attempt", "over, may have run"),
        ({}, "failed for good", "parked_run", "repeat, may have run"),
        ({}, "failed, tried again", "", OPEN),
        ({}, "to be tried again", "", "repeat, may have run"),
        ({}, "to be tried again", "uncertain", OPEN),
        ({}, "outcome", "", "over, may have run"),
        ({}, "fail", "from_past_attempt", "over, may have run"),
        ({}, "retry", "", "repeat, may have run"),
        ({}, "stopped", "", "not begun, repeat, may have run"),
        ({}, "stopped", "uncertain", f"not begun, {OPEN}"),
        ({}, "stopped late", "", OPEN),
        ({}, "cancelled", "", "cancelled, not begun, repeat, may have run"),
        ({}, "cancelled late", "", "cancelled, may have run"),
        (ASKS, "", "", "lacks, undecided"),
        (ASKS, "", "uncertain", f"lacks, {OPEN}"),
        (ASKS, "fail", "", "over, lacks"),
        # Their approval is lost, for they have begun.
        (ASKS, "cancelled late", "", "cancelled, lacks, may have run"),
        (ASKS, "stopped late", "", f"lacks, {OPEN}"),
        (ASKS, "tried again", "", f"lacks, {OPEN}"),
        (ASKS, "tried again, retry", "", "repeat, lacks, undecided"),
        (ASKS | READS, "tried again", "", "lacks, undecided"),
        (ASKS, "stopped", "", "not begun, repeat, lacks, undecided"),
        (ASKS, "approved", "", OPEN),
        (ASKS, "stopped, approved", "", OPEN),
        (ASKS, "approved, to be tried again", "", "repeat, may have run"),
        (ASKS, "denied", "", "lacks"),
        (ASKS, "denied, failed", "", "over, lacks"),
        (ASKS, "denied, failed, retry", "", "repeat, lacks, undecided"),
        ({"lost": True} | ASKS, "", "", f"lacks, {OPEN}"),
        ({"lost": True} | ASKS, "retry", "", "repeat, lacks, undecided"),
    ],
)
def test_the_state_of_a_call(options: dict[str, Any], events: str, mark: str, found: str) -> None:
    made = call(options, events, mark)
    said = {name for name, of in PROPERTIES.items() if getattr(made, of)}
    assert said == {*filter(None, found.split(", "))}


def test_what_is_known_of_attempts_and_decisions() -> None:
    made = call({}, "to be tried again, tried again, to be tried again")
    assert (made.attempts, made.again_lsn, made.tries) == (2, 6, Tries(2, 2))
    made.apply(8, 8000, EVENTS["failed"])
    assert made.tries == Tries(0, 3) and (made.last_lsn, made.last_ns) == (8, 8000)
    made.uncertain = made.parked_run = made.from_past_attempt = True
    made.apply(9, 9000, EVENTS["retry"])
    assert (made.uncertain, made.parked_run, made.from_past_attempt) == (False, False, True)
    made.apply(10, 10000, EVENTS["tried again"])
    assert not made.from_past_attempt  # it belongs to the present attempt around it now
    assert not call({}, "cancelled").from_past_attempt
    assert call(ASKS, "denied, failed").decided is EVENTS["denied"]
    assert call(ASKS, "approved").last_decision == (0, 0)
    asks = call(ASKS)
    assert (asks.asks_until, call({}).asks_until) == (9.0, math.inf)
    for lsn, heard in enumerate([(7, 5), (6, 9)], 5):
        asks.apply(lsn, 0, CallDecided(4, True, "ann", "", *heard))
    assert asks.last_decision == (7, 5) and asks.again_lsn == 6


def test_only_a_call_in_its_order_has_a_position() -> None:
    assert call({}, "returned").replay_position == 5
    resumed, before, lost = call({}, "returned"), call({}, "returned"), call({"lost": True})
    resumed.place, before.place = RESUMED, BEFORE
    past = call({}, "returned", "from_past_attempt")
    assert [one.replay_position for one in (resumed, before, lost, past)] == [0, 5, 0, 0]
    assert [one.is_placed for one in (resumed, before, lost, past)] == [False, True, False, False]


def test_calls_that_were_open_at_once_may_change_places() -> None:
    first, second = call({}, "returned"), call({}, "returned")
    assert (first.lsn, first.last_lsn) == (4, 5)
    for lsn, both_open in ((3, True), (5, False), (7, False)):
        second.lsn, second.last_lsn = lsn, lsn + 4
        assert first.may_come_after(second) is second.may_come_after(first) is both_open
    second.from_past_attempt = True
    assert not first.may_come_after(second) and not second.may_come_after(first)
    first.from_past_attempt = True
    assert first.may_come_after(second)
    still_open = call({})
    still_open.lsn = 2
    assert call({}).may_come_after(still_open)


def test_events_are_folded_into_the_calls_that_are_known() -> None:
    calls: dict[int, RecordedCall] = {}
    made = fold(calls, 4, 4000, CallIntended("1", "tool", "", b"d", 1, "park"))
    assert made is not None and (calls, made.since_ns) == ({4: made}, 4000)
    assert fold(calls, 5, 5000, CallReturned(4, "x")) is made and made.value == "x"
    for other in (CallReturned(3, 1), StepStarted(1), None):
        assert fold(calls, 6, 6000, other) is None
    assert made.last_lsn == 5 and call({}).value is None
    unsure = call({})
    put_in_doubt([made, unsure])
    assert (made.uncertain, unsure.uncertain) == (False, True)


def test_a_dropped_call_that_is_made_again_is_expected_again() -> None:
    dropped = HistoryDropped([4, 7])
    assert dropped_by([dropped, CallResolved(4, "retry")]) == {4, 7}
    assert dropped_by([CallReturned(7, 1), dropped, CallReturned(4, 1)]) == {7}
