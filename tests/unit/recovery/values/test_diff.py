"""What a DivergenceError says: both sides, and where they differ."""

from __future__ import annotations

import asyncio
import math
import re
from typing import Any

import pytest

from recovery import CheckpointStore, RecoverableAgent, Run, tool
from recovery.control.resolve import accept
from recovery.errors import DivergenceError
from recovery.values.diff import SHOWN_MAX, SIZE_MAX, differences


@pytest.mark.parametrize(
    ("recorded", "found", "lines"),
    [
        (1, 1, []),
        ({"a": math.nan}, {"a": math.nan}, []),
        (1, 2, ["value: 1 -> 2"]),
        (1, True, ["value: 1 -> True"]),
        ({"a": 1}, {"b": 1}, ["a: 1 -> (absent)", "b: (absent) -> 1"]),
        ({"args": [{"to": "x", "n": 10}]}, {"args": [{"to": "x", "n": 9}]}, ["args[0].n: 10 -> 9"]),
        ({"args": ["a"]}, {"args": ["a", "b"]}, ["args[1]: (absent) -> 'b'"]),
        ({1: "x"}, {1: "y"}, ["[1]: 'x' -> 'y'"]),
        ({"a": [1]}, {"a": {"b": 1}}, ["a: [1] -> {'b': 1}"]),
        ({1: 2, 3: 4}, {3: 4, 1: 2}, ["value: {1: 2, 3: 4} -> {3: 4, 1: 2}"]),
        ({1: 2}, {True: 2}, ["value: {1: 2} -> {True: 2}"]),
    ],
)
def test_the_path_to_each_difference_is_named(recorded: Any, found: Any, lines: list[str]) -> None:
    assert list(differences(recorded, found)) == lines


def test_values_that_do_not_compare_with_a_yes_or_no() -> None:
    numpy = pytest.importorskip("numpy")
    a, b = ({"x": numpy.arange(3) + n} for n in (0, 1))
    assert differences(a, {"x": numpy.arange(3)}) == ()
    assert differences(a, b) == ("x: array([0, 1, 2]) -> array([1, 2, 3])",)
    assert differences(a, {}) == ("x: array([0, 1, 2]) -> (absent)",)


def test_values_whose_own_methods_raise() -> None:
    class Odd:
        def __eq__(self, other: object) -> bool:
            raise OSError

        def __repr__(self) -> str:
            raise OSError

        __hash__ = None  # type: ignore[assignment]

    odd = Odd()
    assert differences([odd], [odd]) == ()
    (line,) = differences([odd], [1])
    assert line.startswith("[0]: <tests.unit.") and line.endswith(" -> 1")


def test_a_long_text_is_shown_where_it_differs() -> None:
    (line,) = differences("x" * 900 + "old" + "y" * 900, "x" * 900 + "new" + "y" * 900)
    assert "xold" in line and "xnew" in line
    assert len(line) < 3 * SIZE_MAX


def test_many_differences_are_cut_short() -> None:
    lines = differences(list(range(100)), list(range(1, 101)))
    assert len(lines) == SHOWN_MAX + 1
    assert lines[-1] == "and more"


def test_deep_values_are_compared_all_the_same() -> None:
    def nested(depth: int, x: Any) -> Any:
        return x if depth == 0 else [nested(depth - 1, x)]

    (line,) = differences(nested(900, 1), nested(900, 2))
    assert line.startswith("[0][0][0]")


@tool
def pay(amount: int, to: str, note: str = "") -> str:
    return f"paid {amount} to {to}"


@tool
def post(what: str) -> None:
    return None


def diverging(first: Any, second: Any) -> DivergenceError:
    """The error of an agent that makes one call, dies, and then makes another one."""
    calls = [first, second]

    async def agent(run: Run) -> None:
        function, args, kwargs = calls.pop(0)
        await run.call(function, *args, **kwargs)
        raise RuntimeError("dies")

    of = RecoverableAgent(agent, CheckpointStore(), max_recoveries=1)
    with pytest.raises(DivergenceError) as caught:
        asyncio.run(of.run_with_recovery("t", "run"))
    return caught.value


@pytest.mark.parametrize(
    ("first", "second", "lines"),
    [
        ((pay, (10, "alice"), {}), (pay, (9999, "alice"), {}), ["args[0]: 10 -> 9999"]),
        (
            (pay, (10, "alice"), {}),
            (pay, (10,), {"to": "mallory", "note": "x"}),
            ["args[1]: 'alice' -> 'mallory'", "args[2]: (absent) -> 'x'"],
        ),
        (
            (post, ("a",), {}),
            (pay, (1, "a"), {}),
            ["tool: 'post' -> 'pay'", "args[0]: 'a' -> 1", "args[1]: (absent) -> 'a'"],
        ),
        (
            (post, ("a",), {"call_id": "c1"}),
            (post, ("a",), {"call_id": "c2"}),
            ["call_id: 'c1' -> 'c2'"],
        ),
        (
            (post, ("a",), {"call_id": "c1"}),
            (post, ("b",), {"call_id": "c1"}),
            ["args[0]: 'a' -> 'b'"],
        ),
    ],
)
def test_an_error_says_which_argument_differs(first: Any, second: Any, lines: list[str]) -> None:
    error = diverging(first, second)
    assert list(error.differences) == lines
    for line in lines:
        assert f"\n  different: {line}\n" in str(error)
    assert f"recorded (LSN {error.lsn}): {first[0].__name__}" in str(error)
    assert f"{__file__}:" in error.found
    assert error.step == 0


LARGE = "x" * 9000


@pytest.mark.parametrize(
    ("first", "second", "line"),
    [
        (
            LARGE,
            "y" * 9000,
            r"arguments: '9,006 bytes, digest \w{8}' -> '9,006 bytes, digest \w{8}'",
        ),
        (LARGE, "y", r"arguments: '9,006 bytes, digest \w{8}' -> '5 bytes, digest \w{8}'"),
        ("y", LARGE, r"args\[0\]: 'y' -> 'x+\.\.\."),
        (LARGE, LARGE, "call_id: 'c1' -> 'c2'"),
    ],
)
def test_arguments_that_were_recorded_by_digest_are_told_apart_by_it(
    first: str, second: str, line: str
) -> None:
    ids = ("c1", "c2") if first == second else ("", "")
    error = diverging((post, (first,), {"call_id": ids[0]}), (post, (second,), {"call_id": ids[1]}))
    (found,) = error.differences
    assert re.fullmatch(line, found)
    assert len({*re.findall(r"digest (\w+)", found)}) == found.count("digest")


@pytest.mark.parametrize(
    ("call_id", "shown", "line"),
    [("", "pay", "args[0]: 10 -> 11"), ("c1", "post", "tool: 'post' -> 'pay'")],
)
def test_of_several_recorded_calls_the_one_most_like_the_new_one_is_shown(
    call_id: str, shown: str, line: str
) -> None:
    lives: list[list[Any]] = [
        [(post, ("first",), call_id), (pay, (10, "alice"), "")],
        [(pay, (11, "alice"), call_id)],
    ]

    async def agent(run: Run) -> None:
        for function, args, known_as in lives.pop(0):
            await run.call(function, *args, call_id=known_as)
        raise RuntimeError("dies")

    of = RecoverableAgent(agent, CheckpointStore(), max_recoveries=1)
    with pytest.raises(DivergenceError) as caught:
        asyncio.run(of.run_with_recovery("t", "run"))
    assert caught.value.differences[0] == line
    assert caught.value.recorded.startswith(shown)


def test_a_changed_message_is_shown_with_its_path() -> None:
    texts = ["old", "new"]

    async def agent(run: Run) -> None:
        run.messages.append({"role": "user", "content": [texts.pop(0)]})
        await run.call(post, "x")
        raise RuntimeError("dies")

    of = RecoverableAgent(agent, CheckpointStore(), max_recoveries=1)
    with pytest.raises(DivergenceError) as caught:
        asyncio.run(of.run_with_recovery("t", "run"))
    assert caught.value.differences == ("messages[0].content[0]: 'old' -> 'new'",)


def test_a_changed_message_can_be_accepted() -> None:
    texts = ["old", "new", "new", "new"]

    async def agent(run: Run) -> Any:
        run.messages.append({"role": "user", "content": texts.pop(0)})
        await run.call(post, str(len(texts)))
        if len(texts) > 1:
            raise RuntimeError("dies")
        return run.messages[0]["content"]

    store = CheckpointStore()
    of = RecoverableAgent(agent, store, max_recoveries=1)
    with pytest.raises(DivergenceError):
        asyncio.run(of.run_with_recovery("t", "run"))
    accept(store, "run", why="the prompt was improved")
    assert asyncio.run(of.run_with_recovery("t", "run"))["result"] == "new"
