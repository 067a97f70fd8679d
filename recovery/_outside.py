"""What others do to a run, from any process: send it signals, decide about calls, cancel it."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from eventlog import EventLog, LogLockedError, Packed
from recovery._doubt import recorded_call
from recovery._errors import RecoveryError
from recovery._events import CallDecided, RunCancelled, encode, skim
from recovery._existing import Store, approvers_of, backend_of, claim, reader_of
from recovery._family import children_of
from recovery._history import ended_by, load
from recovery._lineage import started_of
from recovery._message import (
    CANCEL,
    CONTENT,
    DECISION,
    SIGNAL,
    SIGNATURE,
    UID,
    Kind,
    Message,
)
from recovery._options import check_names
from recovery._recorded import RecordedCall
from recovery._relatives import is_child
from recovery._skimmed import skim_run, skimmed
from recovery._text import shown_time
from recovery._tool import Call, check_call
from recovery._values import pack
from recovery.stores.protocol import check_signal_name

if TYPE_CHECKING:
    from recovery.approvers import Sign


class Sender(TypedDict, total=False):
    """Who sends a signal, under which key it is sent once, and what signs it."""

    who: str
    key: str
    sign: Sign | None


def signal(
    store: Store, run_id: str, name: str, value: Any = None, **sender: Unpack[Sender]
) -> None:
    """Send a run signal ``name``, which its next ``wait_for(name)`` returns the value of.

    Durable when this returns, whether a process has the run or not, and whether it waits already
    or not: signals of a name are kept in the order sent, and each is taken once. A sender that
    tries again after a time-out gives both the same ``key=``: then it is sent once. ``who=`` is
    kept with it. ``sign=``: as for ``approve``. Takes a few flushes of the disk; from async code,
    call it with ``asyncio.to_thread``.

    Raises RecoveryError when there is no such run, or it has ended; RefusedValueError for a value
    that cannot be carried; ValueError when another signal was sent under this ``key``;
    LogLockedError when other senders keep the inbox for 10 seconds.
    """
    check_names("signal", sender, Sender.__annotations__)
    packed = pack(value, "value")
    body = {"name": check_signal_name(name), "value": packed, "who": sender.get("who", "")}
    body[UID] = _uid_of(store, run_id, name)
    _post(store, run_id, SIGNAL, body, (sender.get("sign"), packed), sender.get("key", ""))


def cancel(
    store: Store, run_id: str, *, who: str = "", why: str = "", sign: Sign | None = None
) -> None:
    """End a run: it cannot be resumed, and running it again raises RunCancelledError.

    Its child runs end with it. A run that no process has is ended when this returns. In a live one
    it is durable that it is to end: it does at the next thing that its agent does (a call, a step,
    while it waits, its end), a fifth of a second later at most; a tool at work is not interrupted.
    Whether a call in doubt took effect stays unknown; the error names it. ``sign``: as for
    ``approve``; a run that no process has is ended without.

    Raises RecoveryError when there is no such run, or it has ended.
    """
    body = {"who": who, "why": why, UID: _uid_of(store, run_id, "cancel")}
    asked = _post(store, run_id, CANCEL, body, (sign, None))
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
    store: Store,
    run_id: str,
    call: Call | int | str,
    *,
    who: str = "",
    why: str = "",
    sign: Sign | None = None,
) -> None:
    """Say yes to a call that waits for approval: as ``pending`` gives it, by its idempotency key,
    or by its LSN (which another run of that name may have by then).

    It is bound to the call's idempotency key: it never begins a call with other arguments, nor an
    equal call that is made later. Of several decisions the last one counts that is durable when
    the call is about to begin. ``who`` and ``why`` are kept in the run's record. Durable when this
    returns, from any process, whether one has the run or not. ``sign``: what signs the decision, as
    a store with ``approvers=`` asks for: ``recovery.approvers.signing_key(path)``.

    Raises RecoveryError when the call does not wait for approval (any more), its
    ``approval_timeout_s`` is over, or the decision has to be signed.
    """
    _decide(store, run_id, call, {"approved": True, "who": who, "why": why}, sign)


def deny(
    store: Store,
    run_id: str,
    call: Call | int | str,
    *,
    who: str = "",
    why: str = "",
    sign: Sign | None = None,
) -> None:
    """Say no to a call that waits for approval: its agent gets an ApprovalDeniedError.

    As ``approve``; also after a yes, until the call has begun. RecoveryError when that has been
    too late.
    """
    _decide(store, run_id, call, {"approved": False, "who": who, "why": why}, sign)


def _decide(
    store: Store, run_id: str, call: Call | int | str, said: dict[str, Any], sign: Sign | None
) -> None:
    check_call(call)
    uid, waiting = _asking(store, run_id)
    meant = call.idempotency_key if isinstance(call, Call) else call
    found = [one for one in waiting if meant in (one[0].lsn, one[0].idempotency_key)]
    if not found:
        lines = "".join(f"\n  {one}" for one, _ in waiting) or " none"
        raise RecoveryError(
            f"call {call} of run {run_id!r} does not wait for approval: it has begun, has ended or "
            f"is none. Nothing was sent. What waits:{lines}"
        )
    ((asked, recorded),) = found
    until = recorded.asks_until
    if recorded.intent.signed and sign is None:
        raise RecoveryError(
            f"what is said about {asked} of run {run_id!r} counts only when it is signed, for its "
            "store has approvers=. Nothing was sent. Sign it: `recovery approve --sign KEYFILE`, "
            "or sign=signing_key(path) of recovery.approvers."
        )
    expired = (
        f"too late: {asked} of run {run_id!r} could be decided until {shown_time(until)} "
        "(approval_timeout_s). The run denies it when it is run again."
    )
    if time.time() > until:
        raise RecoveryError(f"{expired} Nothing was sent.")
    said |= {"call": asked.lsn, "of": asked.idempotency_key, UID: uid}
    lsn = _post(store, run_id, DECISION, said, (sign, recorded.intent.args))
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


def _post(
    store: Store, run_id: str, kind: Kind, body: dict[str, Any],
    signed: tuple[Sign | None, Packed | None], key: str = "",
) -> int:  # fmt: skip
    """Send a message, ``signed`` by a function with what it is about, if by one; its number."""
    sign, packed = signed
    backend = backend_of(store)
    if sign is None:
        return backend.post(run_id, kind, body, key)
    from recovery.approvers import content_of  # noqa: PLC0415 - only where something is signed

    said = Message(
        0, time.time_ns(), kind, str(body.get("of", body.get("name", ""))), body["who"],
        body.get("why", ""), body.get("approved", False), body[UID],
        content="" if packed is None else content_of(packed),
    )  # fmt: skip
    if inbox := backend.inbox(run_id):
        with inbox:  # what is said last was signed last, whatever the clocks say
            said = said.signed_after(inbox.records(on_damage=lambda damage: None))
    signature = sign(said.statement.to_bytes())
    approvers = approvers_of(store)
    if approvers is not None and not approvers.accepts(said.statement, signature):
        raise RecoveryError(
            f"approvers= of the store knows of no such signature of {said.who!r} (who=). Nothing "
            "was sent."
        )
    body |= {CONTENT: said.content, SIGNATURE: signature}
    return backend.post(run_id, kind, body, key, said.time_ns)


def _asking(store: Store, run_id: str) -> tuple[str, list[tuple[Call, RecordedCall]]]:
    """``pending``, for whoever may not have the types of the arguments. And the run's uid."""
    with reader_of(store, run_id) as reader:
        history = skim_run(reader, run_id)
    history.check()
    if history.started is None or history.ended is not None:
        return history.uid, []
    waiting = history.replay.undecided()
    return history.uid, [(history.call(one), one) for one in waiting]
