"""Over any crash, live spans are told once, and an export of the log has all that died untold."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

from recovery import CheckpointStore, RecoverableAgent, Retry, Usage, tool
from tests.support import outside
from tests.support.framework_lives import kills
from tests.support.kill_sweep import RUNS, sweep
from tests.support.told_spans import by_id, exported, told_live


@tool(after_crash="retry", usage=lambda reply: Usage(len(reply["text"]), 3))
async def ask(question: str, *, model: str) -> dict[str, str]:
    await asyncio.sleep(0)
    return {"model": model, "text": question.upper()}


@tool
async def send(what: str) -> str:
    """Its nested calls have effects, too."""
    await note(f"before {what}")
    return outside.did(what, f"sent {what}")


@tool
async def note(what: str) -> str:
    return outside.did(what, what)


@tool(after_crash="retry", retry=Retry(attempts=2, delay_s=0))
def flaky(what: str) -> str:
    if outside.counted()[f"tried {what}"] % 2 == 0:
        outside.did(f"tried {what}", what, fails=True)
        raise ConnectionError(what)
    return what


async def helper(run: Any) -> str:
    return str(await run.call(note, run.task))


async def letters(run: Any) -> list[str]:
    async for step in run.steps():
        reply = await run.call(ask, f"q{step}", model="m-1")
        await asyncio.gather(run.call(send, f"a{step}"), run.call(note, f"b{step}"))
        run.messages.append(reply["text"])
        if step == 3:
            break
    await run.child(helper, "c")
    return list(run.messages)


def live(place: Path) -> Any:
    store = CheckpointStore(place / RUNS)
    with told_live(file=place / "spans"):
        agent = RecoverableAgent(letters, store, checkpoint_every_n=2, max_recoveries=0)
        result = asyncio.run(agent.run_with_recovery("t", "run"))["result"]
    spans = [json.loads(line) for line in (place / "spans").read_text().splitlines()]
    whole = by_id([one for run in sorted((place / RUNS).glob("run*")) for one in exported(run)])
    twice = {one: count for one, count in Counter(s["id"] for s in spans).items() if count > 1}
    other = [span["name"] for span in spans if whole.get(span["id"]) != span]
    untold = [one for one in whole.values() if one["id"] not in {span["id"] for span in spans}]
    (place / "untold").write_text(json.dumps(untold))
    return {"result": result, "told twice": twice, "told otherwise": other}


@kills(5)
def test_live_spans_over_any_crash(points: int, tmp_path: Path, rng: random.Random) -> None:
    found = sweep(live, tmp_path, rng, points=points)
    assert found.bad == []
    assert json.loads((tmp_path / "whole" / "untold").read_text()) == []
    told = untold = 0
    for place in tmp_path.iterdir():
        told += len((place / "spans").read_text().splitlines())
        untold += len(json.loads((place / "untold").read_text()))
    assert told > 2 * untold, "a death takes those that wait for their thread, and no others"
