"""The agents that `recovery worker tests.chaos.agents:agents` executes, whatever is done to it.

PLACE is a directory outside of the store: the bank, and what each worker notes of its appends and
of what it was told is durable. The bank compares fences, and a look at it counts.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import xxhash

from eventlog.remote import owner_processes
from recovery import CheckpointStore, OutcomeUnknown, RecoverableAgent, Resolution, Retry, tool
from recovery.declare.scope import current_call
from recovery.stores.postgres import PostgresStore
from recovery.stores.postgres.connections import _Connection
from recovery.stores.protocol import RunStore

# ANSWER_S is shorter than a partition, and PATIENCE_S shorter than the longest.
LEASE_S, TIMEOUT_S, ANSWER_S, PATIENCE_S = 1.5, 1.0, 2.0, 5.0
PLACE = Path(os.environ.get("CHAOS_PLACE", "."))
WIRE_EVERY = 3  # steps


def opened(where: str) -> CheckpointStore:
    """The store at a path or a URL. Leases, and patience with a server, are short."""
    if "://" not in where:
        return CheckpointStore(where)
    return CheckpointStore(PostgresStore(where, lease_s=LEASE_S, patience_s=PATIENCE_S))


def note(name: str, *what: Any) -> None:
    """Append a line to a file outside."""
    file = os.open(PLACE / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, (json.dumps([time.time(), os.getpid(), *what]) + "\n").encode())
    os.close(file)


def digest(kind: str, packed: bytes) -> str:
    """What identifies a record."""
    return xxhash.xxh3_64_hexdigest(kind.encode() + packed)


def noting(store: RunStore) -> None:
    """Have the logs of this store note each append before it is made, and what is durable then."""
    claim = store.claim

    def claimed(run_id: str, takeover: bool = False) -> Any:
        log: Any = claim(run_id, takeover)
        teller = log.appender if store.is_remote else log
        name = "settle" if store.is_remote else "commit"
        append, tell = log.append, getattr(teller, name)
        note("appends", run_id, log.epoch, "", "")

        def noted(kind: str, body: Any, **options: Any) -> Any:
            note("appends", run_id, log.epoch, digest(kind, bytes(body)), kind)
            return append(kind, body, **options)

        def told(*batch: Any) -> None:
            last = batch[0].next_lsn - 1 if batch else log.last_lsn
            tell(*batch)
            note("commits", run_id, log.epoch, last)

        log.append = noted
        setattr(teller, name, told)
        return log

    store.claim = claimed  # type: ignore[method-assign]


def bank(call: Any, pays: bool) -> bool:
    """Whether the call was paid before. Refuses a fence that is lower than one that it has seen."""
    with (PLACE / f"bank-{call.run_id}").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        seen = [json.loads(line) for line in file]
        if any(call.fence < fence for fence, *_ in seen):
            raise PermissionError(f"fence {call.fence} is old")
        key = call.idempotency_key if pays else ""
        file.write(json.dumps([call.fence, key, call.tool, *call.args]) + "\n")
        return any(key == call.idempotency_key for _, key, *_ in seen)


def find(call: Any) -> Resolution:
    return Resolution.outcome("paid") if bank(call, pays=False) else Resolution.retry()


def pauses() -> Iterator[float]:
    """Seconds for each call, so that faults come while runs are executed."""
    call = current_call()
    assert call is not None
    rng = random.Random(f"{os.environ.get('CHAOS_SEED')} {call.idempotency_key}")
    while True:
        yield rng.uniform(0.05, 0.2)


async def at_the_bank() -> None:
    """Pay, some time after the call began and before it ends."""
    wait = pauses()
    await asyncio.sleep(next(wait))
    bank(current_call(), pays=True)
    await asyncio.sleep(next(wait))


# A process that was stopped finds the time over when it continues: the call is made again if the
# bank does not have it. The time-out ends the async tool, and leaves the other one in its thread.
AGAIN = Retry(attempts=50, delay_s=0.2, factor=1)


@tool(reconcile=find, timeout_s=TIMEOUT_S, retry=AGAIN)
async def pay(step: int) -> str:
    await at_the_bank()
    return "paid"


@tool(reconcile=find, timeout_s=TIMEOUT_S, retry=AGAIN)
def cash(step: int) -> str:
    wait = pauses()
    time.sleep(next(wait))
    bank(current_call(), pays=True)
    time.sleep(next(wait))
    return "paid"


@tool(after_crash="report", timeout_s=TIMEOUT_S)
async def wire(step: int) -> str:
    """Nobody can ask whether it was made: then the run records that it is in doubt."""
    await at_the_bank()
    return "wired"


def pays_by(step: int) -> Any:
    """The tool of a step."""
    return pay if step % 2 else cash


async def teller(run: Any) -> Any:
    async for step in run.steps():
        made = pays_by(step)
        run.messages.append([made.__name__, step, await run.call(made, step)])
        if step % WIRE_EVERY == 0:
            run.messages.append(["wire", step, known(await run.call(wire, step))])
        if step == run.task:
            return list(run.messages)


def clerk(run: Any) -> Any:
    """As ``teller``, in plain code."""
    for step in run.steps():
        made = pays_by(step)
        run.messages.append([made.__name__, step, run.call(made, step)])
        if step % WIRE_EVERY == 0:
            run.messages.append(["wire", step, known(run.call(wire, step))])
        if step == run.task:
            return list(run.messages)


def known(made: Any) -> Any:
    return "in doubt" if isinstance(made, OutcomeUnknown) else made


AGENTS = (teller, clerk)


def _agents() -> dict[str, RecoverableAgent[Any]]:
    store = opened(os.environ["CHAOS_STORE"])
    noting(store.backend)
    made = (RecoverableAgent(one, store, checkpoint_every_n=2) for one in AGENTS)
    return dict(zip((one.__name__ for one in AGENTS), made, strict=True))


if "CHAOS_STORE" in os.environ:
    _Connection.answer_s = ANSWER_S
    if "CHAOS_MACHINE" in os.environ:  # as if it ran on another one
        owner_processes.machine = lambda: os.environ["CHAOS_MACHINE"]
    agents = _agents()
