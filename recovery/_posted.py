"""What lies in the inbox of a run and was not taken: read from outside, live or dead."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import field, replace
from typing import Any, Literal

from eventlog import Damage, EncryptedLogError, LogReader, Packed
from eventlog._dataclass import dataclass
from recovery._errors import UnreadableValueError
from recovery._existing import Store, backend_of, reader_of
from recovery._inbox_check import inbox_damage, lost_inbox
from recovery._message import CANCEL, DECISION, SIGNAL, Message, Recipient, is_message
from recovery._signals import Signals
from recovery._skimmed import Skimmed, skim_run
from recovery._values import unpack

OpenInbox = Callable[[str], LogReader | None]  # of the run of this id


@dataclass(frozen=True, slots=True)
class PendingMessage:
    """A message that its run has not read. ``lsn`` is its number in the inbox.

    ``about``: the name of a signal, or the call (LSN) that was decided about. ``wanted``: whether
    the run waits for it, so that it goes on when it is run again. ``value``: of a signal.
    ``refused``: why it does not count, and never will; "" if it does.
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


def posted(store: Store, run_id: str) -> list[PendingMessage]:
    """The messages that a run has not read, in the order sent; none for one that has ended.

    Takes no lock and needs no types. RecoveryError when there is no such run.
    """
    with reader_of(store, run_id) as reader:
        return unread(backend_of(store).inbox, skim_run(reader, run_id))


def unread(open_inbox: OpenInbox, run: Skimmed) -> list[PendingMessage]:
    """The same of a run that was read before."""
    if run.ended is not None:
        return []
    inbox = open_inbox(run.run_id)
    try:
        damage = inbox_damage(inbox, _taken(run), run.uid)
        if damage:
            raise lost_inbox(run.run_id, damage)
        return [] if inbox is None else _untaken(inbox, run)
    finally:
        if inbox is not None:
            inbox.close()


def is_inbox_lost(open_inbox: OpenInbox, run: Skimmed) -> bool:
    """Whether the inbox is not the one of which the run has read messages."""
    with suppress(EncryptedLogError):
        inbox = open_inbox(run.run_id)
        with inbox or nullcontext():
            return bool(inbox_damage(inbox, _taken(run), run.uid))
    return False


def _untaken(inbox: LogReader, run: Skimmed) -> list[PendingMessage]:
    signals = _taken(run)
    asking = {one.intent.idempotency_key(run.uid): one for one in run.replay.undecided()}
    waits = [awaited(one.intent.args) for one in run.open_calls() if one.intent.tool == "wait_for"]
    found: list[PendingMessage] = []
    decided: dict[str, int] = {}  # where in `found` the last decision about a call is
    lost: list[Damage] = []
    recipient = Recipient.of(run.started)
    for record in filter(is_message, inbox.records(on_damage=lost.append)):
        message, sent = Message.of(record), record.time_ns / 1e9
        kind: Any = message.kind
        if kind == DECISION:
            kind = "approved" if message.approved else "denied"
        call = asking.get(message.about)
        made = PendingMessage(
            message.lsn,
            sent,
            kind,
            message.about,
            True,
            message.who,
            message.why,
            message.value,
            recipient.refuses(message),
        )
        if made.refused:
            about = made.about if call is None else str(call.lsn)
            found.append(replace(made, about=about, wanted=False))
        elif kind == SIGNAL and message.lsn > signals.taken(run.uid, message.about):
            wanted = any(message.about in names and sent <= until for names, until in waits)
            found.append(replace(made, wanted=wanted))
        elif kind == CANCEL:
            found.append(made)
        elif call is not None and message.lsn > call.heard:
            made = replace(made, about=str(call.lsn), wanted=sent <= call.asks_until)
            if (at := decided.get(made.about)) is not None:
                found[at] = made  # the last one counts
            else:
                decided[made.about] = len(found)
                found.append(made)
    return found


def _taken(run: Skimmed) -> Signals:
    signals = Signals()
    with suppress(KeyError, TypeError, ValueError):  # of a version that carries something else
        signals.restore(run.point.carried[Signals.name])
    for entry in run.tail:
        signals.observe(*entry)
    return signals


def awaited(args: Any) -> tuple[tuple[str, ...], float]:
    """The signals that a call waits for, by the arguments that are recorded of it, and until when;
    none where the log does not have them."""
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
