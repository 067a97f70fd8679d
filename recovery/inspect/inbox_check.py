"""Compares a run with its inbox, to notice that one of them was lost or replaced.

The run's log has the number and the time of the newest message that the run has read. Each message
has the LSN up to which the run's log was durable when it was sent. So a missing or replaced inbox
is noticed, and so is a log that has lost records, or was replaced.
"""

from __future__ import annotations

from eventlog import ReadableLog, WritableLog
from recovery.errors import RecoveryError
from recovery.journal.inbox_messages import Message, is_message, is_repair
from recovery.replay.taken_signals import Signals
from recovery.stores.protocol import RunStore
from recovery.text import shown_time, store_option


def inbox_damage(inbox: ReadableLog | None, signals: Signals, uid: str) -> str:
    """The problem of the inbox of run ``uid``, by what the run has read of it; "" if none."""
    lsn, sent = signals.newest_read(uid)
    if not lsn:
        return ""
    if inbox is None:
        return f"its inbox is gone, of which it has read message {lsn}"
    if inbox.tail().next_lsn <= lsn:
        last = inbox.tail().next_lsn - 1
        return f"its inbox ends with message {last}, and it has read message {lsn}"
    record = inbox.fetch({lsn}).get(lsn)
    if record is None or is_repair(record) or not sent or record.time_ns == sent:
        return ""  # damage in it is reported by the reader
    return (
        f"its inbox is another one: message {lsn} was sent at {shown_time(record.time_ns / 1e9)}, "
        f"and the one that it has read at {shown_time(sent / 1e9)}"
    )


def lost_inbox(run_id: str, damage: str, store: RunStore | None = None) -> RecoveryError:
    """The error for an inbox other than the one that the run has read messages from."""
    return RecoveryError(
        f"run {run_id!r} cannot be resumed safely: {damage}. Messages that were not read are lost "
        "with it: signals, decisions, perhaps a request to end the run. Nothing was executed. Put "
        f"the directory `inbox` of the run back; or let the run continue without it: `recovery "
        f"accept {run_id}{store_option(store)}`, store.run({run_id!r}).accept(). What is sent from "
        "then on counts."
    )


def check_not_begun(store: RunStore, run_id: str, log: WritableLog) -> None:
    """Raise RecoveryError if a run, whose log does not say how it began, has begun nevertheless: it
    would repeat what it has done."""
    first = next(log.records(1, on_damage=lambda damage: None), None)
    if first is not None and is_message(first):
        raise RecoveryError(
            f"run {run_id!r} cannot be resumed: its log begins with a message, and nothing says "
            "how the run began. These are the files of an inbox. Nothing was executed. Put the "
            "files of the run back, or use another run_id."
        )
    inbox = store.inbox(run_id)
    if inbox is None:
        return
    with inbox:
        sent = filter(is_message, inbox.records(on_damage=lambda damage: None))
        known = max((Message.of(record).run_lsn for record in sent), default=0)
    if known > log.last_lsn:
        raise lost_log(run_id, known, log.last_lsn)


def lost_log(run_id: str, known: int, last_lsn: int) -> RecoveryError:
    """The error for a log that ends before an LSN that a message names."""
    return RecoveryError(
        f"run {run_id!r} cannot be resumed safely: its inbox knows of {known} records in its log, "
        f"which has {last_lsn}. The log is another one, an old copy, or was lost. Nothing was "
        "executed, for what the run has done would be done again. Put the files of its log back; "
        "or use another run_id."
    )
