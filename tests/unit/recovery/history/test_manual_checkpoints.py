"""Checkpoints that are saved by hand, whatever is saved and damaged; the state of a run."""

from __future__ import annotations

import copy
import pickle  # noqa: TID251 - others may copy a state so
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from recovery import Checkpoint, CheckpointStore, SyncRun
from recovery.history.inventory import needs
from recovery.history.restore_checkpoint import checkpoints_in
from recovery.history.retention import Kept
from recovery.stores.memory import MemoryStore
from tests.support.lives import Died, run

RUN = "run"


def changed(rng: random.Random, state: dict[str, Any], messages: list[Any]) -> None:
    """Change a state and a conversation as agents do, and the order of keys."""
    key = f"k{rng.randrange(12)}"
    match rng.randrange(6):
        case 0 | 1:
            state[key] = rng.choice([rng.randrange(5), "x" * rng.randrange(300), [1]])
        case 2 if key in state:
            state[key] = state.pop(key)
        case 3:
            state.pop(key, None)
        case 4:
            messages.append({"n": rng.randrange(9), "text": "y" * rng.randrange(100)})
        case _:
            del messages[rng.randrange(len(messages) + 1) :]
            items = rng.sample([*state.items()], len(state))
            state.clear()
            state.update(items)


def saved(backend: MemoryStore, kept: Kept, rng: random.Random) -> list[tuple[list[Any], Any]]:
    """What was saved, in the order of the steps; by several processes, one after the other."""
    state, messages, all_saved = dict[str, Any](), list[Any](), list[tuple[list[Any], Any]]()
    store = CheckpointStore(backend, retention=kept)
    for step in range(1, rng.randrange(2, 40)):
        for _ in range(rng.randrange(4)):
            changed(rng, state, messages)
        store.save(Checkpoint("", RUN, step, dict(state), [*messages], [], 0.0))
        all_saved.append(([*state.items()], [*messages]))
        if rng.random() < 0.15:
            store.close()
            store = CheckpointStore(backend, retention=kept)
    store.close()
    return all_saved


@pytest.mark.parametrize("kept", ["all", "prune_old", "latest_only"])
def test_what_is_saved_is_loaded_and_a_damaged_byte_costs_one(
    kept: Kept, rng: random.Random
) -> None:
    for _ in range(4):
        backend = MemoryStore()
        wanted = saved(backend, kept, rng)
        store = CheckpointStore(backend)
        for step, one in enumerate(wanted, 1):
            found = store.load_at_step(RUN, step)
            assert found is not None
            assert ([*found.state.items()], found.messages) == one
        files: Any = backend.files
        contents = [
            file.content
            for name, file in files.directories[f"memory/{RUN}"].items()
            if name.endswith(".seg") and len(bytes(file.content).rstrip(b"\0")) > 64
        ]
        content = rng.choice(contents)
        content[rng.randrange(64, len(bytes(content).rstrip(b"\0")))] ^= 1 << rng.randrange(8)
        newest = store.load_latest(RUN)
        if newest is not None:
            assert ([*newest.state.items()], newest.messages) == wanted[newest.step_number - 1]
        if kept != "latest_only" and len(wanted) > 1:
            assert newest is not None
            assert newest.step_number >= len(wanted) - 1
        with CheckpointStore(backend, retention=kept) as store:
            after = Checkpoint("", RUN, 99, {"after": 1}, ["damage"], [], 0.0)
            store.save(after)
            assert store.load_latest(RUN) == after


OPERATIONS: list[Callable[[dict[str, Any], str, int], Any]] = [
    lambda state, key, n: state.__setitem__(key, [n]),
    lambda state, key, n: state.__delitem__(key),
    lambda state, key, n: state.pop(key),
    lambda state, key, n: state.pop(key, n),
    lambda state, key, n: state.popitem(),
    lambda state, key, n: state.setdefault(key, n),
    lambda state, key, n: state.update({key: n}, other=n),
    lambda state, key, n: state.__ior__({key: n}) is state,
    lambda state, key, n: state.clear(),
    lambda state, key, n: copy.copy(state),
    lambda state, key, n: copy.deepcopy(state),
    lambda state, key, n: pickle.loads(pickle.dumps(state)),  # noqa: S301
]


def outcome(state: dict[str, Any], what: tuple[int, str, int]) -> Any:
    operation, key, n = what
    try:
        return OPERATIONS[operation](state, key, n), [*state.items()]
    except KeyError as exc:
        return exc.args


def test_the_state_of_a_run_is_a_dict_and_comes_back_as_it_was(rng: random.Random) -> None:
    steps = range(1, 8)
    for _ in range(20):
        plain, wanted = dict[str, Any](), list[Any]()
        done = [
            [
                (rng.randrange(len(OPERATIONS)), rng.choice("abc"), n)
                for n in range(rng.randrange(5))
            ]
            for _ in steps
        ]
        for each in done:
            wanted.append([outcome(plain, what) for what in each])
        dies_in, found = rng.choice(steps), dict[int, Any]()

        def agent(
            run: SyncRun, done: Any = done, found: Any = found, dies_in: int = dies_in
        ) -> Any:
            for step in run.steps():
                found[step] = [outcome(run.state, what) for what in done[step - 1]]
                if step == dies_in and len(found) == step and run.recovery_count == 0:
                    raise Died
                if step == steps[-1]:
                    return [*run.state.items()]

        store = CheckpointStore(MemoryStore())
        with suppress(Died):
            run(agent, store)
        result = run(agent, store)["result"]
        assert [found[step] for step in steps] == wanted
        assert [*map(tuple, result)] == [*plain.items()]


def test_a_lane_of_checkpoints_refers_to_nothing_of_the_other_one() -> None:
    """Those of an agent refer to each other; of those that are saved later a damage costs one."""

    def agent(run: SyncRun) -> None:
        for step in run.steps():
            run.messages.append("x" * 99)
            run.state[f"k{step}"] = step
            if step == 6:
                raise Died

    backend = MemoryStore()
    with suppress(Died):
        run(agent, CheckpointStore(backend), checkpoint_every_n=1)
    for step in range(6, 12):
        with CheckpointStore(backend) as store:
            store.save(Checkpoint("", RUN, step, {"k1": 1, "n": step}, ["x" * 99, step], [], 0.0))
    reader = backend.read(RUN)
    assert reader is not None
    with reader:
        found = [(one.lsn, needs(reader, one)[1]) for one in checkpoints_in(reader)]
    newest, before = ({lsn, *needed} for lsn, needed in found[:2])
    assert newest.isdisjoint(before)
