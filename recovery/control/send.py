"""Sends messages to a run from any process: signals, decisions about calls, cancellation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from eventlog import Packed
from recovery.control.named_call import AnyCall, key_or_lsn
from recovery.errors import RecoveryError
from recovery.history.find_run import Store, approvers_of, backend_of, reader_of
from recovery.history.first_record import started_of
from recovery.history.load import Ended, load
from recovery.history.load_shallow import ended_in, load_shallow
from recovery.history.signed_resolutions import check_signed, kinds_signed, signature_of
from recovery.history.subject_values import keys_in, sealed
from recovery.journal.call import Call
from recovery.journal.encoding import decode_shallow
from recovery.journal.events import CallDecided, RunStarted
from recovery.journal.inbox_messages import CONTENT, DECISION, SIGNAL, SIGNATURE, UID, Kind, Message
from recovery.journal.submission import first_record_of, submission_of
from recovery.option_checks import check_names
from recovery.replay.call_view import recorded_call_view
from recovery.replay.recorded_call import RecordedCall
from recovery.stores.protocol import (
    check_signal_name,
    packed_message,
    posted_lsn,
    time_ns_of,
)
from recovery.text import shown_time
from recovery.values.pack import pack

if TYPE_CHECKING:
    from recovery.approvers import Sign


class Sender(TypedDict, total=False):
    """The sender of a signal, the key under which it is sent once, and its signer."""

    who: str
    key: str
    sign: Sign | None


def signal(
    store: Store, run_id: str, name: str, value: Any = None, **sender: Unpack[Sender]
) -> bool:
    """See RunHandle.signal. Whether it was sent now; False if it was before, under the same key."""
    check_names("signal", sender, Sender.__annotations__)
    packed, key, sign = pack(value, "value"), sender.get("key", ""), sender.get("sign")
    body = {"name": check_signal_name(name), "value": packed, "who": sender.get("who", "")}
    started, ended = _beginning_and_end(store, run_id, name)
    body[UID] = "" if started is None else started.uid
    if key and _was_posted(store, run_id, body, (sign, packed), key):
        return False
    started = _can_read(run_id, name, started, ended)
    check_signed(SIGNAL, started, approvers_of(store), sign)
    if keys := keys_in(started.subject):
        body["value"] = sealed(backend_of(store), run_id, packed, keys)
    post(store, run_id, SIGNAL, body, (sign, packed), key)
    return True


def _was_posted(
    store: Store,
    run_id: str,
    body: dict[str, Any],
    signed: tuple[Sign | None, Packed],
    key: str,
) -> bool:
    """Whether the inbox has this signal, durably; also that of a run that has ended since."""
    inbox = backend_of(store).inbox(run_id)
    if inbox is None:
        return False
    sign, packed = signed
    if sign is not None:
        body = body | {CONTENT: _content_of(packed)}
    parts = packed_message(body, key)
    with inbox:
        lsn = posted_lsn(inbox.records(on_damage=lambda damage: None), (SIGNAL, parts), key)
        return 0 < lsn <= inbox.durable_lsn()


def recipient_of(
    store: Store, run_id: str, what: str, signed: tuple[Kind, Sign | None] | None = None
) -> RunStarted:
    """The first record of the run, or of one that is only submitted the record that it will have.

    RecoveryError when no process will ever read a message to it, or it would not count: a message
    of this kind, so ``signed``.
    """
    started = _can_read(run_id, what, *_beginning_and_end(store, run_id, what))
    if signed is not None:
        check_signed(signed[0], started, approvers_of(store), signed[1])
    return started


def _beginning_and_end(
    store: Store, run_id: str, what: str
) -> tuple[RunStarted | None, Ended | None]:
    with reader_of(store, run_id, f": {what} was not sent") as reader:
        ended = ended_in(reader)
        started = started_of(reader, decode_shallow)
        if started is None and (submission := submission_of(reader, run_id)) and submission.uid:
            started = first_record_of(submission, kinds_signed(approvers_of(store)))
    return started, ended


def _can_read(
    run_id: str, what: str, started: RunStarted | None, ended: Ended | None
) -> RunStarted:
    if ended is not None:
        state = ended.kind.removeprefix("run_")
        raise RecoveryError(f"run {run_id!r} has ended ({state}): {what} was not sent")
    if started is None:
        raise RecoveryError(
            f"the log of run {run_id!r} does not say how the run began (no agent has begun it, or "
            f"the record is lost), so nothing can be sent to it: {what} was not sent"
        )
    return started


def pending(store: Store, run_id: str) -> list[Call]:
    """See RunHandle.pending."""
    with reader_of(store, run_id) as reader:
        history = load(reader, run_id, approvers_of(store))
    if history.started is None or history.ended is not None:
        return []
    now = time_ns_of(backend_of(store)) / 1e9
    return [
        recorded_call_view(history, call)
        for call in history.replay.undecided()
        if now <= call.asks_until
    ]


def approve(
    store: Store,
    run_id: str,
    call: AnyCall,
    *,
    who: str = "",
    why: str = "",
    sign: Sign | None = None,
) -> None:
    """See RunHandle.approve."""
    _decide(store, run_id, call, {"approved": True, "who": who, "why": why}, sign)


def deny(
    store: Store,
    run_id: str,
    call: AnyCall,
    *,
    who: str = "",
    why: str = "",
    sign: Sign | None = None,
) -> None:
    """See RunHandle.deny."""
    _decide(store, run_id, call, {"approved": False, "who": who, "why": why}, sign)


def _decide(
    store: Store, run_id: str, call: AnyCall, said: dict[str, Any], sign: Sign | None
) -> None:
    which = key_or_lsn(call)
    started, waiting = _asking(store, run_id)
    found = [one for one in waiting if which in (one[0].lsn, one[0].idempotency_key)]
    if started is None or not found:
        lines = "".join(f"\n  {one}" for one, _ in waiting) or " none"
        raise RecoveryError(
            f"call {call} of run {run_id!r} does not wait for approval: it has begun, has ended or "
            f"is none. Nothing was sent. What waits:{lines}"
        )
    ((asked, recorded),) = found
    until = recorded.asks_until
    must_sign = recorded.intent.signed is True
    check_signed(DECISION, started, approvers_of(store), sign, must_sign)
    expired = (
        f"too late: {asked} of run {run_id!r} could be decided until {shown_time(until)} "
        "(approval_timeout_s). The run denies it when it is run again."
    )
    if time_ns_of(backend_of(store)) / 1e9 > until:
        raise RecoveryError(f"{expired} Nothing was sent.")
    said |= {"call": asked.lsn, "of": asked.idempotency_key, UID: started.uid}
    lsn = post(store, run_id, DECISION, said, (sign, recorded.intent.args))
    if _sent_at(store, run_id, lsn) > until:  # it had to wait while another process sent
        raise RecoveryError(f"{expired} What was sent does not count.")
    begun = _decided(store, run_id, asked)
    if begun is not None and begun.inbox < lsn and not said["approved"]:
        raise RecoveryError(
            f"too late: the call has begun, approved by {begun.who or 'an unnamed user'}: {asked}"
        )


def _sent_at(store: Store, run_id: str, lsn: int) -> float:
    """When a message was sent, as the run will see it (seconds since 1970)."""
    inbox = backend_of(store).inbox(run_id)
    assert inbox is not None
    with inbox:
        return inbox.fetch({lsn})[lsn].time_ns / 1e9


def _decided(store: Store, run_id: str, asked: Call) -> CallDecided | None:
    """The approval with which a call has begun, if it has."""
    with reader_of(store, run_id) as reader:
        history = load_shallow(reader, run_id, approvers_of(store))
    known = [event for _, _, event in history.entries if isinstance(event, CallDecided)]
    return next((one for one in known if one.approved and one.call == asked.lsn), None)


def post(
    store: Store,
    run_id: str,
    kind: Kind,
    body: dict[str, Any],
    signed: tuple[Sign | None, Packed | None],
    key: str = "",
) -> int:
    """Send a message, ``signed`` by a function of its content; returns its number."""
    sign, packed = signed
    backend = backend_of(store)
    if sign is None:
        return backend.post(run_id, kind, body, key)
    said = Message(
        0,
        time_ns_of(backend),
        kind,
        str(body.get("of", body.get("name", ""))),
        body["who"],
        body.get("why", ""),
        body.get("approved", False),
        body[UID],
        content="" if packed is None else _content_of(packed),
    )
    if inbox := backend.inbox(run_id):
        with inbox:  # under the lock, so that the last message is the one signed last
            said = said.signed_after(inbox.records(on_damage=lambda damage: None))
    signature = signature_of(said.statement, sign, approvers_of(store))
    body |= {CONTENT: said.content, SIGNATURE: signature}
    return backend.post(run_id, kind, body, key, said.time_ns)


def _content_of(packed: Packed) -> str:
    from recovery.journal.signed_statement import content_of  # noqa: PLC0415 - only where something is signed

    return content_of(packed)


def _asking(store: Store, run_id: str) -> tuple[RunStarted | None, list[tuple[Call, RecordedCall]]]:
    """``pending`` without the types of the arguments, and the run's first record."""
    with reader_of(store, run_id) as reader:
        history = load_shallow(reader, run_id, approvers_of(store))
    history.check()
    if history.started is None or history.ended is not None:
        return history.started, []
    waiting = history.replay.undecided()
    return history.started, [(history.call(one), one) for one in waiting]
