"""Lists the pending messages of a run, live or dead, from any process."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from eventlog import Damage, Packed, ReadableLog
from eventlog.errors import EncryptedLogError
from recovery.errors import UnreadableValueError
from recovery.history.load_shallow import ShallowHistory
from recovery.inspect.inbox_check import inbox_damage, lost_inbox
from recovery.journal.inbox_messages import (
    CANCEL,
    DECISION,
    OTHER_ARGUMENTS,
    SIGNAL,
    Message,
    Recipient,
    is_message,
    last_of,
)
from recovery.journal.signed_statement import UNSIGNED
from recovery.replay.recorded_call import RecordedCall
from recovery.replay.taken_signals import Signals
from recovery.values.pack import unpack

if TYPE_CHECKING:
    from recovery.approvers import Approvers

OpenInbox = Callable[[str], ReadableLog | None]  # of the run of this id


@dataclass(frozen=True, slots=True)
class PendingMessage:
    """A message that its run has not read. ``lsn`` is its number in the inbox.

    ``about``: the name of a signal, or the call (LSN) that was decided. ``wanted``: whether the run
    waits for it, so that the run continues when it is resumed. ``value``: of a signal. ``refused``:
    why it does not count, and never will; "" if it does.
    """

    lsn: int
    timestamp: float
    kind: Literal["signal", "approved", "denied", "cancel"]
    about: str
    wanted: bool
    who: str = ""
    why: str = ""
    value: Packed | None = field(default=None, repr=False)
    refused: str = ""


def unread(
    open_inbox: OpenInbox, run: ShallowHistory, approvers: Approvers | None = None
) -> list[PendingMessage]:
    """The messages that a run has not read, in the order sent; none for one that has ended."""
    if run.ended is not None:
        return []
    inbox = open_inbox(run.run_id)
    try:
        damage = inbox_damage(inbox, _taken(run), run.uid)
        if damage:
            raise lost_inbox(run.run_id, damage)
        return [] if inbox is None else _untaken(inbox, run, Recipient.of(run.started, approvers))
    finally:
        if inbox is not None:
            inbox.close()


def is_inbox_lost(open_inbox: OpenInbox, run: ShallowHistory) -> bool:
    """Whether the run has read messages from another inbox."""
    with suppress(EncryptedLogError):
        inbox = open_inbox(run.run_id)
        with inbox or nullcontext():
            return bool(inbox_damage(inbox, _taken(run), run.uid))
    return False


def _untaken(inbox: ReadableLog, run: ShallowHistory, recipient: Recipient) -> list[PendingMessage]:
    signals = _taken(run)
    asking = {one.intent.idempotency_key(run.uid): one for one in run.replay.undecided()}
    waits = [awaited(one.intent.args) for one in run.open_calls() if one.intent.tool == "wait_for"]
    found: list[PendingMessage] = []
    # The last decision about each call, and its index in `found`.
    decided: dict[str, tuple[Message, int]] = {}
    lost: list[Damage] = []
    for record in filter(is_message, inbox.records(on_damage=lost.append)):
        message, sent = Message.of(record), record.time_ns / 1e9
        kind: Any = message.kind
        if kind == DECISION:
            kind = "approved" if message.approved else "denied"
        call = asking.get(message.about)
        refused = recipient.refuses(message) or _refused_by(call, message)
        made = PendingMessage(
            message.lsn,
            sent,
            kind,
            message.about,
            True,
            message.who,
            message.why,
            message.value,
            refused,
        )
        if call is not None:
            made = replace(made, about=str(call.lsn), wanted=sent <= call.asks_until)
        if refused:
            found.append(replace(made, wanted=False))
        elif kind == SIGNAL and message.lsn > signals.taken(run.uid, message.about):
            wanted = any(message.about in names and sent <= until for names, until in waits)
            found.append(replace(made, wanted=wanted))
        elif kind == CANCEL:
            found.append(made)
        elif call is not None and message.is_after(call.last_decision):
            before, at = decided.get(made.about, (message, len(found)))
            if last_of((before, message)) is message:
                found[at : at + 1] = [made]
                decided[made.about] = message, at
    return found


def _refused_by(call: RecordedCall | None, message: Message) -> str:
    """Why a decision does not count for the call that it names, by the call's record."""
    if call is None or message.kind != DECISION:
        return ""
    if call.intent.signed and not message.signature:
        return UNSIGNED
    return "" if message.is_about(call.intent.args) else OTHER_ARGUMENTS


def _taken(run: ShallowHistory) -> Signals:
    signals = Signals()
    with suppress(KeyError, TypeError, ValueError):  # of a version with other contents
        signals.from_checkpoint(run.start.carried[Signals.name])
    for entry in run.tail:
        signals.observe(*entry)
    return signals


def awaited(args: Any) -> tuple[tuple[str, ...], float]:
    """The signals that a call waits for, by its recorded arguments, and until when; none where the
    log lacks the arguments."""
    try:
        match unpack(args) if args is not None else None:
            case [[str(name), *_], dict(kwargs)]:
                return (name,), _until(kwargs)
            case [[[*names], *_], dict(kwargs)]:
                return tuple(map(str, names)), _until(kwargs)
    except (UnreadableValueError, ValueError):
        pass
    return (), math.inf


def _until(kwargs: dict[str, Any]) -> float:
    until = kwargs.get("until")
    return float(until) if isinstance(until, int | float) else math.inf
