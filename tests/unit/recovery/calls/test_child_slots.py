"""How many child runs execute at once: first come, first served."""

from __future__ import annotations

from recovery.calls.child_slots import ChildSlots


def test_a_slot_goes_to_who_has_waited_longest() -> None:
    slots = ChildSlots(2)
    first, second, third, fourth, fifth = (slots.ask() for _ in range(5))
    assert [one.done() for one in (first, second, third)] == [True, True, False]
    slots.withdraw(third)
    assert third.result() is False
    slots.leave(first)
    assert fourth.result() is True and not fifth.done()
    slots.withdraw(fourth)  # which has its slot already
    slots.leave(third)  # which had none
    slots.leave(fifth)
    assert fourth.result() is True and fifth.result() is False
    slots.leave(second)
    slots.leave(fourth)
    assert [slots.ask().done() for _ in range(3)] == [True, True, False]


def test_children_of_children_have_slots_of_their_own() -> None:
    slots = ChildSlots(1)
    assert slots.ask().done() and slots.below().ask().done()
    assert not slots.below().ask().done()
