"""What is recorded of an exception that is not like most."""

from __future__ import annotations

from typing import Any

import pytest

from eventlog import RefusedValueError
from recovery import CheckpointStore
from recovery.errors import RunFailedError
from recovery.journal.failure import ERROR_SIZE_MAX, TEXT_SIZE_MAX, clean, failure
from recovery.journal.redaction import Secrets
from recovery.values.pack import unpack
from tests.support.lives import run_sync


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


def parts(exc: Exception, secrets: Secrets | None = None) -> dict[str, Any]:
    """What is recorded of it, unpacked."""
    found = failure(1, exc, secrets or Secrets(""))
    names = ("args", "attributes", "group", "cause")
    held = {name: value and unpack(value) for name in names for value in [getattr(found, name)]}
    return held | {"bases": found.bases, "left_out": found.left_out, "message": found.message}


@pytest.mark.parametrize(
    ("exc", "args"),
    [
        (OSError(2, "gone"), [2, "gone"]),
        (OSError(2, "gone", "/a"), [2, "gone", "/a"]),
        (OSError(2, "gone", "/a", None, "/b"), [2, "gone", "/a", None, "/b"]),
        (ValueError("x" * (ERROR_SIZE_MAX - 4)), ["x" * (ERROR_SIZE_MAX - 4)]),
        (ValueError("x" * (ERROR_SIZE_MAX - 3)), None),
        (ValueError(object()), None),
        (RefusedValueError("state.x", "a lock"), ["state.x", "a lock"]),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_the_arguments_are_those_that_make_it_again(exc: Exception, args: Any) -> None:
    assert parts(exc)["args"] == args


def test_of_a_long_text_the_beginning_and_the_end_are_recorded() -> None:
    for size, recorded in ((TEXT_SIZE_MAX, TEXT_SIZE_MAX), (TEXT_SIZE_MAX + 1, TEXT_SIZE_MAX - 5)):
        found = failure(1, ValueError("a" * (size - 21) + "the end\ud800"))
        assert found.message == "a" * (size - 21) + "the end?"
        assert (
            found.traceback.startswith("ValueError: aaa") and found.traceback[-9:] == "the end?\n"
        )
        assert len(found.traceback) == recorded
        assert found.traceback.count(" ... ") == (recorded < size)
    assert len(clean("x" * 2 * TEXT_SIZE_MAX)) == TEXT_SIZE_MAX


def test_what_is_in_an_exception_is_recorded_up_to_bounds() -> None:
    for size, there in ((64, True), (65, False)):
        held = parts(ExceptionGroup("all", [ValueError(n) for n in range(size)]))
        assert held["args"] == ["all"]
        assert [one["args"] for one in held["group"] or ()] == [[n] for n in range(size) if there]
    large = ["x" * (ERROR_SIZE_MAX // 2)] * 2
    assert parts(ExceptionGroup("all", [ValueError(one) for one in large]))["group"] is None
    nested: Exception = ValueError(0)
    for depth in range(6):
        nested = ExceptionGroup(f"{depth}", [nested])
    held = parts(nested)
    for _ in range(4):
        (held,) = held["group"]
    assert "group" not in held and held["args"] == ["1"]
    chain = exc = ValueError(0)
    for depth in range(1, 6):
        exc.__cause__ = exc = ValueError(depth)
    held = parts(chain)
    for depth in range(1, 5):
        ((held),) = held["cause"]
        assert held["args"] == [depth]
    assert "cause" not in held and held["left_out"] == [".__cause__ (ValueError)"]


def test_attributes_are_recorded_while_there_is_room() -> None:
    exc: Any = UnicodeError("x")
    exc.first = exc.second = "x" * (ERROR_SIZE_MAX // 2)
    exc.third, exc.fourth = 3, object()
    held = parts(exc)
    assert {*held["attributes"]} == {"first", "third"} and held["bases"] == ["builtins.ValueError"]
    assert held["left_out"] == [".second (str)", ".fourth (object)"]
    vars(exc).update((f"a{n}", object()) for n in range(30))
    assert len(parts(exc)["left_out"]) == 20
    assert parts(ImportError("no", name="m", path="/p"))["attributes"] == {
        "name": "m",
        "path": "/p",
    }
    assert parts(NameError("no"))["attributes"] == {"name": None}
    assert [parts(ValueError("no"))[name] for name in ("attributes", "bases")] == [None, None]


def test_a_text_that_quotes_arguments_is_made_of_those_without_secrets() -> None:
    secrets = Secrets("salt")
    secrets.add_personal("hunter\n2")
    assert parts(KeyError("hunter\n2"), secrets)["message"] == "'[redacted]'"
    exc = OSError(2, "gone")
    exc.strerror = "gone for good"
    assert parts(exc, secrets)["message"] == "[Errno 2] gone for good"


@pytest.mark.parametrize("exceptions", [5, ["text"], [ValueError("inside")]])
def test_an_exception_that_has_exceptions_and_is_no_group_is_one_like_any(exceptions: Any) -> None:
    class ManyError(Exception): ...

    def fails(run: Any = None) -> None:
        exc = ManyError("of many")
        exc.exceptions = exceptions  # type: ignore[attr-defined]
        raise exc

    with pytest.raises(RunFailedError, match="of many"):
        run_sync(lambda run: run.call(fails), CheckpointStore())
    with pytest.raises(ManyError):
        run_sync(fails, CheckpointStore(), max_recoveries=0)
