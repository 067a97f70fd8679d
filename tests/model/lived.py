"""What is known of the lives of a run."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from eventlog.testing import SimulatedDisk
from recovery import ParkedError
from recovery.agent.checkpoint_store import CheckpointStore
from recovery.errors import DivergenceError, RunFailedError
from recovery.journal.encoding import decode
from recovery.journal.events import CallIntended, CallRetried
from recovery.reports import RecoveryReport
from recovery.testing.simulated.virtual_time import StuckError
from tests.model import language as l
from tests.model import schedule as s
from tests.model.process import Process, Store
from tests.model.world import RUN, World


@dataclass
class End:
    """How a life ended: "finished", "failed", "parked", "raised", "diverged", "died", "stuck"."""

    how: str
    value: Any = None
    error: BaseException | None = None


@dataclass
class Lived:
    """All lives of a run, and what came of them."""

    program: l.Program
    schedule: s.Schedule
    world: World
    ends: list[End] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)
    disks: list[SimulatedDisk] = field(default_factory=list)  # behind each life
    final: tuple[Any, Any] | None = None  # state and messages
    warned: list[str] = field(default_factory=list)
    faulty: bool = False
    harmed: bool = False  # records that the run needs are damaged, and nobody has repaired them
    harmed_behind: int = 0  # which life
    was_forked: bool = False  # behind the newest life
    counts: Counter[str] = field(default_factory=Counter)  # of what people do
    before_repair: Counter[str] = field(default_factory=Counter)  # what was done outside by then
    old: Counter[str] | None = None  # what other code has done outside, before it was edited
    edited: int = 0  # LSN, when that was
    last: int = 0  # LSN, when the newest life began
    done: int = 0  # outside, until then
    limit: int | None = None  # of its calls, in the newest life
    reports: list[tuple[int, RecoveryReport]] = field(default_factory=list)  # in which life

    @property
    def end(self) -> End:
        return self.ends[-1]

    def store(self) -> CheckpointStore:
        """The runs as they are now, for whoever looks."""
        return CheckpointStore(Store(self.disks[-1]))


def ended(exc: BaseException) -> End:
    match exc:
        case RunFailedError():
            return End("failed", exc.type_name.rpartition(".")[2], exc)
        case DivergenceError():
            return End("diverged", None, exc)
        case ParkedError():
            return End("parked", None, exc)
        case StuckError():
            return End("stuck", None, exc)
    return End("raised", None, exc)


def events_of(disk: SimulatedDisk, run_id: str = RUN) -> list[tuple[int, Any]]:
    """What is in the log of a run: LSN and event of each sound record."""
    reader = Store(disk).read(run_id)
    if reader is None:
        return []
    with reader:
        records = reader.records(on_damage=lambda damage: None)
        return [(one.lsn, decode(one)) for one in records]


def made(lived: Lived) -> int:
    """How many calls the run has made, as a budget counts them."""
    found = events_of(lived.disks[-1]) if lived.disks else []
    return sum(isinstance(event, CallIntended | CallRetried) for _, event in found)
