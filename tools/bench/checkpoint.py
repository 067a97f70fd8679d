"""(b) Saving a checkpoint: made from state and messages, checked, durable."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

import msgpack

from recovery import Checkpoint, CheckpointStore

from ._measure import Result, in_turns, progress

TITLE = "checkpoint: save of a state of that size, with one new message each"
YARDSTICK = "msgpack of state and messages, written whole to a new file, fsync"

KEYS = 100  # in the larger state, 1 KB each
COUNT = 300


def run(directory: Path, scale: float) -> list[Result]:
    """Small state; large state of which a hundredth, and all, is new each time."""
    cases = (
        ("1 KB, all new", 1, 1),
        ("100 KB, 1 KB new", KEYS, 1),
        ("100 KB, all new", KEYS, KEYS),
    )
    return [_case(directory, *case, count=max(5, int(COUNT * scale))) for case in cases]


def _case(directory: Path, name: str, keys: int, changed: int, *, count: int) -> Result:
    progress(f"checkpoint {name}")
    choose = random.Random(keys)
    here = directory / f"checkpoint-{keys}-{changed}"
    here.mkdir()
    store = CheckpointStore(here / "store")
    states = [_Work(choose, keys, changed), _Work(choose, keys, changed)]

    def save(number: int) -> None:
        work = states[0]
        store.save(
            Checkpoint(
                checkpoint_id="", run_id="r", step_number=number, state=work.state,
                messages=work.messages, tool_results=[], timestamp=time.time(),
            )
        )  # fmt: skip

    def dump(number: int) -> None:
        work = states[1]
        packed = msgpack.packb([number, work.state, work.messages])
        fd = os.open(here / f"whole-{number}", os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.write(fd, packed)
            os.fsync(fd)
        finally:
            os.close(fd)

    def go_on() -> None:
        for work in states:
            work.go_on()

    with store:
        return in_turns(name, save, dump, count, before=go_on)


class _Work:
    """What an agent has between two checkpoints."""

    def __init__(self, choose: random.Random, keys: int, changed: int) -> None:
        self._choose, self._changed = choose, changed
        self.state: dict[str, Any] = {f"key{i}": "" for i in range(keys)}
        self.messages: list[dict[str, str]] = []
        for key in self.state:
            self.state[key] = self._text(1000)

    def go_on(self) -> None:
        for key in self._choose.sample(sorted(self.state), self._changed):
            self.state[key] = self._text(1000)
        self.messages.append({"role": "assistant", "content": self._text(200)})

    def _text(self, size: int) -> str:
        return self._choose.randbytes(size // 2).hex()
