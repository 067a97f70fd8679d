"""What a run records when it begins, and when another process takes it up."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from recovery._code import digest_of
from recovery._events import RunResumed, RunStarted
from recovery._herald import record
from recovery._inbox_check import check_not_begun
from recovery._rules import CURRENT, Rules

if TYPE_CHECKING:
    from eventlog import EventLog
    from recovery._agent import RecoverableAgent
    from recovery._history import History
    from recovery._stopping import Life


def begin(
    agent: RecoverableAgent[Any], log: EventLog, history: History, life: Life, task: Any
) -> int:
    """Record that the run begins, or is resumed; the number of recoveries that this is."""
    recovering = history.started is not None or history.restored is not None
    history.code = digest_of(agent.agent_fn)
    code = history.code or None
    if history.started is None:
        check_not_begun(agent.store.backend, life.run_id, log)
        parent = life.parent.packable() if life.parent is not None else None
        uid, rules = _new_uid(life.run_id), Rules(CURRENT)
        history.started = RunStarted(life.run_id, task, uid, parent, rules=rules, code=code)
        history.prologue.append(record(log, history, history.started))
    if recovering:
        history.recoveries += 1
        new_rules = history.rules_to_raise()
        event = RunResumed(history.recoveries, history.step, rules=new_rules, code=code)
        lsn = record(log, history, event)
        if new_rules is not None:
            history.prologue.append(lsn)
    life.born(log)
    log.commit_behind()
    return int(recovering)


def _new_uid(run_id: str) -> str:
    return os.urandom(16).hex()
