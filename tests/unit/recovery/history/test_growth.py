"""A recovery does the same work however long the run has been going."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from eventlog.testing import SimulatedDisk
from recovery import tool
from recovery.history import load, restore_checkpoint
from recovery.journal import encoding
from tests.support.lives import Died, after_death, disk_store, run

EVERY = 4  # steps between checkpoints


@tool(after_crash="retry")
async def fetch(n: int) -> str:
    return f"{n:300}"


def work_of_a_recovery(steps: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a recovery of a run of so many steps does, until the first new call."""
    done: dict[str, Any] = {"read": [], "restored": 0}

    async def agent(run: Any) -> None:
        async for step in run.steps():
            run.state["step"] = f"{step:100}"
            run.now()
            run.messages.append(await run.call(fetch, step))
            del run.messages[:-3]
            if step == steps:
                raise Died

    store = disk_store(SimulatedDisk())
    with pytest.raises(Died):
        run(agent, store, checkpoint_every_n=EVERY)
    dead = after_death(store)
    decode, body = encoding.decode, restore_checkpoint._body

    def counted(record: Any) -> Any:
        done["read"].append(record.kind)
        return decode(record)

    def restored(record: Any) -> Any:
        done["restored"] += 1
        return body(record)

    with monkeypatch.context() as patched:
        patched.setattr(load, "decode", counted)
        patched.setattr(restore_checkpoint, "_body", restored)
        with pytest.raises(Died):
            run(agent, dead, checkpoint_every_n=EVERY)
    return done


def test_as_much_is_decoded_after_many_steps_as_after_few(monkeypatch: pytest.MonkeyPatch) -> None:
    # A checkpoint has as many bases as its number has bits: 4 and 64 have one each.
    short, long = (work_of_a_recovery(EVERY * n + 2, monkeypatch) for n in (4, 64))
    assert short == long
    kinds = {kind: len([*group]) for kind, group in itertools.groupby(sorted(short["read"]))}
    # A step: it begins, its time, a call, the outcome, two changes of the messages.
    assert sum(kinds.values()) <= 6 * (EVERY + 2), kinds
    assert short["restored"] <= 4
