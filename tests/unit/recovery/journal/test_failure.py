"""What is recorded of an exception that is not like most."""

from __future__ import annotations

from recovery.journal.failure import failure
from recovery.values.pack import unpack


class MuteError(Exception):
    def __str__(self) -> str:
        raise ValueError


class SlottedError(Exception):
    __slots__ = ("code", "never_set")
    code: int


def test_the_message_is_that_of_the_exception_as_it_is_now():
    exc = SyntaxError("bad")
    exc.msg = "worse"
    assert failure(1, exc).message == "worse"


def test_an_exception_that_cannot_be_text_has_a_message_that_says_so():
    assert failure(1, MuteError("x")).message == "<no message: MuteError.__str__ raised ValueError>"


def test_a_slot_that_was_never_set_is_no_attribute():
    exc = SlottedError()
    exc.code = 3
    found = failure(1, exc)
    assert found.attributes is not None and unpack(found.attributes) == {"code": 3}
    assert found.left_out is None
