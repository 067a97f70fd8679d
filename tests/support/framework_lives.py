"""Lives of frameworks' agents: processes that are killed, and what they ask models.

All these are killed before and after each append. Each has several tools at once, a tool whose
first attempt fails (`retry=`), and a tool that wants other arguments from the model; compared are
all messages, the bodies of all requests, and effects outside. Where it is otherwise:

agents of                       approval                 streams    otherwise
Anthropic, OpenAI (clients)     ours                     yes        OpenAI's server has the messages
MCP sessions                    ours                     has none   no requests, no `retry=`
Pydantic AI                     its own                  yes
OpenAI Agents SDK               ours and its own         yes
Google ADK, Agent Framework     ours and theirs          yes
LangChain (RecordedCalls)       ours and its interrupts  yes
LangGraph (EventLogSaver)       its interrupts           yes        no calls, so no `retry=`
LangGraph (RecordedTools)       ours                     the saver's test  no `retry=`
Claude Agent SDK                ours                     has none   no requests: its CLI makes them
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recovery import (
    CheckpointStore,
    RecoverableAgent,
    Resolution,
    Retry,
    RunResult,
    current_call,
)
from recovery.errors import InDoubtError
from recovery.journal.events import CallIntended
from tests.support import outside
from tests.support.kill_sweep import RUNS, Found, Live, Settle, settle, sweep
from tests.support.lives import RUN, Died, recorded
from tests.support.paths import ROOT

ALL = 10_000  # kills


# -- tools that agents of several frameworks have


AGAIN: Any = {"after_crash": "retry", "retry": Retry(attempts=2, delay_s=0)}


def fails_at_first() -> None:
    """Raise in the first attempt at a call, in whatever process that is."""
    call = current_call()
    assert call is not None
    if call.attempt == 1:
        raise ConnectionError("no line")


async def meets(*tools: str) -> None:
    """Wait until the log has an intent for each of these: calls that are made one after another,
    and not at once, never end."""
    store = CheckpointStore(outside.place() / RUNS)

    def called() -> Counter[str]:
        return Counter(one.tool for one in recorded(store, CallIntended))

    while not Counter(tools) <= called():  # noqa: ASYNC110 - a log has no event
        await asyncio.sleep(0.001)


async def pay(cents: int, to: str) -> str:
    """Pay; each turn has two of them."""
    await meets("pay", "pay")
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


def keep_request(place: Path, body: Any, model: str | tuple[str, ...] = "model") -> None:
    """Write down a request that reached a model. All earlier ones may have answers in the log of
    the run, and this one none. ``model``: how the name of a request ends there."""
    events = CheckpointStore(place / RUNS).run(RUN).events(until="now")
    answered = sum(one.kind == "outcome" and one.tool.endswith(model) for one in events)
    line = json.dumps(body, sort_keys=True)
    with (place / "requests").open("a+") as file:
        file.seek(0)
        others = {*file.read().splitlines()} - {line}
        assert answered <= len(others), f"asked again: {line}"
        file.write(f"{line}\n")


def requests(place: Path) -> list[str]:
    """The bodies of the requests: one that a crash cut short is made again, and is the same."""
    return sorted({*(place / "requests").read_text().splitlines()})


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
