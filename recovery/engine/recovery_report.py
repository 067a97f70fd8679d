"""What a recovery did, for the log and for the caller."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Generic, TypedDict

from eventlog import Damage, EventLog
from recovery.history.load import History
from recovery.journal.usage import Usage
from recovery.values.type_variables import Result


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What it took to bring a run to where it is. ``str()`` says it in one line.

    ``from_step`` and ``checkpoint_lsn``: the checkpoint (0: none). ``replayed``: records read
    behind it. ``served``: calls answered from the log; ``executed``: calls made. ``in_doubt``: the
    calls that a crash had left in doubt, and how each was settled. ``torn_size``: bytes cut off
    that were never acknowledged. ``damage`` and ``broken``: what is not sound any more, and
    checkpoints passed over. ``time_s``: from opening the log to the start of the agent function.
    ``usage``: what the run has used, over all its lives. ``lost``: what was lost behind that
    checkpoint before the log was repaired, a line each; calls that may have been among it, and are
    not recorded, are in doubt. ``drift``: what the code does otherwise than is recorded, a line
    each, where that did no harm.
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
            parts.append(f"{self.served} calls served from the log, {self.executed} executed")
        parts += [f"in doubt: {call}" for call in self.in_doubt]
        if self.torn_size:
            parts.append(f"torn tail of {self.torn_size} bytes cut off")
        parts += [f"DAMAGE: {found}" for found in self.damage]
        parts += [f"passed over: {reason}" for reason in self.broken]
        parts += [f"LOST: {loss}" for loss in self.lost]
        parts += [f"DRIFT: {one}" for one in self.drift]
        parts.append(f"used: {self.usage}")
        return "; ".join(parts) + f" ({self.time_s * 1000:.1f} ms)"


def report_of(log: EventLog, history: History, is_executed: bool, began: float) -> RecoveryReport:
    """What is known of a recovery before the agent function is called; without ``is_executed`` it
    is not called at all."""
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
    """What a run gives: a plain dict. ``result`` is what the agent returned.

    ``recovered_from_step``: the checkpoint it last resumed from, 0 if none. ``recovery_count``: of
    the run, over all processes.
    """

    result: Result
    run_id: str
    recovered_from_step: int
    recovery_count: int
    report: RecoveryReport
    usage: Usage
