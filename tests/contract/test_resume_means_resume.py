"""The six properties of the contract "Resume Means Resume" (arXiv:2608.03836), as outcomes.

An agent makes three payments. The second one waits for a word of a person. Each payment is counted
outside of the run, in a file; a property is judged by what was paid, and by what the run returned.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from eventlog import LogLockedError, RefusedValueError
from recovery import (
    CheckpointStore,
    InDoubtError,
    RecoverableAgent,
    RecoveryError,
    tool,
)
from recovery.errors import WaitingError
from tests.support import outside
from tests.support.kill_sweep import RUNS, life, settle, sweep
from tests.support.lives import Died, after_death, disk_store
from tests.support.scale import scaled

RUN, WORD = "run", "word"
PROCESSES = 6
PAYMENTS = ["pay 1", "pay 2 yes", "pay 3"]

dies_in: set[str] = set()  # payments after whose effect the process dies
killed_in: set[str] = set()  # the same, by SIGKILL
dies_before: set[int] = set()  # steps before which it dies
spoils: set[int] = set()  # steps that put into the state what nobody can restore


@tool
def pay(what: str) -> str:
    receipt = outside.did(f"pay {what}", f"receipt {what}")
    if what in killed_in:
        os.kill(os.getpid(), signal.SIGKILL)
    if what in dies_in:
        raise Died
    return receipt


@tool
async def pay_slowly(what: str) -> str:
    await asyncio.sleep(random.uniform(0, 0.005))
    return outside.did(f"pay {what}", f"receipt {what}")


def begins(step: int) -> None:
    if step in dies_before:
        raise Died


def ends(run: Any, step: int, what: str, receipt: str) -> None:
    run.messages.append(receipt)
    run.state["paid"] = object() if step in spoils else [*run.state.get("paid", []), what]


async def pays(run: Any) -> Any:
    lot = run.random()
    async for step in run.steps():
        begins(step)
        what = f"2 {await run.wait_for(WORD)}" if step == 2 else f"{step}"
        ends(run, step, what, await run.call(pay, what))
        if step == 3:
            return [run.state["paid"], list(run.messages), lot]


def pays_plain(run: Any) -> Any:
    lot = run.random()
    for step in run.steps():
        begins(step)
        what = f"2 {run.wait_for(WORD)}" if step == 2 else f"{step}"
        ends(run, step, what, run.call(pay, what))
        if step == 3:
            return [run.state["paid"], list(run.messages), lot]


async def pays_four_at_once(run: Any) -> Any:
    lot = run.random()
    async for step in run.steps():
        calls = (run.call(pay_slowly, f"{step}{who}") for who in "abcd")
        run.messages += await asyncio.gather(*calls)
        if step == 2:
            return [list(run.messages), lot]


@pytest.fixture(params=[pays, pays_plain], ids=["async", "plain"])
def agent(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    outside.moved_to(tmp_path)
    heal()
    yield request.param
    heal()


def heal() -> None:
    """No process dies any more, and no state is spoiled."""
    for what in (dies_in, killed_in, dies_before, spoils):
        what.clear()


def opened(place: Path) -> CheckpointStore:
    """The store of the runs here: a directory, unless a file names a server."""
    named = place / "url"
    return CheckpointStore(named.read_text() if named.exists() else place / RUNS)


@pytest.fixture(params=["file", "postgresql"])
def lasting(request: pytest.FixtureRequest, tmp_path: Path) -> CheckpointStore:
    """A store that other processes open, too."""
    if request.param == "postgresql":
        (tmp_path / "url").write_text(request.getfixturevalue("postgres").url())
    return opened(tmp_path)


@pytest.fixture(params=["memory", "file", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> CheckpointStore:
    if request.param == "memory":
        return CheckpointStore(None)
    if request.param == "postgresql":
        return CheckpointStore(request.getfixturevalue("postgres").url())
    return opened(tmp_path)


def run(agent: Any, store: CheckpointStore, run_id: str = RUN) -> Any:
    made = RecoverableAgent(agent, store, 1, max_recoveries=0, park_after_s=0)
    return made.run_with_recovery_sync("task", run_id)["result"]


def dies(agent: Any, store: CheckpointStore) -> None:
    with pytest.raises(Died):
        run(agent, store)
    heal()


def until_it_waits(agent: Any, store: CheckpointStore) -> None:
    """The run has made its first payment, and the word is there that it waits for."""
    with pytest.raises(WaitingError):
        run(agent, store)
    store.run(RUN).signal(WORD, "yes")


def paid() -> list[str]:
    return [what for _, what, *_ in outside.effects()]


# -- prefix continuation: what is done is not entered again


def test_a_resumed_run_makes_only_the_payments_that_are_left(
    agent: Any, store: CheckpointStore
) -> None:
    dies_before.add(2)
    dies(agent, store)
    assert paid() == PAYMENTS[:1]
    until_it_waits(agent, store)
    assert paid() == PAYMENTS[:1]
    dies_before.add(3)
    dies(agent, store)
    assert paid() == PAYMENTS[:2]
    found, receipts, _ = run(agent, store)
    assert paid() == PAYMENTS
    assert found == ["1", "2 yes", "3"]
    assert receipts == [what.replace("pay", "receipt") for what in PAYMENTS]


# -- effect exactly-once: neither lost nor made twice, wherever the process dies


def test_a_payment_whose_process_died_in_it_is_not_made_again(
    agent: Any, store: CheckpointStore
) -> None:
    until_it_waits(agent, store)
    dies_in.add("3")
    dies(agent, store)
    for _ in range(2):
        with pytest.raises(InDoubtError) as stopped:
            run(agent, store)
    (call,) = stopped.value.calls
    store.run(RUN).resolve(call, outside.truth(call))
    assert run(agent, store)[0] == ["1", "2 yes", "3"]
    assert paid() == PAYMENTS


def live(agent: Any, place: Path) -> Any:
    return run(agent, opened(place))[:-1]


def says_yes(place: Path, how: str) -> None:
    if how == "WaitingError":
        CheckpointStore(place / RUNS).run(RUN).signal(WORD, "yes", key="once")
    else:
        settle(place, how)


def test_a_process_killed_at_any_record_pays_once(
    agent: Any, tmp_path: Path, rng: random.Random
) -> None:
    points = scaled(10, 10_000)
    found = sweep(partial(live, agent), tmp_path / "kills", rng, points=points, settle=says_yes)
    assert found.bad == []
    assert found.points == min(points, 2 * found.appends)


# -- fork determinism: a fork has the word that it was given, not that of its parent


def test_a_fork_at_the_wait_follows_its_own_word(agent: Any, store: CheckpointStore) -> None:
    until_it_waits(agent, store)
    parent = run(agent, store)
    found = {}
    for child, word in (("no", "no"), ("again", "no"), ("same", "yes")):
        store.run(RUN).fork(child, at_step=1)
        store.run(child).signal(WORD, word)
        found[child] = run(agent, store, child)
        assert found[child][0] == ["1", f"2 {word}", "3"]
    assert found["no"] == found["again"]
    assert found["same"] == parent
    assert run(agent, store) == parent, "the parent is as it was"
    assert Counter(paid()) == {"pay 1": 1, "pay 2 yes": 2, "pay 2 no": 2, "pay 3": 4}


# -- checkpoint validity: what nobody can restore is refused aloud, and the last sound one counts


def test_a_state_that_nobody_can_restore_is_refused(agent: Any, store: CheckpointStore) -> None:
    until_it_waits(agent, store)
    spoils.add(2)
    with pytest.raises(RefusedValueError, match="paid"):
        run(agent, store)
    heal()
    assert [(point.step, bool(point.validity)) for point in store.run(RUN).checkpoints()] == [
        (1, True)
    ]
    assert run(agent, store)[0] == ["1", "2 yes", "3"]
    assert paid() == PAYMENTS


# -- consume-once: of k processes at once, one acts on the word


HOWS = {0: "done", 1: "locked", 2: "in doubt", -signal.SIGKILL: "killed"}


def at_once(agent: Any, place: Path) -> Counter[str]:
    """How so many processes end that resume the run at the same moment."""
    reads, writes = os.pipe()
    pids = []
    for _ in range(PROCESSES):
        pids.append(os.fork())
        if not pids[-1]:
            code = 3
            try:
                signal.alarm(60)
                os.close(writes)
                os.read(reads, 1)  # returns when the parent has closed the other end
                live(agent, place)
                code = 0
            except LogLockedError:
                code = 1
            except InDoubtError:
                code = 2
            finally:
                os._exit(code)
    os.close(reads)
    os.close(writes)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    return Counter(HOWS.get(code, f"exit {code}") for code in codes)


@pytest.mark.parametrize("killed", [False, True])
def test_of_processes_that_resume_at_once_one_acts_on_the_word(
    agent: Any, lasting: CheckpointStore, tmp_path: Path, killed: bool
) -> None:
    until_it_waits(agent, lasting)
    if killed:
        killed_in.add("2 yes")
        first = at_once(agent, tmp_path)
        assert first["killed"] == 1
        assert first.keys() <= {"killed", "locked", "in doubt"}
        assert paid() == PAYMENTS[:2]
        heal()
        with pytest.raises(InDoubtError) as stopped:
            run(agent, lasting)
        for call in stopped.value.calls:
            lasting.run(RUN).resolve(call, outside.truth(call))
    for _ in range(2):  # the second time, the run has ended
        found = at_once(agent, tmp_path)
        assert found["done"] >= 1, found
        assert found.keys() <= {"done", "locked"}
        assert paid() == PAYMENTS


def test_a_word_to_a_run_that_has_ended_is_not_acted_on(agent: Any, store: CheckpointStore) -> None:
    until_it_waits(agent, store)
    result = run(agent, store)
    with pytest.raises(RecoveryError):
        store.run(RUN).signal(WORD, "again")
    assert run(agent, store) == result
    assert paid() == PAYMENTS


# -- recovery determinism: of one durable state, each recovery makes the same of it


def test_copies_of_a_crashed_run_in_memory_recover_alike(agent: Any) -> None:
    first = disk_store()
    until_it_waits(agent, first)
    dies_before.add(3)
    dies(agent, first)
    found = []
    for _ in range(3):
        outside.nothing()
        found.append((run(agent, after_death(first)), paid()))
    assert found[0] == found[1] == found[2]
    assert found[0][1] == ["pay 3"]


def recovers(place: Path) -> Any:
    """How each life of a run ended, what it returned and what was paid."""
    outside.moved_to(place)
    hows = []
    while True:
        end = life(partial(run, pays_four_at_once, CheckpointStore(place / RUNS)), "after", 0)
        hows.append(end.how)
        if end.how == "done":
            return hows, end.said, outside.counted()
        settle(place, end.how)


def test_copies_of_a_killed_run_recover_alike(tmp_path: Path, rng: random.Random) -> None:
    for at in rng.sample(range(3, 18), scaled(3, 15)):
        place = tmp_path / f"{at}"
        place.mkdir()
        outside.moved_to(place)
        live = partial(run, pays_four_at_once, CheckpointStore(place / RUNS))
        assert life(live, "after", at).how == "killed"
        copies = [shutil.copytree(place, tmp_path / f"{at}-{copy}") for copy in range(3)]
        found = [recovers(copy) for copy in copies]
        assert found[0] == found[1] == found[2]
        assert set(found[0][2].values()) == {1}
