"""Reports a recovery, for the log and for the caller."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Generic, TypedDict

from eventlog import Damage, WritableLog
from recovery.history.load import History
from recovery.journal.usage import Usage
from recovery.text import count
from recovery.values.type_variables import Result


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """A recovery of a run. ``str()`` gives it in one line.

    ``from_step`` and ``checkpoint_lsn``: the checkpoint (0: none). ``replayed``: records read
    after it. ``served``: calls answered from the log; ``executed``: calls made. ``in_doubt``: the
    calls that a crash had left in doubt, and how each was resolved. ``torn_size``: bytes cut off
    that were never acknowledged. ``damage`` and ``broken``: the damage found, and checkpoints
    that could not be used. ``time_s``: from opening the log to the start of the agent function.
    ``usage``: the usage of the run, over all its processes. ``lost``: the gaps after that
    checkpoint, which a repair left, a line each; unrecorded calls that may have been in a gap are
    in doubt. ``drift``: harmless differences between the code and the record, a line each.
    """

    run_id: str
    recovery_count: int
    from_step: int
    checkpoint_lsn: int
    replayed: int
    served: int
    executed: int
    in_doubt: tuple[str, ...]
    torn_size: int
    damage: tuple[Damage, ...]
    broken: tuple[str, ...]
    time_s: float
    usage: Usage = field(default_factory=Usage)
    lost: tuple[str, ...] = ()
    drift: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = [
            f"run {self.run_id}: recovery {self.recovery_count} from step {self.from_step}",
            f"{self.replayed} records replayed",
        ]
        if self.served or self.executed:  # not known yet when a recovery begins
            parts.append(
                f"{count(self.served, 'call')} served from the log, {self.executed:,} executed"
            )
        parts += [f"in doubt: {call}" for call in self.in_doubt]
        if self.torn_size:
            parts.append(f"torn tail of {self.torn_size} bytes cut off")
        parts += [f"DAMAGE: {found}" for found in self.damage]
        parts += [f"passed over: {reason}" for reason in self.broken]
        parts += [f"LOST: {loss}" for loss in self.lost]
        parts += [f"DRIFT: {one}" for one in self.drift]
        parts.append(f"used: {self.usage}")
        return "; ".join(parts) + f" ({self.time_s * 1000:.1f} ms)"


def report_of(
    log: WritableLog, history: History, is_executed: bool, began: float
) -> RecoveryReport:
    """The report of a recovery before the agent function is called; without ``is_executed`` the
    function is not called at all."""
    doubt = history.replay.in_doubt() if is_executed else []
    return RecoveryReport(
        history.run_id,
        history.recoveries,
        history.step,
        history.restored.lsn if history.restored else 0,
        history.replayed,
        0,
        0,
        tuple(f"{call.key} (LSN {call.lsn})" for call in doubt),
        log.report.torn_size,
        tuple(dict.fromkeys((*log.report.damaged, *history.damage))),
        history.broken,
        time.perf_counter() - began + log.report.time_s,
        history.tallies.progress.usage(),
        tuple(map(str, history.replay.losses.gaps)) if history.replay.losses else (),
    )


class RunResult(TypedDict, Generic[Result]):
    """The result of a run: a plain dict. ``result`` is the value that the agent returned.

    ``recovered_from_step``: the step of the checkpoint it last resumed from, 0 if none.
    ``recovery_count``: of the run, over all processes.
    """

    result: Result
    run_id: str
    recovered_from_step: int
    recovery_count: int
    report: RecoveryReport
    usage: Usage
