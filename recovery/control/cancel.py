"""Cancels runs from any process."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from eventlog import LogLockedError, LogRecords
from recovery.control.relatives import is_child
from recovery.control.send import post, recipient_of
from recovery.errors import RecoveryError
from recovery.history.find_run import Store, approvers_of, claim, reader_of
from recovery.history.load_shallow import ended_in, load_shallow, shallow_events
from recovery.journal.encoding import encode
from recovery.journal.events import RunCancelled, RunStarted
from recovery.journal.inbox_messages import CANCEL, UID
from recovery.replay.children import children_of

if TYPE_CHECKING:
    from recovery.approvers import Sign


def cancel(
    store: Store, run_id: str, *, who: str = "", why: str = "", sign: Sign | None = None
) -> None:
    """See RunHandle.cancel."""
    if not _end_left_children(store, run_id):
        started = recipient_of(store, run_id, "cancel", (CANCEL, sign))
        _end(store, run_id, started, (who, why), sign)


def _end_left_children(store: Store, run_id: str) -> bool:
    """Whether the run was cancelled before, and left children open: its process had died before it
    ended them. They are ended now."""
    with reader_of(store, run_id, ": cancel was not sent") as reader:
        ended = ended_in(reader)
        if not isinstance(ended, RunCancelled):
            return False
        return cancel_children(store, reader, run_id, ended.who)


def _end(
    store: Store, run_id: str, started: RunStarted, said: tuple[str, str], sign: Sign | None
) -> None:
    """``said``: by whom, and why. ``run_id``: of the log, which may be a copy of another run's."""
    who, why = said
    body = {"who": who, "why": why, UID: started.uid}
    asked = post(store, run_id, CANCEL, body, (sign, None))
    try:
        log = claim(store, run_id)
    except LogLockedError:
        return  # the process that has it finds the message
    with log:
        history = load_shallow(log, run_id, approvers_of(store))
        history.check()
        if history.ended is None:
            if history.started is None:  # submitted, and not begun
                log.append(*encode(started))
            in_doubt = [call.lsn for call in history.replay.in_doubt()]
            log.append(*encode(RunCancelled(who, why, in_doubt, asked)))
            log.commit()
        elif not isinstance(history.ended, RunCancelled):
            return
        # Invariant: the parent's end is durable first. A parent that lives never sees a child that
        # was cancelled for its end. After a crash in between, the next `cancel` ends the children.
        cancel_children(store, log, run_id, who)


def cancel_children(store: Store, log: LogRecords, run_id: str, who: str) -> bool:
    """Cancel the runs that this one has started, and theirs: all that have not ended. Whether there
    were any."""
    found = False
    read = shallow_events(log.records(1, on_damage=lambda damage: None), [])
    for child in children_of((lsn, event) for lsn, _, event in read):
        # One that has ended without a result may have left children of its own.
        if child.state != "finished" and is_child(store, child.run_id, run_id):
            with suppress(RecoveryError):  # never begun, or damaged
                found = _end_child(store, child.run_id, run_id, who) or found
    return found


def _end_child(store: Store, run_id: str, parent: str, who: str) -> bool:
    with reader_of(store, run_id) as reader:
        if ended_in(reader) is not None:
            return cancel_children(store, reader, run_id, who)
    its = recipient_of(store, run_id, "cancel")
    # A decision about the parent is also about its children.
    _end(store, run_id, its, (who, f"run {parent}, which had started it, ended"), None)
    return True
