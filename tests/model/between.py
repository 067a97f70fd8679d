"""What happens to a run between two lives: what the disk does, and what people do."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Any

from eventlog import LogError
from eventlog.repair import repair
from eventlog.testing import SimulatedDisk
from recovery import ParkedError, RecoveryError
from recovery.agent.checkpoint_store import CheckpointStore
from recovery.control.resolve import accept, resolve
from recovery.errors import DamagedRunError, DivergenceError
from recovery.inspect.status import status
from recovery.journal.events import CallIntended, CallResolved
from recovery.testing.processes.trial import doubts
from tests.model import schedule as s
from tests.model.forks import forked
from tests.model.harm import harm_behind_the_checkpoint, harm_newest_checkpoint
from tests.model.lived import Lived, events_of
from tests.model.process import Process, Store
from tests.model.world import RUN, Died

ACCEPTS_MAX = 12
ALTERED = (
    "may have been made with other arguments",
    "may have been made with another idempotency key",
)


def behind(lived: Lived, life: s.Life, disk: SimulatedDisk) -> SimulatedDisk:
    """The disk as the next process finds it."""
    process = lived.processes[-1]
    for fault in life.faults:
        if isinstance(fault, s.Power):
            process.hits("power loss")
            disk = disk.after_power_loss(fault.seed)
            break
    else:
        disk = disk.after_process_death()
    lived.was_forked = False
    for fault in life.faults:
        if "runs/run" not in disk.directories or lived.harmed:
            break
        match fault:
            case s.Harm(behind=False) if lived.counts["forks"]:
                pass  # it may be the one with which the fork began: nothing stands in for that
            case s.Harm(seed, is_behind):
                # Somebody has opened it since: damage at the end of a log that a crash has left
                # open may look as if it had been cut off there.
                with suppress(LogError):
                    Store(disk).claim(RUN).close()
                is_over = lived.end.how in ("finished", "failed")
                if is_behind:
                    harmed = not is_over and harm_behind_the_checkpoint(disk, seed)
                    lived.harmed = harmed
                else:
                    harmed = harm_newest_checkpoint(disk, seed)
                    lived.counts["damaged checkpoints"] += harmed
                    # Of two, the first may have ended a segment that has no footer: then nothing
                    # says that it was no record.
                    lived.harmed = not is_over and lived.counts["damaged checkpoints"] > 1
                lived.harmed_behind = len(lived.ends)
                if harmed:
                    process.hits("damage")
            case s.Fork(seed) if not lived.counts["repairs"] + lived.counts["forks"]:
                lived.was_forked = forked(disk, lived.world, seed)
                lived.counts["forks"] += lived.was_forked
    return disk


def repaired(lived: Lived) -> None:
    """What people do with a run whose log is damaged. It has to be told before anything is done."""
    if not lived.harmed or lived.harmed_behind == len(lived.ends):
        return
    if not isinstance(lived.end.error, DamagedRunError):
        # What is damaged was written by nobody who had the run, or nobody needs it.
        lived.harmed &= lived.end.how in ("died", "raised")
        return
    if lived.processes[-1].effects:
        lived.world.broken.append("damage: the run went on before it was told")
    repair(f"runs/{RUN}", files=lived.disks[-1], who="ann")
    lived.harmed = False
    lived.before_repair = Counter(one.label for one in lived.world.done)
    lived.counts["repairs"] += 1


def accepted(lived: Lived, error: BaseException | None) -> bool:
    """People have changed the code, and want it so; whether they could say that."""
    if lived.old is None or not isinstance(error, DivergenceError):
        return False
    if error.lsn > lived.edited and not lived.counts["accepted"]:
        lived.world.broken.append(f"edit: code that is the same since diverged: {error}")
    lived.counts["accepted"] += 1
    safe = {tool.name for tool in lived.program.tools if tool.after_crash == "retry"}
    new = [one for one in lived.world.done[lived.done :] if one.lsn > lived.last]
    if any(one.tool not in safe for one in new):
        lived.world.broken.append(f"edit: changed code did {new} before it was stopped")
    store = lived.store()
    if not error.in_doubt:
        accept(store, RUN, who="ann")
    doubts: Any = status(store, RUN).in_doubt
    for call in doubts:
        if call.lsn == error.in_doubt:
            resolve(store, RUN, call.lsn, lived.world.resolution(call), who="ann")
    return lived.counts["accepted"] < ACCEPTS_MAX


def keys_of(lived: Lived, run_id: str) -> set[str]:
    """The idempotency keys of the calls that are recorded."""
    uid = status(lived.store(), run_id).uid
    events = [event for _, event in events_of(lived.disks[-1], run_id)]
    return {one.idempotency_key(uid) for one in events if isinstance(one, CallIntended)}


def is_resolved(lived: Lived, call: Any) -> bool:
    """Whether the log says what became of the call."""
    kept = [event for _, event in events_of(lived.disks[-1], call.run_id)]
    return any(isinstance(one, CallResolved) and one.call == call.lsn for one in kept)


def settled(lived: Lived, error: BaseException | None, life: s.Life) -> bool:
    """People say what became of the calls in doubt; whether anything could be said."""
    store, calls, said = lived.store(), doubts(error), list[Any]()
    faults = [one for one in life.faults if isinstance(one, s.Settling)]
    for fault in faults:
        died = s.Life((s.Die(fault.at, fault.torn),))
        person = Process(lived.world, lived.disks[-1], died)
        store = CheckpointStore(Store(person.disk, person))
    before, unsure = (Counter[str](), set[str]()), list[Any]()
    try:
        for call in sorted(calls, key=lambda call: -call.lsn):  # inner ones first
            before = Counter(lived.world.settled), set(lived.world.given_up)
            told = [line for line in lived.warned if str(call) in line]
            if any(how in line for line in told for how in ALTERED):
                lived.world.find(call, keys_of(lived, call.run_id))
            # The log has outcomes of calls that are lost: they have looked whether one is of this.
            is_sure = lived.counts["repairs"] > 0
            how = lived.world.resolution(call)
            resolve(store, call.run_id, call.lsn, how, who="ann", force=is_sure)
            said.append(call)
    except RecoveryError as exc:
        lived.world.broken.append(f"doubt: a call named as in doubt is refused: {exc}")
    except Died:
        unsure = [call]
        lived.counts["deaths in settling"] += 1
    for fault in faults:
        lived.disks[-1] = lived.disks[-1].after_power_loss(fault.power)
    if not all(is_resolved(lived, call) for call in unsure):
        lived.world.settled, lived.world.given_up = before  # nobody has said it
    for call in said:
        if not is_resolved(lived, call):
            lived.world.broken.append(f"lost: what a person said of {call} is gone")
    return bool(calls) or isinstance(error, ParkedError)
