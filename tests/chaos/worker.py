"""One of several processes that finish the runs of a store, whatever is done to them.

`python -m tests.chaos.worker STORE PLACE RUNS STEPS`. PLACE is outside of the store: the bank, and
what each worker notes of its appends and commits. A bank compares fences, and a look at it counts.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import xxhash

from eventlog import LogError, LogLockedError
from recovery import (
    CheckpointStore,
    InDoubtError,
    RecoverableAgent,
    Resolution,
    current_call,
    tool,
)
from recovery.stores.protocol import RunStore

LEASE_S, TIMEOUT_S = 1.5, 1.0
place = Path()


def opened(where: str) -> CheckpointStore:
    """The store at a path or a URL; leases are short."""
    if not where.startswith("postgres"):
        return CheckpointStore(where)
    from recovery.stores.postgres import PostgresStore

    return CheckpointStore(PostgresStore(where, lease_s=LEASE_S))


def note(name: str, *what: Any) -> None:
    """Append a line to a file outside."""
    file = os.open(place / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, (json.dumps([time.time(), os.getpid(), *what]) + "\n").encode())
    os.close(file)


def digest(kind: str, packed: bytes) -> str:
    """What identifies a record."""
    return xxhash.xxh3_64_hexdigest(kind.encode() + packed)


class Noting:
    """A store whose logs note each append before it is made, and each commit after it."""

    def __init__(self, inner: RunStore) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def claim(self, run_id: str, takeover: bool = False) -> Any:
        log: Any = self._inner.claim(run_id, takeover)
        append, commit = log.append, log.commit
        note("appends", run_id, log.epoch, "")

        def noted(kind: str, body: Any, **options: Any) -> Any:
            note("appends", run_id, log.epoch, digest(kind, bytes(body)))
            return append(kind, body, **options)

        def acknowledged() -> None:
            last = log.last_lsn
            commit()
            note("commits", run_id, log.epoch, last)

        log.append, log.commit = noted, acknowledged
        return log


def bank(call: Any, pays: bool) -> bool:
    """Whether the call was paid before. Refuses a fence that is lower than one that it has seen."""
    with (place / f"bank-{call.run_id}").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        seen = [json.loads(line) for line in file]
        if any(call.fence < fence for fence, *_ in seen):
            raise PermissionError(f"fence {call.fence} is old")
        file.write(json.dumps([call.fence, call.idempotency_key if pays else "", os.getpid()]))
        file.write("\n")
        return any(key == call.idempotency_key for _, key, _ in seen)


def find(call: Any) -> Resolution:
    return Resolution.outcome("paid") if bank(call, pays=False) else Resolution.retry()


@tool(reconcile=find, timeout_s=TIMEOUT_S)
def pay(step: int) -> str:
    call = current_call()
    time.sleep(random.uniform(0.05, 0.15))  # so that faults come while runs are executed
    bank(call, pays=True)
    time.sleep(random.uniform(0.05, 0.15))
    return "paid"


def main() -> None:
    """Work on all runs until each has ended."""
    global place
    where, place = sys.argv[1], Path(sys.argv[2])
    left, steps = [f"run-{n}" for n in range(int(sys.argv[3]))], int(sys.argv[4])

    def agent(run: Any) -> Any:
        for step in run.steps():
            run.messages.append(run.call(pay, step))
            if step == steps:
                return list(run.messages)

    store = opened(where)
    noting: Any = Noting(store.backend)
    store.backend = noting
    of = RecoverableAgent(agent, store, checkpoint_every_n=2)
    while left:
        random.shuffle(left)
        for run_id in list(left):
            _work(of, run_id, left)
        time.sleep(0.05)


def _work(of: Any, run_id: str, left: list[str]) -> None:
    try:
        result = of.run_with_recovery_sync("task", run_id)["result"]
    except LogLockedError as exc:
        if not (place / f"stopped-{exc.pid}").exists() or "://" in sys.argv[1]:
            return
        try:  # an operator takes it from a process that is stopped
            result = of.run_with_recovery_sync("task", run_id, takeover=True)["result"]
        except LogError:
            return
    except LogError as exc:  # it was taken from this process, or just removed
        note("lost", run_id, str(exc))
        return
    except InDoubtError as exc:
        note("persons", run_id, str(exc))
        return
    note("results", run_id, result)
    left.remove(run_id)


if __name__ == "__main__":
    main()
