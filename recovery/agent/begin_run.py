"""What a run records when it begins, and when another process takes it up."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import xxhash

from recovery.agent_code.code_digest import digest_of
from recovery.engine.journal_writer import record
from recovery.history.signed_resolutions import kinds_signed
from recovery.inspect.inbox_check import check_not_begun
from recovery.journal.contract_version import CURRENT, Rules
from recovery.journal.events import RunResumed, RunStarted

if TYPE_CHECKING:
    from eventlog import EventLog
    from recovery.calls.child_runs import Runner
    from recovery.engine.lifecycle import RunSession
    from recovery.history.load import History


def begin(agent: Runner[Any], log: EventLog, history: History, life: RunSession, task: Any) -> int:
    """Record that the run begins, or is resumed; the number of recoveries that this is."""
    recovering = history.started is not None or history.restored is not None
    history.code = digest_of(agent.agent_fn)
    code = history.code or None
    if history.started is None:
        check_not_begun(agent.store.backend, life.run_id, log)
        parent = life.parent.packable() if life.parent is not None else None
        is_guarded = log.is_encrypted or agent.store.approvers is not None
        uid, rules = _new_uid(life.run_id, log, is_guarded), Rules(CURRENT)
        history.started = RunStarted(
            life.run_id,
            task,
            uid,
            parent,
            rules=rules,
            code=code,
            signed=kinds_signed(agent.store.approvers),
        )
        history.prologue.append(record(log, history, history.started))
        if is_guarded:
            log.commit()
    if recovering:
        history.recoveries += 1
        new_rules = history.rules_to_raise()
        event = RunResumed(history.recoveries, history.step, rules=new_rules, code=code)
        lsn = record(log, history, event)
        if new_rules is not None:
            history.prologue.append(lsn)
    life.on_first_record(log)
    log.commit_behind()
    return int(recovering)


def _new_uid(run_id: str, log: EventLog, is_guarded: bool) -> str:
    """The id of a new run, made of its own and of its log's.

    Invariant: a run that is begun again, for a power loss has taken its first record, has the same
    id. Then what was sent to it still counts, and what was executed has the same idempotency key.
    The id of a log stands in its segments, and is durable before the first record is appended.

    Where messages are to be known by a key, the id is a random one that no file of before can hold
    (``is_guarded``), and is committed before anything is executed.
    """
    if is_guarded:
        return os.urandom(16).hex()
    return bytes(xxhash.xxh3_128_digest(log.log_id + run_id.encode())).hex()
