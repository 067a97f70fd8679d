"""Records that a run begins, or that another process resumes it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import xxhash

from recovery.agent_code.agent_name import agent_name
from recovery.agent_code.code_digest import digest_of
from recovery.control.relatives import check_parent
from recovery.engine.journal_writer import record
from recovery.history.signed_resolutions import kinds_signed
from recovery.inspect.inbox_check import check_not_begun
from recovery.journal.contract_version import CURRENT, Rules
from recovery.journal.events import RunResumed, RunStarted
from recovery.values.sealed import Subjects

if TYPE_CHECKING:
    from eventlog import WritableLog
    from recovery.engine.run_session import RunSession
    from recovery.history.checkpoint_store_base import CheckpointStoreBase
    from recovery.history.load import History


def begin(
    store: CheckpointStoreBase,
    agent_fn: Callable[..., Any] | None,
    log: WritableLog,
    history: History,
    session: RunSession,
    task: Any,
) -> int:
    """Record that the run begins, or is resumed; the number of recoveries that this is."""
    if history.started is not None and session.parent is None:  # no parent runs it
        check_parent(store, history.started)
    recovering = history.started is not None or history.restored is not None
    owners, is_owner_new = history.tallies.owners, not session.fence
    if is_owner_new:  # the epochs of an imported log begin at 1 again
        session.fence = max(log.epoch, owners.fence + 1)
    history.code = digest_of(agent_fn) if agent_fn is not None else ""
    code = history.code or None
    if history.started is None:
        check_not_begun(store.backend, session.run_id, log)
        parent = session.parent.packable() if session.parent is not None else None
        is_guarded = log.is_encrypted or store.approvers is not None
        submission = session.submission
        uid = submission.uid if submission is not None else ""
        uid, rules = uid or _new_uid(session.run_id, log, is_guarded), Rules(CURRENT)
        subject = Subjects(session.subject) if session.subject else None
        history.started = RunStarted(
            session.run_id,
            task,
            uid,
            parent,
            rules=rules,
            code=code,
            signed=kinds_signed(store.approvers),
            agent=agent_name(agent_fn) if agent_fn is not None else None,
            queued=submission.queued if submission is not None else None,
            fence=session.fence,
            subject=subject,
            agent_object=session.agent_object,
        )
        history.prologue.append(record(log, history, history.started))
        if is_guarded:
            log.commit()
    if recovering:
        history.recoveries += 1
        new_rules = history.rules_to_raise()
        event = RunResumed(
            history.recoveries,
            history.step,
            rules=new_rules,
            code=code,
            fence=session.fence,
            former=owners.of_record(log.former_owner()) if is_owner_new else None,
        )
        lsn = record(log, history, event)
        if new_rules is not None:
            history.prologue.append(lsn)
    session.on_first_record(log)
    log.commit_behind()
    return int(recovering)


def _new_uid(run_id: str, log: WritableLog, is_guarded: bool) -> str:
    """The uid of a new run, derived from its id and its log's.

    Invariant: if a power loss takes the first record and the run begins again, it has the same uid.
    So messages that were sent to it still count, and executed calls keep their idempotency keys.
    The log's id is in its segments, and is durable before the first record is appended.

    If messages must be signed (``is_guarded``), the uid is a random one that no earlier file can
    hold, and is committed before anything is executed.
    """
    if is_guarded:
        return os.urandom(16).hex()
    return bytes(xxhash.xxh3_128_digest(log.log_id + run_id.encode())).hex()
