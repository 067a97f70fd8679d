"""The record against which a run is replayed: a pure machine."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.history.load import Entry
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
    StepStarted,
    ValueRecorded,
)
from recovery.replay.matching import Replay
from recovery.replay.recorded_call import RecordedCall
from recovery.values.types import Ref


def intent(
    tool: str, scope: str = "1", call_id: str = "", occurrence: int = 1, after_crash: str = "park"
) -> CallIntended:
    return CallIntended(scope, tool, call_id, b"d", occurrence, after_crash)


def key(tool: str, scope: str = "1", call_id: str = "", occurrence: int = 1) -> CallKey:
    return CallKey(scope, tool, call_id, b"d", occurrence)


def replay(*events: Event) -> Replay:
    return Replay.of((lsn, lsn * 1000, event) for lsn, event in enumerate(events, 1))


def claimed(found: Replay, tool: str, **parts: Any) -> RecordedCall:
    call = found.match(key(tool, **parts))
    assert call is not None
    return call


@given(st.permutations(range(4)), st.permutations(range(4)))
def test_outcomes_are_served_in_the_order_in_which_they_were_recorded(ended, asked):
    found = replay(*(intent(f"t{i}") for i in range(4)), *(CallReturned(i + 1, i) for i in ended))
    waiting = [claimed(found, f"t{i}") for i in asked]
    served = []
    while waiting:
        ready = [call for call in waiting if found.is_next(call.last_lsn)]
        assert len(ready) == 1
        served.append(ready[0].last_lsn)
        found.mark_replayed(ready[0].last_lsn)
        waiting.remove(ready[0])
        assert found.is_next(99) == (not waiting)
    assert served == sorted(served)


def test_an_outcome_served_out_of_order_does_not_hold_up_the_others():
    found = replay(intent("a"), intent("b"), CallReturned(1, 0), CallReturned(2, 0))
    a, b = claimed(found, "a"), claimed(found, "b")
    assert not found.is_next(b.last_lsn)
    found.mark_replayed(b.last_lsn)
    assert not found.is_next(99)
    found.mark_replayed(a.last_lsn)
    assert found.is_next(99)


def test_an_outcome_waits_for_all_that_was_recorded_before_it():
    found = replay(
        StepStarted(1),
        intent("a"),
        ValueRecorded("1", "now", 1, 1.5),
        MessagesChanged(0, 0, [1]),
        intent("b"),
        CallReturned(2, 0),
    )
    a = claimed(found, "a")
    for do in (
        lambda: found.take_step(1),
        lambda: found.take_value("1", "now", 1),
        lambda: found.take_change(found.changes[0]),
        lambda: claimed(found, "b"),
    ):
        assert not found.is_next(a.last_lsn)
        do()
    assert found.is_next(a.last_lsn)


def test_new_outcomes_come_behind_recorded_ones_in_their_order():
    found = replay(intent("a"), intent("b"), CallReturned(1, 0))
    a, _ = claimed(found, "a"), claimed(found, "b")
    found.add_outcome(7)
    found.add_outcome(8)
    turns = [a.last_lsn, 7, 8]
    while turns:
        assert [found.is_next(lsn) for lsn in turns] == [True] + [False] * (len(turns) - 1)
        found.mark_replayed(turns.pop(0))
    assert found.is_next(99)


def test_what_an_outcome_has_waited_for_in_vain_is_not_waited_for_again():
    found = replay(
        ValueRecorded("1", "now", 1, 1.5),
        intent("a"),
        CallReturned(2, 0),
        intent("b"),
        CallReturned(4, 0),
    )
    a, b = claimed(found, "a"), claimed(found, "b")
    assert not found.is_next(a.last_lsn)
    found.stop_waiting(a.last_lsn)
    assert found.is_next(b.last_lsn)


def test_what_was_recorded_for_another_task_is_not_waited_for():
    events: list[Event] = [intent("a"), StepStarted(1), CallReturned(1, 0)]
    events += [intent("b"), CallReturned(4, 0)]
    for optional, waits in ((3, False), (2, True), (0, True)):
        found = Replay.of([(lsn, 0, one) for lsn, one in enumerate(events, 1)], optional)
        assert found.is_next(claimed(found, "b").last_lsn) is not waits
        assert claimed(found, "a").has_outcome  # it is served all the same


# -- calls inside calls


def test_calls_inside_a_call_with_an_outcome_are_covered_by_it():
    again = intent("again", scope="call 1", after_crash="retry")
    found = replay(
        intent("outer"), intent("in", scope="call 1"), CallReturned(2, 1), again, CallReturned(1, 2)
    )
    assert found.in_doubt() == []
    outer = claimed(found, "outer")
    assert found.exhausted
    assert found.is_next(outer.last_lsn)


@pytest.mark.parametrize(
    "outer",
    [
        CallReturned(1, 2),
        CallFailed(1, "E", ""),
        CallResolved(1, "outcome", 2),
        CallAbandoned(1, 1, "cancelled", went_on=True, begun=True),
    ],
)
def test_a_side_effect_inside_a_call_with_an_outcome_is_in_doubt_until_it_is_settled(outer):
    events = [intent("outer"), intent("in", scope="call 1"), intent("deep", scope="call 2"), outer]
    found = replay(*events)
    assert [call.lsn for call in found.covered_in_doubt()] == [2, 3]
    assert {call.lsn for call in found.in_doubt()} == {2, 3}
    for lsn in (2, 3):
        found.settled(9, CallResolved(lsn, "fail", "it did not happen"))
    claimed(found, "outer")
    assert found.exhausted
    settled = replay(*events, *(CallResolved(lsn, "retry") for lsn in (2, 3)))
    assert settled.covered_in_doubt() == settled.in_doubt() == []


def test_calls_inside_a_call_in_doubt_are_to_be_served():
    found = replay(intent("outer"), intent("in", scope="call 1"), CallReturned(2, 1))
    assert [call.lsn for call in found.in_doubt()] == [1]
    claimed(found, "outer")
    assert not found.exhausted
    assert claimed(found, "in", scope="call 1").has_outcome
    assert found.exhausted


def test_settling_a_call_covers_what_was_recorded_inside_it():
    found = replay(
        intent("outer"),
        intent("in", scope="call 1"),
        CallReturned(2, 1),
        intent("deep", scope="call 2", after_crash="retry"),
    )
    outer = claimed(found, "outer")
    assert not found.is_next(99)
    outer.last = CallResolved(1, "outcome", 1)
    assert found.unmatched() == []
    assert found.is_next(99)


def test_a_call_inside_one_that_a_checkpoint_has_replaced_is_covered():
    events: list[Entry] = [
        (9, 0, intent("in", scope="call 4", after_crash="retry")),
        (10, 0, CallReturned(4, 1)),
    ]
    assert Replay.of(events).exhausted


@pytest.mark.parametrize("scope", ["call 1", "call 2", "call 99", "call x", "call -1"])
def test_a_call_that_claims_to_be_inside_a_later_one_or_itself_is_not_covered(scope):
    found = replay(intent("a", scope=scope), intent("b", scope="call 1"))
    assert len(found.in_doubt()) == 2


# -- the rest


def test_whether_all_is_used_up_is_known_without_looking_at_each_call_again(monkeypatch):
    """It is asked for each record that is written. The calls are claimed in an order of which the
    first is the last, so that all of the others are found claimed at once."""
    looks: list[RecordedCall] = []
    is_unmatched = Replay._is_unmatched

    def looked(self: Replay, call: RecordedCall) -> bool:
        looks.append(call)
        return is_unmatched(self, call)

    monkeypatch.setattr(Replay, "_is_unmatched", looked)
    found = replay(*(intent("a", occurrence=nth) for nth in range(1, 501)))
    asked = 0
    for nth in (*range(2, 501), 1, 1, 1):
        assert not found.exhausted or asked >= 500
        found.match(key("a", occurrence=nth))
        asked += 1
    assert found.exhausted
    assert len(looks) <= 500 + 2 * asked


@st.composite
def nested_calls(draw: st.DrawFn) -> list[Event]:
    """Calls inside calls, some of them with an outcome, cancelled or dropped."""
    events: list[Event] = []
    for lsn in range(1, draw(st.integers(1, 12))):
        calls = [at for at, event in enumerate(events, 1) if isinstance(event, CallIntended)]
        outer = draw(st.sampled_from([0, *calls]))
        about = draw(st.sampled_from([lsn, *calls]))
        choice: list[Event] = [
            intent("a", f"call {outer}" if outer else "1", occurrence=lsn),
            CallReturned(about, 1),
            CallAbandoned(about, 1, "cancelled", True, True),
            HistoryDropped([about]),
            MessagesChanged(0, 0, [1]),
        ]
        events.append(draw(st.sampled_from(choice)))
    return events


@given(nested_calls(), st.randoms(use_true_random=False), st.integers(0, 12))
def test_what_is_used_up_is_what_has_nothing_unmatched_and_stays_so(events, chance, optional):
    found = Replay.of([(lsn, 0, event) for lsn, event in enumerate(events, 1)], optional)
    known = list(found._calls.values())
    was_used_up = False
    for _ in range(3 * len(known) + 3):
        assert found.exhausted == (not found.changes and not found.unmatched())
        assert found.exhausted or not was_used_up
        was_used_up = found.exhausted
        match chance.choice(["claim", "end", "change", "drop"]):
            case "claim" if known:
                found.match(chance.choice(known).key)
            case "end" if known:
                chance.choice(known).last = CallReturned(1, 1)
            case "change" if found.changes:
                found.take_change(found.changes[0])
            case "drop" if chance.random() < 0.1:
                found.discard_unmatched()


@pytest.mark.parametrize("step", [0, 2])
def test_a_change_of_the_messages_that_refers_to_a_lost_record_is_not_expected(step: int) -> None:
    began = [StepStarted(step)] * bool(step)
    lost = len(began) + 1
    found = replay(
        *began,
        RecordsLost(lost),
        MessagesChanged(0, 0, [Ref(lost, 0)]),
        MessagesChanged(0, 0, ["kept"]),
        LogRepaired([[lost, lost]]),
    )
    assert [one.change.new for one in found.changes] == [["kept"]]
    assert found.losses is not None and found.losses.upto_change == step
