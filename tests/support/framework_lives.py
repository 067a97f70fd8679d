"""Lives of frameworks' agents: processes that are killed, and what they ask models."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recovery import CheckpointStore, RecoverableAgent, Resolution, RunResult
from recovery.errors import InDoubtError
from tests.support import outside
from tests.support.kill_sweep import RUNS, Found, Live, Settle, settle, sweep
from tests.support.lives import RUN, Died
from tests.support.paths import ROOT

ALL = 10_000  # kills


# -- tools that agents of several frameworks have


async def pay(cents: int, to: str) -> str:
    """Pay."""
    return outside.did(f"pay {cents} {to}", f"paid {cents}")


async def tip(cents: int) -> str:
    """Tip; a person has to approve it by the policy of the tool."""
    return outside.did(f"tip {cents}", f"tipped {cents}")


async def look() -> str:
    """Look it up."""
    return outside.did("look", "seen")


# -- their lives


def kills(few: int) -> pytest.MarkDecorator:
    """The parameter ``points`` of a test: few with every test run, all with `make crash`."""
    every = pytest.param(ALL, id="all", marks=pytest.mark.crash)
    return pytest.mark.parametrize("points", [pytest.param(few, id="few"), every])


def survives(
    live: Live,
    place: Path,
    rng: random.Random,
    points: int,
    *,
    appends: int,
    settle: Settle = settle,
) -> Found:
    """Assert that the agent ends as if nobody had killed it. ``appends``: how many it makes at
    least, in all the lives of the run that is not killed."""
    found = sweep(live, place, rng, points=points, settle=settle)
    assert found.bad == []
    assert found.appends >= appends
    assert found.points == min(points, 2 * found.appends)
    assert found.doubted or points < ALL
    return found


def ended(place: Path, agent_fn: Callable[[Any], Any], task: str = "Sell!") -> RunResult:
    """The end of the run of an agent function, sync or async, in this life."""
    agent: RecoverableAgent[Any] = RecoverableAgent(
        agent_fn, CheckpointStore(place / RUNS), park_after_s=0, check_locals=False
    )
    return agent.run_with_recovery_sync(task, RUN)


def recorded_answers(place: Path, name: str = "model") -> list[Any]:
    """What models have answered, as the log has it now."""
    return [
        event.value
        for event in CheckpointStore(place / RUNS).run(RUN).events(until="now")
        if event.kind == "outcome" and event.tool == name
    ]


def keep_request(place: Path, who: str, turn: int, body: Any) -> None:
    """Write down a request that reached a model."""
    with (place / "requests").open("a") as file:
        file.write(json.dumps([who, turn, body]) + "\n")


def requests(place: Path) -> dict[str, Any]:
    """The bodies of the requests: one that a crash cut short is made again, and is the same."""
    bodies: dict[str, Any] = {}
    for line in (place / "requests").read_text().splitlines():
        who, turn, body = json.loads(line)
        assert bodies.setdefault(f"{who} {turn}", body) == body, "one request in two forms"
    return bodies


def die_in_the_program_of(page: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the first program of a page as module ``shop``, in ``place``. Its process dies in the
    tool ``pay``; then the call is in doubt, and is resolved: it paid."""
    program = (ROOT / page).read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    (place / "shop.py").write_text(program)
    monkeypatch.chdir(place)
    dies = program.replace('    return f"paid', '    raise Died\n    return f"paid')
    names: dict[str, Any] = {"__name__": "shop", "Died": Died}
    exec(dies, names)  # noqa: S102 - our own page
    for error in (Died, InDoubtError):
        with pytest.raises(error):
            asyncio.run(names["shop"].run_with_recovery("Pay 500 to ann.", "order-42"))
    run = CheckpointStore("runs").run("order-42")
    (call,) = run.status().in_doubt
    assert call.tool == "pay"
    run.resolve(call, Resolution.outcome("paid"))
