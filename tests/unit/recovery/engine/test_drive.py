"""Effects are performed for a generator in the same way by plain and by async code."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import pytest

from recovery.engine.drive import drive, drive_async


async def _drive_async(steps: Any, perform: Callable[[Any], Any], guard: Any) -> Any:
    async def performed(effect: Any) -> Any:
        return perform(effect)

    return await drive_async(steps, performed, guard)


@pytest.mark.parametrize(
    "driven", [drive, lambda *given: asyncio.run(_drive_async(*given))], ids=["plain", "async"]
)
def test_answers_are_sent_and_errors_thrown_under_the_guard(driven: Callable[..., Any]) -> None:
    inside, performed = [False], []

    @contextmanager
    def guard() -> Generator[None]:
        inside[0] = True
        yield
        inside[0] = False

    class Guard:
        def __enter__(self) -> None:
            self.held = guard()
            self.held.__enter__()

        def __exit__(self, *raised: object) -> None:
            self.held.__exit__(None, None, None)

    def perform(effect: Any) -> str:
        performed.append((effect, inside[0]))
        if isinstance(effect, BaseException):
            raise effect
        return f"did {effect}"

    def steps() -> Generator[Any, Any, Any]:
        got: list[Any] = []
        for effect in ("one", KeyError("two"), "three", KeyboardInterrupt("four")):
            try:
                got.append((yield effect))
            except BaseException as exc:
                got.append(exc)
            assert inside[0]
        return got

    one, two, three, four = driven(steps(), perform, Guard())
    assert (one, three) == ("did one", "did three")
    assert performed == [("one", False), (two, False), ("three", False), (four, False)]
    assert type(two) is KeyError
    assert type(four) is KeyboardInterrupt
