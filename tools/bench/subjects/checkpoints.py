"""Saving what an agent has, of which a little has changed since the last time."""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import msgpack

from recovery import Checkpoint, CheckpointStore, RecoverableAgent

from .raw import reply, text

KEYS = 100


class _Saving:
    """A state of a hundred keys, ``case["size"]`` bytes in all, and ``case["messages"]``.

    A turn changes a key, or with ``case["says"]`` adds a message, and then times a save.
    """

    def __init__(self, directory: Path, case: dict[str, Any]) -> None:
        self._choose, self._says = random.Random(case["size"]), case["says"]
        self._key_size, self._numbers = case["size"] // KEYS, itertools.count(1)
        self.state: dict[str, Any] = {f"key {i:03d}": self._value() for i in range(KEYS)}
        self.messages: list[Any] = [reply(next(self._numbers)) for _ in range(case["messages"])]

    def turn(self, count: int) -> list[float]:
        times = []
        for _ in range(count):
            self.change()
            began = time.perf_counter()
            self.save()
            times.append(time.perf_counter() - began)
        return times

    def change(self) -> None:
        if self._says:
            self.messages.append(reply(next(self._numbers)))
        else:
            self.state[self._choose.choice(list(self.state))] = self._value()

    def save(self) -> None:
        raise NotImplementedError

    def _value(self) -> str:
        return text(self._key_size, self._choose.getrandbits(32))


class Saved(_Saving):
    """CheckpointStore.save, which is durable when it returns."""

    def __init__(self, directory: Path, case: dict[str, Any]) -> None:
        super().__init__(directory, case)
        self._store, self._steps = CheckpointStore(directory), itertools.count(1)

    def save(self) -> None:
        made = Checkpoint("", "run", next(self._steps), self.state, self.messages, [], time.time())
        self._store.save(made)

    def close(self) -> None:
        self._store.close()


class Stepped(_Saving):
    """The boundary between two steps of a run, with a checkpoint at each of them."""

    def __init__(self, directory: Path, case: dict[str, Any]) -> None:
        super().__init__(directory, case)
        self._agent = RecoverableAgent(self._work, CheckpointStore(directory), checkpoint_every_n=1)
        self._asked: SimpleQueue[int] = SimpleQueue()
        self._answers: SimpleQueue[list[float] | BaseException] = SimpleQueue()
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()

    def turn(self, count: int) -> list[float]:
        self._asked.put(count)
        answer = self._answers.get()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def save(self) -> None:
        next(self._steps)

    def close(self) -> None:
        self._asked.put(0)
        self._thread.join()

    def _live(self) -> None:
        try:
            self._agent.run_with_recovery_sync("save", "run")
        except BaseException as exc:
            self._answers.put(exc)

    def _work(self, run: Any) -> None:
        self._steps = run.steps()
        next(self._steps)
        run.state, run.messages = self.state, self.messages
        self.state, self.messages = run.state, run.messages
        while count := self._asked.get():
            self._answers.put(super().turn(count))


class Dumped(_Saving):
    """The yardstick: everything, packed into a new file."""

    def __init__(self, directory: Path, case: dict[str, Any]) -> None:
        super().__init__(directory, case)
        self._paths = (directory / str(number) for number in itertools.count())

    def save(self) -> None:
        packed = msgpack.packb([self.state, self.messages])
        fd = os.open(next(self._paths), os.O_WRONLY | os.O_CREAT, 0o600)
        os.write(fd, packed)
        os.fsync(fd)
        os.close(fd)
