"""Which runs have something ready in an event loop: as if all of it were looked at each time."""

from __future__ import annotations

import asyncio
import gc
import random
import weakref
from collections import deque
from contextvars import Context
from typing import Any, cast
from unittest import mock

import pytest

from recovery.declare.scope import NOWHERE, Scope, current_scope
from recovery.engine.per_event_loop import of_loop
from recovery.engine.ready_runs import LOOKED_AT_MAX, ReadyRuns


class Run:
    spans = None


class Loop:
    """An event loop that does nothing by itself."""

    def __init__(self) -> None:
        self._ready: deque[asyncio.Handle] = deque()

    def get_debug(self) -> bool:
        return False

    def call_soon(self, callback: Any, context: Context) -> asyncio.Handle:
        handle = asyncio.Handle(callback, (), cast(Any, self), context)
        self._ready.append(handle)
        return handle


def context_in(scope: Scope | None) -> Context:
    context = Context()
    context.run(current_scope.set, scope)
    return context


def has_any(loop: Loop, run: object, own: set[str]) -> bool:
    scopes = [
        one._context.get(current_scope)  # type: ignore[attr-defined]
        for one in loop._ready
        if getattr(one._callback, "__name__", "") in own  # type: ignore[attr-defined]
    ]
    return any(scope is None or scope.run is run for scope in scopes)


def callback() -> None: ...


@pytest.mark.parametrize("most", [8, LOOKED_AT_MAX + 5, 300])
def test_what_is_ready_is_known_as_if_all_were_looked_at(
    most: int, request: pytest.FixtureRequest
) -> None:
    seed = random.SystemRandom().getrandbits(32)
    print("seed", seed)
    chance = random.Random(seed)
    loop = Loop()
    with mock.patch("asyncio.get_running_loop", return_value=loop):
        ready = ReadyRuns()
    runs = [Run() for _ in range(6)]
    contexts = [context_in(Scope(cast(Any, run), "")) for run in runs]
    rare = [context_in(None), Context(), context_in(NOWHERE)]
    # A loop adds the same callback again when a socket is readable once more.
    again = [asyncio.Handle(callback, (), cast(Any, loop), one) for one in (*contexts, *rare)]
    found = [0, 0]
    for _ in range(2000):
        for _ in range(chance.randrange(most) if len(loop._ready) < most else 0):
            if chance.random() < 0.1:
                loop._ready.append(chance.choice(again[: None if chance.random() < 0.05 else 6]))
            else:
                loop.call_soon(callback, chance.choice(contexts[: chance.randrange(1, 7)]))
        for _ in range(chance.choice([0, 1, 1, most // 2, most * 2])):
            if loop._ready:
                loop._ready.popleft()
        for run in chance.sample(runs, chance.randrange(3)):
            expected = has_any(loop, run, {"callback"})
            assert ready.may_have(run, cast(Any, loop)) == expected
            found[expected] += 1
    assert min(found) > 50


def test_a_loop_is_not_kept_alive_and_its_own_callbacks_are_of_no_run() -> None:
    run = Run()

    async def main() -> Any:
        loop: Any = asyncio.get_running_loop()
        ready = of_loop(ReadyRuns)
        mine = context_in(Scope(cast(Any, run), ""))
        for _ in range(2 * LOOKED_AT_MAX):
            loop.call_soon(callback, context=mine)
        assert ready.may_have(run, loop) and not ready.may_have(Run(), loop)
        loop.call_soon_threadsafe(callback, context=mine)
        await asyncio.sleep(0)
        # The loop was woken, as by a thread: what it does for that is of no run.
        assert any("_read_from_self" in repr(one) for one in loop._ready)
        assert not ready.may_have(Run(), loop)
        return weakref.ref(loop)

    gone = asyncio.run(main())
    gc.collect()
    assert gone() is None
