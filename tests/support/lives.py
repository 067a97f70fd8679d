"""Agents on a simulated disk, and the processes in which they die."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import pytest

from eventlog import EventLog
from eventlog.testing import SimulatedDisk
from recovery import CheckpointStore, RecoverableAgent, RunResult, tool
from recovery.journal.encoding import decode
from recovery.journal.events import Event
from recovery.stores.file import FileStore
from recovery.stores.log_store import LogStore
from recovery.testing.simulated.virtual_time import Clock
from recovery.values import codec as coded

RUN = "run"

# What tools have done, in all processes of a test: see the fixture `fresh`.
executed: Counter[Any] = Counter()


@tool
def send(what: Any) -> str:
    executed[what] += 1
    return f"sent {what}"


def run(agent: Callable[[Any], Any], store: CheckpointStore, **options: Any) -> RunResult:
    task = options.pop("task", "task")
    agent_of = RecoverableAgent(agent, store, **options)
    return asyncio.run(agent_of.run_with_recovery(task, RUN))


def run_sync(agent: Callable[[Any], Any], store: CheckpointStore, **options: Any) -> RunResult:
    return RecoverableAgent(agent, store, **options).run_with_recovery_sync("task", RUN)


def recorded(store: CheckpointStore, *wanted: type[Event]) -> list[Any]:
    """The events of these types in the log of the run; without types, all of them."""
    reader = store.backend.read(RUN)
    assert reader is not None
    with reader:
        events = [event for record in reader.records() if (event := decode(record)) is not None]
    return [event for event in events if not wanted or isinstance(event, wanted)]


OURS = frozenset(coded.BY_NAME)  # types of the library itself that have names


def forget() -> None:
    """What a test has registered is not any more."""
    for name in coded.BY_NAME.keys() - OURS:
        del coded.BY_NAME[name]
    for kind, codec in list(coded.BY_TYPE.items()):
        if codec.name and codec.name not in OURS:
            del coded.BY_TYPE[kind]


class AtOnce(Executor):
    """Does the work of a thread here and now."""

    def submit(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(work(*args, **kwargs))
        except BaseException as exc:  # for who waits for it
            done.set_exception(exc)
        return done


class Died(BaseException):
    """The process dies here, as far as the agent can tell."""


class Disk(LogStore):
    """A store on a simulated disk."""

    def __init__(self, disk: SimulatedDisk) -> None:
        super().__init__("home", disk, "power")
        self.disk = disk


class Segmented(FileStore):
    """Runs in segments of some records."""

    def claim(self, run_id: str, takeover: bool = False) -> EventLog:
        return EventLog.open(self._path(run_id), "process", segment_size=16 << 10)


def refuse_deletion(monkeypatch: pytest.MonkeyPatch, kind: type[Any], part: str) -> None:
    """Have files of this kind delete no directory whose path has this part."""
    delete = kind.delete

    def refusing(self: Any, path: str) -> None:
        if part in path:
            raise PermissionError(13, "Permission denied", path)
        delete(self, path)

    monkeypatch.setattr(kind, "delete", refusing)


def disk_store(disk: SimulatedDisk | None = None) -> CheckpointStore:
    return CheckpointStore(Disk(disk or SimulatedDisk()))


def after_death(store: CheckpointStore) -> CheckpointStore:
    assert isinstance(store.backend, Disk)
    return disk_store(store.backend.disk.after_process_death())


def die_in(agent: Callable[[Any], Any], store: CheckpointStore, **options: Any) -> CheckpointStore:
    """Run an agent whose process dies; the store that the next process finds."""
    with pytest.raises(Died):
        run(agent, store, **options)
    return after_death(store)


class Limited(Clock):
    """Time that says so when an agent waits for ever, however often it looks meanwhile."""

    looks = 0

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "ahead":
            self.looks += 1
            assert value < 20_000 and self.looks < 100_000, "the agent waits for ever"
        super().__setattr__(name, value)


def ending(perform: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """A method that performs effects of a run; it says so when they have no end."""

    def performed(run: Any, effect: Any) -> Any:
        run.effects = getattr(run, "effects", 0) + 1
        assert run.effects < 100_000, "the run goes on for ever"
        return perform(run, effect)

    # Recorded tracebacks have no lines of the library, and so none of this.
    performed.__code__ = performed.__code__.replace(co_filename=perform.__code__.co_filename)
    return performed
