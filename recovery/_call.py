"""The life of one call, written once for plain and for async code.

``protocol`` does no waiting itself: it yields an effect, and a driver (see _run) performs it.
"""

from __future__ import annotations

import functools
import inspect
import logging
import sys
import time
import traceback
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from eventlog import Packed, RefusedValueError
from recovery._core import RunCore, describe, shorten
from recovery._errors import InDoubtError, ToolError
from recovery._events import (
    CallFailed,
    CallIntended,
    CallResolved,
    CallRetried,
    CallReturned,
    RunParked,
)
from recovery._keys import CallKey, call_scope, idempotency_key
from recovery._replay import RecordedCall
from recovery._tool import Arguments, Call, Resolution, Scope, ToolSpec
from recovery._values import OutcomeUnknown, digest, pack, pack_arguments, unpack

_logger = logging.getLogger("recovery")

ARGS_SIZE_MAX = 4 << 10  # arguments up to this size are recorded whole, larger ones by digest
ERROR_SIZE_MAX = 64 << 10  # an exception with larger arguments becomes a ToolError
TEXT_SIZE_MAX = 16 << 10  # of a recorded message or traceback


@dataclass(frozen=True, slots=True)
class Wait:
    """Let other coroutines go on until ``ready()``; the answer is whether it became so, or None
    where they cannot go on meanwhile: plain code in the thread of the event loop."""

    ready: Callable[[], bool]
    # Whether being stuck means that the code has changed (so wait long), or only that it asks for
    # its recorded results in another order (so do not).
    strict: bool


@dataclass(frozen=True, slots=True)
class Commit:
    """Make what is appended durable."""


@dataclass(frozen=True, slots=True)
class Invoke:
    """Call the user's function in ``scope``."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    scope: Scope | None


Effect = Wait | Commit | Invoke

Outcome = CallReturned | CallFailed | CallResolved


@dataclass(frozen=True, slots=True)
class Settled:
    """How a call ended: its event, where that is, and the exception if it was raised just now."""

    lsn: int
    event: Outcome
    cause: Exception | None = None


def protocol(
    run: RunCore, spec: ToolSpec, given: Arguments, call_id: str
) -> Generator[Effect, Any, Any]:
    """The life of a call; returns its result or raises its exception."""
    run.check()
    scope = run.here()
    packed = pack_arguments(*_canonical(spec.function, *given), f"{spec.name}(...)")
    key = CallKey(scope.path, spec.name, call_id, digest(packed))
    key = key.nth(scope.next_occurrence(key))
    recorded = run.replay.claim(key)
    if recorded is not None and recorded.done:
        yield from _in_turn(run, recorded.last_lsn, lambda: True)
        run.served += 1
        assert isinstance(recorded.last, Outcome)
        return _serve(run, spec, recorded.lsn, Settled(recorded.last_lsn, recorded.last))
    run.in_flight += 1
    try:
        settled = None
        if recorded is None:
            call = yield from _intend(run, spec, key, packed, given)
        else:
            call = _call(run, recorded.lsn, key, given, (recorded.attempts, recorded.time_ns))
            if not recorded.to_retry:
                settled = yield from _settle(run, spec, recorded, call)
            if settled is None:
                call = replace(call, attempt=call.attempt + 1)
                run.emit(CallRetried(call.lsn, call.attempt))
        if settled is None:
            if not spec.repeatable:
                # Invariant: no side effect starts before its intent is durable.
                yield Commit()
            settled = yield from _execute(run, spec, call)
        if recorded is not None:
            recorded.last = settled.event  # which covers what it had recorded inside
    finally:
        run.in_flight -= 1
    # What was recorded is served before what is new, as it was the first time.
    run.replay.add_outcome(settled.lsn)
    yield from _in_turn(run, settled.lsn, run.has_begun)
    return _serve(run, spec, call.lsn, settled)


def _in_turn(run: RunCore, outcome: int, ready: Callable[[], bool]) -> Generator[Effect, Any, None]:
    """Wait until all that was recorded before this outcome has been done again."""
    try:
        yield Wait(lambda: ready() and run.replay.is_next(outcome), strict=False)
        run.check()
        run.replay.wait_no_more(outcome)
    finally:  # also when its task is cancelled: nobody is to wait for it
        run.replay.done_again(outcome)


def _intend(
    run: RunCore, spec: ToolSpec, key: CallKey, packed: Packed, given: Arguments
) -> Generator[Effect, Any, Call]:
    """A call that the record does not know: record that it is about to be made."""

    def found() -> str:
        return f"{key}: {shorten(unpack(packed))}, {_call_site()}"

    other = run.replay.resembling(key)
    if other is not None:
        run.diverge(other.lsn, describe(other), found())
    # A recorded call that nobody has made yet may be this one, changed. Should it be, nothing of
    # what the changed code does may get into the record, or the code that made the record could
    # not go on with it either.
    ready = yield Wait(run.caught_up, strict=True)
    if not ready and not (ready is None and spec.repeatable):
        lsn, missing = run.missing()
        run.diverge(lsn, missing or "the loop of steps goes on from a checkpoint", found())
    run.check()
    small = packed if len(packed) <= ARGS_SIZE_MAX else None
    event = CallIntended(key.scope, key.tool, key.call_id, key.digest, key.occurrence,
                         spec.after_crash, small, len(packed))  # fmt: skip
    return _call(run, run.emit(event), key, given, (1, time.time_ns()))


def _settle(
    run: RunCore, spec: ToolSpec, recorded: RecordedCall, call: Call
) -> Generator[Effect, Any, Settled | None]:
    """A call in doubt: what its policy says became of it; None if it is to be made again."""
    who = f"after_crash={spec.after_crash}"
    match spec.after_crash:
        case "retry":
            how = Resolution.retry()
        case "report":
            how = Resolution.outcome(OutcomeUnknown(spec.name, call.idempotency_key))
        case "reconcile":
            how = yield from _reconcile(run, spec, call)
            who = "reconcile"
        case "park":
            how = Resolution.unknown()
    run.settled.append(f"{call}: {how.how} ({who})")
    _logger.info("run %s: was in doubt: %s", run.run_id, run.settled[-1])
    if how.how == "unknown":
        calls = [call, *_others_in_doubt(run)]
        run.emit(RunParked([one.lsn for one in calls]))
        run.commit()
        run.stop(InDoubtError(run.run_id, calls))
    if how.how == "retry" and spec.repeatable:
        return None
    value = pack(how.value, f"resolution of {spec.name}")
    event = CallResolved(recorded.lsn, how.how, value, who)
    lsn = run.emit(event)
    return None if how.how == "retry" else Settled(lsn, event)


def _others_in_doubt(run: RunCore) -> list[Call]:
    """Calls that would park next, so that all of them can be resolved at once."""
    found = []
    for other in run.replay.in_doubt():
        if other.intent.after_crash == "park":
            given: Arguments = ((), {})
            match other.intent.args:
                case [list(args), dict(kwargs)]:
                    given = tuple(args), kwargs
            attempt = other.attempts, other.time_ns
            found.append(_call(run, other.lsn, other.key, given, attempt))
    return found


def _reconcile(run: RunCore, spec: ToolSpec, call: Call) -> Generator[Effect, Any, Resolution]:
    assert spec.reconcile is not None
    try:
        # In no scope: what it finds out is true now, and is not to be served from the log later.
        how = yield Invoke(spec.reconcile, (call,), {}, None)
    except Exception:
        _logger.exception("run %s: reconciling failed, the call stays in doubt: %s",
                          run.run_id, call)  # fmt: skip
        return Resolution.unknown()
    if not isinstance(how, Resolution):
        _logger.error("run %s: reconcile of %s is to return a Resolution, not %r; the call stays "
                      "in doubt", run.run_id, spec.name, how)  # fmt: skip
        return Resolution.unknown()
    return how


def _execute(run: RunCore, spec: ToolSpec, call: Call) -> Generator[Effect, Any, Settled]:
    run.executed += 1
    event: CallReturned | CallFailed
    try:
        scope = Scope(run, call_scope(call.lsn), call)
        value = yield Invoke(spec.function, call.args, call.kwargs, scope)
        event = CallReturned(call.lsn, pack(value, f"result of {spec.name}"))
        # A stop that the tool has swallowed, of a call inside it: it knows nothing of the outcome.
        scope.check()
        try:
            return Settled(run.emit(event), event)
        except RefusedValueError as exc:  # too large
            raise RefusedValueError(f"result of {spec.name}", exc.reason) from None
    except Exception as exc:
        scope.check()
        event = failure(call.lsn, exc)
        return Settled(run.emit(event), event, exc)
    except BaseException:
        scope.check()
        raise


def _serve(run: RunCore, spec: ToolSpec, call: int, settled: Settled) -> Any:
    """Hand an outcome to the agent: the same on the first execution as on replay."""
    match settled.event:
        case CallReturned(value=value) | CallResolved(how="outcome", value=value):
            packed = value if type(value) is Packed else pack(value, "outcome")
            run.remember(packed, settled.lsn)
            return unpack(packed)
        case CallFailed() as failed:
            if type(failed.args) is Packed:
                failed = replace(failed, args=unpack(failed.args))
            exc = spec.rebuild(failed)
            if settled.cause is None:
                exc.add_note(f"recorded in LSN {settled.lsn}:\n{failed.traceback}")
        case CallResolved(value=reason):
            reason = unpack(reason) if type(reason) is Packed else reason
            exc = ToolError("resolved as failed", str(reason), "")
    run.failures.append((exc, call))
    raise exc from settled.cause


def failure(call: int, exc: Exception) -> CallFailed:
    """The event for an exception."""
    kind = type(exc)
    given: tuple[Any, ...] = exc.args
    if isinstance(exc, RefusedValueError):
        given = exc.value_path, exc.reason
    elif isinstance(exc, OSError) and exc.filename is not None:
        given = exc.errno, exc.strerror, exc.filename, None, exc.filename2
        given = given if exc.filename2 is not None else given[:3]
    args: Packed | None
    try:
        args = pack(list(given), "args")
    except RefusedValueError:
        args = None
    if args is not None and len(args) > ERROR_SIZE_MAX:
        args = None
    try:
        message = str(exc)
    except Exception as error:  # of the user's __str__
        message = f"<no message: {kind.__name__}.__str__ raised {type(error).__name__}>"
    text = "".join(traceback.format_exception(exc))
    if len(text) > TEXT_SIZE_MAX:  # where it was raised is in front, what it says is at the end
        half = TEXT_SIZE_MAX // 2 - 5
        text = f"{text[:half]} ... {text[-half:]}"
    return CallFailed(call, f"{kind.__module__}.{kind.__qualname__}", clean(message), args,
                      clean(text))  # fmt: skip


def clean(text: str) -> str:
    """Text that UTF-8 can hold, of bounded size."""
    return text[:TEXT_SIZE_MAX].encode("utf-8", "replace").decode()


def _call(run: RunCore, lsn: int, key: CallKey, given: Arguments, attempt: tuple[int, int]) -> Call:
    number, started_ns = attempt
    return Call(run.run_id, lsn, key.scope, key.tool, *given, key.call_id,
                idempotency_key(run.uid, key), number, started_ns)  # fmt: skip


@functools.lru_cache(maxsize=1024)
def _signature(function: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(function)


def _canonical(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Arguments:
    """The same arguments by position or by name are the same arguments."""
    try:
        bound = _signature(function).bind(*args, **kwargs)
    except (TypeError, ValueError):  # no signature to be had, or a call that is about to fail
        return args, kwargs
    return bound.args, bound.kwargs


def _call_site() -> str:
    """File and line of the agent's code that makes the present call."""
    here = Path(__file__).parent
    frame = sys._getframe(1)
    while frame.f_back is not None and here in Path(frame.f_code.co_filename).parents:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
