"""Records an error of an agent's own code, and decides whether to recover from it."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import suppress

from eventlog import RefusedValueError, WritableLog
from recovery.agent.ending import retry_options
from recovery.calls.cancelled_calls import check_open
from recovery.control.cancel import cancel_children
from recovery.engine.execution import Execution
from recovery.engine.journal_writer import record
from recovery.errors import (
    DamagedRunError,
    ParkedError,
    PermanentError,
    RecoveryError,
    RunCancelledError,
    RunFailedError,
    Stop,
    UnrecordedResultError,
)
from recovery.history.load import History
from recovery.journal.events import AgentRaised, CallAbandoned, CallFailed, RunFailed
from recovery.journal.failure import failure
from recovery.journal.user_code import place_of
from recovery.values.sealed import Subjects

_logger = logging.getLogger("recovery")

BACKOFF_S, BACKOFF_MAX_S = 0.05, 5.0

# Errors that say that the code is wrong. A replay gives the agent the same results again, so the
# same line raises the same error again.
_OF_THE_CODE = (
    TypeError,
    AttributeError,
    NameError,
    ImportError,
    SyntaxError,
    AssertionError,
    LookupError,
    ArithmeticError,
    NotImplementedError,
    RecursionError,
    RefusedValueError,
    RecoveryError,
)


def can_get_better(exc: BaseException) -> bool:
    """Whether the agent may get past this error when it is run again with unchanged code."""
    return not any(isinstance(one, _OF_THE_CODE) for one in _leaves(exc))


def note_error(
    log: WritableLog, history: History, run: Execution, exc: Exception, *, goes_on: bool
) -> None:
    """Record the agent's exception; durable soon. A failure of the log is only logged."""
    sealed, what = _failure_of(run, exc)
    call = exc.lsn if isinstance(exc, UnrecordedResultError) else 0
    place = place_of(exc.__traceback__)
    event = AgentRaised(
        what.type,
        what.message,
        what.traceback,
        run.step,
        place,
        goes_on,
        call,
        sealed=sealed,
        of_code=None if can_get_better(exc) else True,
    )
    try:
        record(log, history, event)
        log.commit_behind()
    except Exception as failed:
        _logger.warning(
            "run %s: that %s was raised is not recorded: %s", run.run_id, what.type, failed
        )


def note_unbegun(log: WritableLog, history: History, run: Execution) -> None:
    """Record which calls were interrupted before they began, so that they are not in doubt.

    If the log has failed, they are in doubt. Nothing is recorded of a call that awaits approval:
    without the approval it is not in doubt, and with it, it may begin in the next process.
    """
    with suppress(Exception):
        for one in run.cut_short:
            if not (one.begun or one.spec.needs_approval):
                event = CallAbandoned(one.call.lsn, one.call.attempt, "cancelled")
                record(log, history, event)


def note_stop(log: WritableLog, history: History, run: Execution) -> None:
    """Record the rest when the run was stopped."""
    match run.stopped:
        case RunCancelledError(who=who):
            cancel_children(run.store, log, run.run_id, who)
        case ParkedError() | RunFailedError() | DamagedRunError():
            pass  # it has a record of its own; or nothing may be written
        case RecoveryError() as error:
            note_error(log, history, run, error, goes_on=False)


class Recoveries:
    """Counts how often in a row, in this process, an agent has raised without completing a step."""

    def __init__(self, limit: int) -> None:
        self._limit, self._count, self._furthest = limit, 0, -1

    def may_go_on(self, log: WritableLog, history: History, run: Execution, exc: Exception) -> bool:
        """Record what the agent raised; whether the run is recovered from it by itself."""
        self._count = 1 if run.step > self._furthest else self._count + 1
        self._furthest = max(self._furthest, run.step)
        goes_on = self._count <= self._limit and can_get_better(exc)
        note_error(log, history, run, exc, goes_on=goes_on)
        return goes_on

    @property
    def pause_s(self) -> float:
        """How long to wait before the next recovery."""
        return float(min(BACKOFF_S * 2 ** (self._count - 1), BACKOFF_MAX_S))


def end_if_permanent(log: WritableLog, history: History, run: Execution, exc: Exception) -> None:
    """Record that the run failed, and raise RunFailedError, if trying again changes nothing.

    That is so for a PermanentError, and for the recorded failure of a call that the agent let
    through, as itself or as the cause of what it raised (``raise ... from``): replay would raise it
    again at the same place.
    """
    failed = {id(one.error): one.call for one in run.failures}
    leaves = list(_leaves(exc, failed))
    calls = [call for leaf in leaves if (call := _failed_call(leaf, failed))]
    if len(calls) < len(leaves) and not any(isinstance(leaf, PermanentError) for leaf in leaves):
        return
    try:
        with run.mutex:
            check_open(run)
    except Stop as stop:
        raise stop.error from exc
    sealed, what = _failure_of(run, exc)
    call = calls[0] if calls else 0
    record(log, history, RunFailed(what.type, what.message, what.traceback, call, sealed))
    log.commit()
    if not call:
        cancel_children(run.store, log, run.run_id, "")
    cause = what.type, what.message, what.traceback
    options = retry_options(history.started, run.store.backend)
    raise RunFailedError(run.run_id, cause, call, options, sealed is not None) from exc


def _failure_of(run: Execution, exc: Exception) -> tuple[Subjects | None, CallFailed]:
    """Whose keys seal an exception, and how it is recorded: sealed, it keeps what subjects said."""
    sealed = run.sealed_by(exc)
    return sealed, failure(0, exc, run.secrets if sealed else run.scrubber)


def _failed_call(exc: BaseException | None, failed: dict[int, int]) -> int:
    """The call (LSN) whose failure an exception is, or is caused by; 0 if there is none."""
    for _ in range(sys.getrecursionlimit()):
        if exc is None or id(exc) in failed:
            break
        exc = exc.__cause__
    return failed.get(id(exc), 0)


def _leaves(exc: BaseException, known: dict[int, int] | None = None) -> Iterator[BaseException]:
    """The exceptions in a group, as task groups raise them; else the exception itself. A group that
    is itself ``known`` counts as one exception."""
    if not isinstance(exc, BaseExceptionGroup) or id(exc) in (known or {}):
        yield exc
        return
    for part in exc.exceptions:
        yield from _leaves(part, known)
