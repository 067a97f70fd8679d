"""A run that is forked, and its fork, which goes on in its place."""

from __future__ import annotations

import random
from typing import Any

from eventlog.testing import SimulatedDisk
from recovery.journal.call_key import outer_call
from recovery.journal.events import CallIntended, StepStarted
from recovery.ops.fork import fork
from tests.model import language as l
from tests.model.lived import events_of
from tests.model.process import Store
from tests.model.world import RUN, World

PARENT = "parent"
# What these leave in other places than the run's own log is not known to the fork.
NOT_ALONE = (l.Wait, l.Child, l.Undo)


def can_be_forked(program: l.Program) -> bool:
    """Whether all that the program has done is in the log of the run."""
    return bool(program.agents) and not any(isinstance(one, NOT_ALONE) for one in l.walk(program))


def forked(disk: SimulatedDisk, world: World, seed: int) -> bool:
    """Fork the run at the end of a step, or where it is, and have the fork in its place; whether
    there is such a run. What the run did behind that step has never been done, for the fork."""
    found = events_of(disk)
    if not found:
        return False
    ends = {event.step - 1: lsn - 1 for lsn, event in found if isinstance(event, StepStarted)}
    ends = ends if found[0][0] == 1 else {}  # else its beginning is gone
    step = random.Random(seed).choice([*sorted(ends), None])
    last = found[-1][0] if step is None else ends[step]
    known = set[int]()
    for lsn, event in found:
        inside = isinstance(event, CallIntended) and outer_call(event.scope) in known
        if isinstance(event, CallIntended) and (lsn <= last or inside):
            known.add(lsn)
    _renamed(disk)
    before = _content(disk)
    fork(Store(disk), PARENT, RUN, at_step=step)
    if _content(disk) != before:
        world.broken.append("fork: it has written to the run that it forks")
    _removed(disk)
    known |= {one.lsn for one in world.done if one.lsn < found[0][0]}  # in records that are removed
    # What was done inside a call that was copied was done in it, be its own record lost or not.
    ours = [one for one in world.done if not known.isdisjoint(one.calls)]
    world.foreign |= {one.key for one in world.done} - {one.key for one in ours}
    world.done = ours
    return True


def _named(disk: SimulatedDisk) -> tuple[dict[str, Any], ...]:
    """What the disk keeps for each directory."""
    return disk.directories, disk.durable_names, disk.changes


def _renamed(disk: SimulatedDisk) -> None:
    for entries in _named(disk):
        for path in [path for path in entries if f"{path}/".startswith(f"runs/{RUN}/")]:
            entries[f"runs/{PARENT}{path.removeprefix(f'runs/{RUN}')}"] = entries.pop(path)


def _removed(disk: SimulatedDisk) -> None:
    for entries in _named(disk):
        for path in [path for path in entries if f"{path}/".startswith(f"runs/{PARENT}/")]:
            del entries[path]


def _content(disk: SimulatedDisk) -> dict[str, bytes]:
    entries = disk.directories[f"runs/{PARENT}"]
    return {name: bytes(file.content) for name, file in entries.items()}
