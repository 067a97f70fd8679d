"""Which call is which."""

from __future__ import annotations

import pytest

from recovery.journal.call_key import (
    UNDO_PREFIX,
    CallKey,
    call_scope,
    idempotency_key,
    outer_call,
    step_of,
    step_scope,
)
from recovery.journal.events import CallIntended

KEY = CallKey("3", "send", "call_1", b"\x01" * 16)


@pytest.mark.parametrize(
    "other",
    [
        {"scope": "4"},
        {"scope": "call 3"},
        {"tool": "sent"},
        {"call_id": ""},
        {"digest": b"\x02" * 16},
        {"occurrence": 2},
    ],
)
def test_every_part_tells_calls_apart(other):
    assert KEY._replace(**other) != KEY
    assert idempotency_key("uid", KEY._replace(**other)) != idempotency_key("uid", KEY)


def test_parts_cannot_run_into_each_other():
    a = KEY._replace(tool="ab", call_id="c")
    b = KEY._replace(tool="a", call_id="bc")
    assert idempotency_key("uid", a) != idempotency_key("uid", b)


def test_idempotency_keys_differ_between_runs_and_are_stable():
    assert idempotency_key("uid", KEY) == idempotency_key("uid", KEY._replace())
    assert idempotency_key("uid", KEY) != idempotency_key("other", KEY)
    assert len(idempotency_key("uid", KEY)) == 32
    # What has been handed to the outside world must mean the same for later versions.
    assert idempotency_key("uid", KEY) == "c6b62f02a1fa28df1a441bb44270194e"


def test_a_key_is_shown_to_people():
    assert str(KEY.nth(2)) == "send, id call_1, arguments 01010101, occurrence 2"
    assert str(CallKey("1", "f", "", b"\xab" * 16)) == "f, arguments abababab"


def test_scopes_are_those_of_steps_or_calls():
    assert step_of(step_scope(12)) == 12
    assert step_of(step_scope(0)) == 0
    assert step_of(call_scope(12)) is None
    assert outer_call(call_scope(12)) == 12
    assert outer_call(step_scope(12)) == 0


@pytest.mark.parametrize(
    "scope",
    [
        "",
        "call ",
        "call x",
        "call -1",
        "-1",
        "²",
        "call ²",
        "1.5",
        "call " + "9" * 30,
        "9" * 5000,
        "9" * 30,
        "call call 1",
    ],
)
def test_a_scope_that_is_none_belongs_to_nothing(scope):
    assert step_of(scope) is None
    assert outer_call(scope) == 0
    assert CallIntended("1", f"{UNDO_PREFIX}pay", scope, b"", 1, "park").undoes == 0


def test_a_compensation_says_what_it_undoes():
    assert CallIntended("1", f"{UNDO_PREFIX}pay", "12", b"", 1, "park").undoes == 12
    assert CallIntended("1", "pay", "12", b"", 1, "park").undoes == 0
