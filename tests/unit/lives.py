"""Agents on a simulated disk, and the processes in which they die."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from eventlog.testing import SimulatedDisk
from recovery import CheckpointStore, RecoverableAgent
from recovery.stores.protocol import LogStore


def run(agent: Callable[[Any], Any], store: CheckpointStore, **options: Any) -> dict[str, Any]:
    task = options.pop("task", "task")
    agent_of = RecoverableAgent(agent, store, **options)
    return asyncio.run(agent_of.run_with_recovery(task, "run"))


class Died(BaseException):
    """The process dies here, as far as the agent can tell."""


class Disk(LogStore):
    """A store on a simulated disk."""

    def __init__(self, disk: SimulatedDisk) -> None:
        super().__init__("home", disk, "power")
        self.disk = disk


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
