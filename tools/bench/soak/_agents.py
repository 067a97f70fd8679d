"""The process of many agents: ``_agents NAME DIRECTORY AGENTS SEED``. Ends when it is killed."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import shutil
import sys
import threading
import time
from pathlib import Path

from eventlog import EventLog
from recovery import Call, CheckpointStore, RecoverableAgent, Resolution, Run, current_call, tool

from ._vitals import Vitals

NAME, DIRECTORY, AGENTS, SEED = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
STEPS = (60, 300)  # of a run; one agent in ten never ends
THINK_S = (0.5, 1.5)
ANSWER_S = 0.02  # between the effect and what says so: some of the kills come there
CRASH = 0.002  # of all steps
MESSAGES = 40  # are kept
JOURNAL_EVERY_S, JOURNAL_SNAPSHOT = 0.01, 500

vitals = Vitals(DIRECTORY / f"{NAME}.vitals")
store = CheckpointStore(DIRECTORY / "runs")
choose = random.Random(f"{SEED} {os.getpid()}")


class CrashError(Exception):
    """What ends a life of an agent in this process."""


@tool(after_crash="retry")
async def read(number: int) -> str:
    """A kilobyte from somewhere."""
    return f"{number} ".ljust(1000, ".")


def taken_place(call: Call) -> Resolution:
    """What the outside world says of a call that is in doubt."""
    path = DIRECTORY / "effects" / call.run_id
    done = path.exists() and call.idempotency_key in path.read_text().split()
    vitals.count("in doubt")
    return Resolution.outcome("done") if done else Resolution.retry()


@tool(reconcile=taken_place)
async def act(number: int) -> str:
    """A side effect: a line in a file that is not ours, durable by itself."""
    call = current_call()
    assert call is not None
    with (DIRECTORY / "effects" / call.run_id).open("a") as file:
        file.write(f"{call.idempotency_key}\n")
    vitals.count("effects")
    await asyncio.sleep(ANSWER_S)
    return "done"


async def agent(run: Run) -> int:
    """Reads, acts, remembers, thinks; crashes now and then."""
    async for step in run.steps():
        began = time.perf_counter()
        text = await run.call(read, step)
        await run.call(act, step)
        run.messages.append({"role": "tool", "tool_call_id": f"call_{step}", "content": text})
        if len(run.messages) > MESSAGES:
            del run.messages[: MESSAGES // 2]
        run.state["step"] = step
        vitals.took(time.perf_counter() - began)
        vitals.count("steps")
        if choose.random() < CRASH:
            vitals.count("crashes")
            raise CrashError
        if run.task["steps"] and step >= run.task["steps"]:
            return step
        await asyncio.sleep(choose.uniform(*THINK_S))
    raise AssertionError  # the steps have no end


async def work(number: int) -> None:
    """One agent: its newest run to its end, then another one, and so on."""
    mine = sorted(one for one in store.backend.run_ids() if one.startswith(f"{NAME}-{number:03d}-"))
    life = int(mine[-1].rpartition("-")[2]) if mine else 1
    while True:
        run_id = f"{NAME}-{number:03d}-{life:06d}"
        steps = 0 if number % 10 == 0 else random.Random(run_id).randint(*STEPS)
        runner = RecoverableAgent(agent, store, max_recoveries=100)
        result = await runner.run_with_recovery({"steps": steps}, run_id)
        _check(run_id, result["result"])
        vitals.count("runs")
        shutil.rmtree(
            DIRECTORY / "runs" / f"{NAME}-{number:03d}-{life - 1:06d}", ignore_errors=True
        )
        (DIRECTORY / "effects" / f"{NAME}-{number:03d}-{life - 1:06d}").unlink(missing_ok=True)
        life += 1


def _check(run_id: str, steps: int) -> None:
    """That each step of a run that has ended acted exactly once."""
    keys = (DIRECTORY / "effects" / run_id).read_text().split()
    if len(keys) != steps or len(set(keys)) != steps:
        wrong = f"{run_id}: {len(keys)} effects, {len(set(keys))} different, in {steps} steps\n"
        with (DIRECTORY / "wrong").open("a") as file:
            file.write(wrong)
    vitals.count("checked", steps)


def keep_journal() -> None:
    """A log with snapshots, cut off before the last but one."""
    snapshots: list[int] = []
    with EventLog.open(DIRECTORY / "journal" / NAME, segment_size=1 << 20) as log:
        while True:
            lsn = log.append("entry", {"text": "." * 2000})
            if lsn % JOURNAL_SNAPSHOT == 0:
                snapshots.append(log.append_snapshot({"up to": lsn}))
                log.commit()
                if len(snapshots) > 2:
                    log.truncate_before(snapshots.pop(0))
            log.commit_behind()
            time.sleep(JOURNAL_EVERY_S)


async def main() -> None:
    """All agents at once."""
    logging.getLogger("recovery").setLevel(logging.ERROR)  # not of each crash that is meant
    vitals.start()
    threading.Thread(target=keep_journal, daemon=True).start()
    async with asyncio.TaskGroup() as group:
        for number in range(AGENTS):
            group.create_task(work(number))


if __name__ == "__main__":
    asyncio.run(main())
