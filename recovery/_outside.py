"""What others do to a run, from any process: send it signals, decide about calls, cancel it."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

from eventlog import EventLog, LogLockedError
from recovery._doubt import recorded_call
from recovery._errors import RecoveryError
from recovery._events import CallDecided, RunCancelled, encode, skim
from recovery._existing import Store, backend_of, claim, reader_of
from recovery._family import children_of
from recovery._history import ended_by, load
from recovery._lineage import started_of
from recovery._message import CANCEL, DECISION, SIGNAL, UID
from recovery._relatives import is_child
from recovery._skimmed import skim_run, skimmed
from recovery._text import shown_time
from recovery._tool import Call
from recovery._values import pack
from recovery.stores.protocol import check_signal_name


def signal(
    store: Store,
    run_id: str,
    name: str,
    value: Any = None,
    *,
    who: str = "",
    key: str = "",
) -> None:
    """Send a run signal ``name``, which its next ``wait_for(name)`` returns the value of.

    Durable when this returns, whether a process has the run or not, and whether it waits already
    or not: signals of a name are kept in the order sent, and each is taken once. A sender that
    tries again after a time-out gives both the same ``key``: then it is sent once. ``who`` is kept
    with it. Takes a few flushes of the disk; from async code, call it with ``asyncio.to_thread``.

    Raises RecoveryError when there is no such run, or it has ended; RefusedValueError for a value
    that cannot be carried; ValueError when another signal was sent under this ``key``;
    LogLockedError when other senders keep the inbox for 10 seconds.
    """
    body = {"name": check_signal_name(name), "value": pack(value, "value"), "who": who}
    body[UID] = _uid_of(store, run_id, name)
    backend_of(store).post(run_id, SIGNAL, body, key)


def cancel(store: Store, run_id: str, *, who: str = "", why: str = "") -> None:
    """End a run: it cannot be resumed, and running it again raises RunCancelledError.

    Its child runs end with it. A run that no process has is ended when this returns. In a live one
    it is durable that it is to end: it does at the next thing that its agent does (a call, a step,
    while it waits, its end), a fifth of a second later at most; a tool at work is not interrupted.
    Whether a call in doubt took effect stays unknown; the error names it.

    Raises RecoveryError when there is no such run, or it has ended.
    """
    body = {"who": who, "why": why, UID: _uid_of(store, run_id, "cancel")}
    asked = backend_of(store).post(run_id, CANCEL, body)
    try:
        log = claim(store, run_id)
    except LogLockedError:
        return  # whoever has it finds the message
    with log:
        history = skim_run(log, run_id)
        history.check()
        if history.ended is None:
            in_doubt = [call.lsn for call in history.replay.in_doubt()]
            log.append(*encode(RunCancelled(who, why, in_doubt, asked)))
            log.commit()
            cancel_children(store, log, run_id, who)


def cancel_children(store: Store, log: EventLog, run_id: str, who: str) -> None:
    """End the runs that this one has started, and they others: all that have not ended."""
    read = skimmed(log.records(1, on_damage=lambda damage: None), [])
    for child in children_of((lsn, event) for lsn, _, event in read):
        if child.state == "open" and is_child(store, child.run_id, run_id):
            with suppress(RecoveryError):  # it has ended, or never begun
                cancel(
                    store, child.run_id, who=who, why=f"run {run_id}, which had started it, ended"
                )


def _uid_of(store: Store, run_id: str, what: str) -> str:
    """What a message to the run names it by; RecoveryError when nobody will ever read it."""
    with reader_of(store, run_id, f": {what} was not sent") as reader:
        # A run that has ended takes no checkpoint, so nothing that matters is in front of one.
        start = reader.tail().snapshot or 1
        ended = ended_by(skimmed(reader.records(start, on_damage=lambda damage: None), []))
        started = started_of(reader, skim)
    if ended is not None:
        state = ended.kind.removeprefix("run_")
        raise RecoveryError(f"run {run_id!r} has ended ({state}): {what} was not sent")
    if started is None:
        raise RecoveryError(
            f"the log of run {run_id!r} does not say how the run began (no agent has begun it, or "
            f"the record is lost), so nothing can be sent to it: {what} was not sent"
        )
    return started.uid


def pending(store: Store, run_id: str) -> list[Call]:
    """The calls of a run that wait for approval, in the order in which they asked.

    What to show to whoever decides: tool, arguments, since when (``started_ns``), and what to give
    to ``approve`` or ``deny``. Calls of which the ``approval_timeout_s`` is over are not among
    them. Reads the run's log, live or not, without a lock. RecoveryError when there is no such run;
    DamagedRunError.
    """
    with reader_of(store, run_id) as reader:
        history = load(reader, run_id)
    if history.started is None or history.ended is not None:
        return []
    now = time.time()
    return [recorded_call(history, call) for call in history.replay.undecided()
            if now <= call.asks_until]  # fmt: skip


def approve(
    store: Store, run_id: str, call: Call | int, *, who: str = "",
    why: str = "",
) -> None:  # fmt: skip
    """Say yes to a call that waits for approval, as ``pending`` gives it (or to its LSN).

    It is bound to the call's idempotency key: it never begins a call with other arguments, nor an
    equal call that is made later. Of several decisions the last one counts that is durable when
    the call is about to begin. ``who`` and ``why`` are kept in the run's record. Durable when this
    returns, from any process, whether one has the run or not.

    Raises RecoveryError when the call does not wait for approval (any more), or its
    ``approval_timeout_s`` is over.
    """
    _decide(store, run_id, call, {"approved": True, "who": who, "why": why})


def deny(
    store: Store, run_id: str, call: Call | int, *, who: str = "",
    why: str = "",
) -> None:  # fmt: skip
    """Say no to a call that waits for approval: its agent gets an ApprovalDeniedError.

    As ``approve``; also after a yes, until the call has begun. RecoveryError when that has been
    too late.
    """
    _decide(store, run_id, call, {"approved": False, "who": who, "why": why})


def _decide(store: Store, run_id: str, call: Call | int, said: dict[str, Any]) -> None:
    if not isinstance(call, Call | int):
        raise TypeError(f"call is a Call, as pending() gives it, or its LSN; not {call!r:.80}")
    uid, waiting = _asking(store, run_id)
    key = call.idempotency_key if isinstance(call, Call) else ""
    found = [one for one in waiting if key in ("", one[0].idempotency_key)]
    found = [one for one in found if isinstance(call, Call) or one[0].lsn == call]
    if not found:
        lines = "".join(f"\n  {one}" for one, _ in waiting) or " none"
        raise RecoveryError(
            f"call {call} of run {run_id!r} does not wait for approval: it has begun, has ended or "
            f"is none. Nothing was sent. What waits:{lines}"
        )
    ((asked, until),) = found
    expired = (
        f"too late: {asked} of run {run_id!r} could be decided until {shown_time(until)} "
        "(approval_timeout_s). The run denies it when it is run again."
    )
    if time.time() > until:
        raise RecoveryError(f"{expired} Nothing was sent.")
    said |= {"call": asked.lsn, "of": asked.idempotency_key, UID: uid}
    lsn = backend_of(store).post(run_id, DECISION, said)
    if _sent_at(store, run_id, lsn) > until:  # it had to wait for another sender
        raise RecoveryError(f"{expired} What was sent does not count.")
    begun = _decided(store, run_id, asked)
    if begun is not None and begun.inbox < lsn and not said["approved"]:
        raise RecoveryError(
            f"too late: the call has begun, approved by {begun.who or 'somebody'}: {asked}"
        )


def _sent_at(store: Store, run_id: str, lsn: int) -> float:
    """When a message was sent, as the run will see it (seconds since 1970)."""
    inbox = backend_of(store).inbox(run_id)
    assert inbox is not None
    with inbox:
        return inbox.fetch({lsn})[lsn].time_ns / 1e9


def _decided(store: Store, run_id: str, asked: Call) -> CallDecided | None:
    """The yes with which a call has begun, if it has."""
    with reader_of(store, run_id) as reader:
        history = skim_run(reader, run_id)
    known = [event for _, _, event in history.entries if isinstance(event, CallDecided)]
    return next((one for one in known if one.approved and one.call == asked.lsn), None)


def _asking(store: Store, run_id: str) -> tuple[str, list[tuple[Call, float]]]:
    """``pending``, for whoever may not have the types of the arguments; until when each asks. And
    the uid of the run."""
    with reader_of(store, run_id) as reader:
        history = skim_run(reader, run_id)
    history.check()
    if history.started is None or history.ended is not None:
        return history.uid, []
    waiting = history.replay.undecided()
    return history.uid, [(history.call(one), one.asks_until) for one in waiting]
