"""Cancels runs from any process."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from eventlog import LogLockedError, WritableLog
from recovery.control.relatives import is_child
from recovery.control.send import post, recipient_of
from recovery.errors import RecoveryError
from recovery.history.find_run import Store, approvers_of, claim
from recovery.history.load_shallow import load_shallow, shallow_events
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
    started = recipient_of(store, run_id, "cancel", (CANCEL, sign))
    _end(store, run_id, started, (who, why), sign)


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
            cancel_children(store, log, run_id, who)


def cancel_children(store: Store, log: WritableLog, run_id: str, who: str) -> None:
    """Cancel the runs that this one has started, and theirs: all that have not ended."""
    read = shallow_events(log.records(1, on_damage=lambda damage: None), [])
    for child in children_of((lsn, event) for lsn, _, event in read):
        if child.state == "open" and is_child(store, child.run_id, run_id):
            with suppress(RecoveryError):  # it has ended, or never begun
                # A decision about the parent is also about its children.
                why = f"run {run_id}, which had started it, ended"
                its = recipient_of(store, child.run_id, "cancel")
                _end(store, child.run_id, its, (who, why), None)
