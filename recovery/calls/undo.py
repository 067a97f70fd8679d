"""Undoes a run's calls: makes their compensations, newest first, each a recorded call.

An undo is a repeatable call, "run.undo", inside which the compensations are made. So after a crash,
compensations that ended are served, those that were interrupted are in doubt by their own policy,
and the same calls are undone in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from eventlog import Damage
from eventlog.light_dataclass import light_dataclass
from recovery.agent_code.warn_once import warn_of_undo
from recovery.declare.scope import current_call
from recovery.declare.spec import ToolSpec, function_name, is_async, spec_of
from recovery.declare.tool import is_same_tool, undoable_tools
from recovery.engine.drive import drive, drive_async
from recovery.engine.execution import Execution
from recovery.errors import DamagedRunError, RecoveryError, UndoError
from recovery.history.first_record import started_of
from recovery.history.load import decoded
from recovery.journal.call import Call
from recovery.journal.call_key import UNDO_CALL, UNDO_PREFIX
from recovery.journal.forked_from import ForkedFrom
from recovery.replay.call_view import recorded_call_view
from recovery.replay.recorded_call import RecordedCall
from recovery.replay.undo_plan import UndoPlan
from recovery.text import SEALED_TEXT


@light_dataclass
class _Compensation:
    """A compensation that is to be made."""

    spec: ToolSpec
    call: Call


def undo_call(
    run: Execution, known: dict[str, ToolSpec], fleeting: Collection[str] = ()
) -> ToolSpec:
    """The call that undoes the run's calls so far, with the tools of these names.

    ``fleeting``: the names that another process may not know.
    """

    def steps(since: int) -> Generator[_Compensation, Any, list[dict[str, Any]]]:
        call = current_call()
        assert call is not None
        return _compensate(run, known, UndoPlan(call.lsn, since), fleeting)

    async def undo_async(since: int) -> list[dict[str, Any]]:
        return await drive_async(
            steps(since),
            lambda one: run.perform_async(one.spec, (one.call.args, one.call.kwargs), _id(one)),
        )

    def undo_sync(since: int) -> list[dict[str, Any]]:
        return drive(
            steps(since),
            lambda one: run.perform_sync(one.spec, (one.call.args, one.call.kwargs), _id(one)),
        )

    return ToolSpec(
        UNDO_CALL,
        undo_async if run.is_async else undo_sync,
        "retry",
        raises=(UndoError,),
        acts=undo_call,
    )


def prepare(run: Execution, since: int, tools: Iterable[Callable[..., Any]]) -> ToolSpec:
    """The call that ``run.undo()`` makes.

    It knows the tools that are given, those that this run has called in this process, and those in
    modules.
    """
    call = run.current_scope().call
    if call is not None:
        raise RecoveryError(f"run.undo() inside a call of {call.tool}: an undo is the agent's own")
    if not 0 <= since <= run.step:
        raise ValueError(f"since is a step of the run, 0 to {run.step}, not {since!r}")
    known = by_name(tools, {**undoable_tools, **run.undoable})
    if run.settings.checkpoint_every_n is None:  # then each process makes all calls again
        return undo_call(run, known)
    lasting = by_name(tools, undoable_tools)
    fleeting = [
        name
        for name, spec in known.items()
        if name not in lasting or not is_same_tool(lasting[name], spec)
    ]
    return undo_call(run, known, fleeting)


def _id(one: _Compensation) -> str:
    return str(one.call.lsn)


def _compensate(
    run: Execution, known: dict[str, ToolSpec], plan: UndoPlan, fleeting: Collection[str]
) -> Generator[_Compensation, Any, list[dict[str, Any]]]:
    with run.mutex:
        try:
            todo = read_plan(run, plan, known)
        except RecoveryError as exc:  # not the agent's own error: it is not recorded
            run.stop(exc)
    for tool in sorted({one.intent.tool for one in todo} & {*fleeting}):
        warn_of_undo(run.run_id, tool, known[tool].function)
    done: list[dict[str, Any]] = []
    for number, one in enumerate(todo):
        call = recorded_call_view(run, one)
        run.subjects.note_call(one.lsn, one.intent.subject)  # to whom the compensation belongs too
        compensation = _Compensation(_compensating(known[call.tool], call, one.value), call)
        for _ in range(plan.repeats.get(one.lsn, 0)):
            with suppress(Exception):  # it failed, as recorded, and was decided to be repeated
                yield compensation
        try:
            result = yield compensation
        except Exception as exc:
            left = [later.lsn for later in todo[number + 1 :]]
            raise UndoError(
                run.run_id,
                [each["call"] for each in done],
                call.lsn,
                f"{call.tool}: {type(exc).__name__}: {SEALED_TEXT if call.subject else exc}",
                left,
            ) from exc
        done.append(
            {"call": call.lsn, "tool": call.tool, "call_id": call.call_id, "result": result}
        )
    return done


def _compensating(spec: ToolSpec, call: Call, outcome: Any) -> ToolSpec:
    """The compensation as a tool: under its own policy, recorded with the call's arguments."""
    assert spec.undo is not None
    policy = spec_of(spec.undo)
    function = policy.function

    def compensate(*args: Any, **kwargs: Any) -> Any:
        return function(call, outcome)

    async def compensate_async(*args: Any, **kwargs: Any) -> Any:
        return await function(call, outcome)

    return replace(
        policy,
        name=f"{UNDO_PREFIX}{call.tool}",
        undo=None,
        identity=None,
        owner="",
        function=compensate_async if is_async(function) else compensate,
        acts=undo_call,
    )


def read_plan(run: Execution, plan: UndoPlan, known: dict[str, ToolSpec]) -> list[RecordedCall]:
    """The calls to undo, newest first. Raises, before anything is executed, if they cannot be
    undone."""
    lost: list[Damage] = []
    plan.first_lsn = run.records.oldest_lsn
    origin = ForkedFrom.of(started_of(run.records))
    if origin is not None:
        plan.forked, plan.base = origin.until, origin.base
    for entry in decoded(run.records, 1, [], lost):
        plan.add(*entry)
    if lost:
        raise DamagedRunError(run.run_id, lost)
    if not plan.begins_in_the_log:
        raise RecoveryError(
            f"run {run.run_id!r} cannot be undone{f' since step {plan.since}' * bool(plan.since)}: "
            f"the records before LSN {plan.first_lsn} were removed from its log by retention, and "
            "with them the calls that they knew of. run.undo(since=step) undoes what came after a "
            "step that the log still has. Nothing was executed."
        )
    doubt, others = plan.in_doubt(), plan.in_flight()
    if (doubt or others) and run.in_flight > 1:
        raise RecoveryError(
            f"run.undo() of run {run.run_id!r} began while other calls of the run were in flight "
            f"(LSN {', '.join(str(one.lsn) for one in (*doubt, *others))}): await them first. "
            "Nothing was undone."
        )
    if doubt:
        run.park([recorded_call_view(run, one) for one in doubt], undo=True)
    todo = plan.calls_to_undo()
    missing = [one for one in todo if one.intent.tool not in known]
    if missing:
        what = ", ".join(
            f"{one.intent.tool} (LSN {one.lsn}, undone by {one.intent.undo})" for one in missing
        )
        raise RecoveryError(
            f"run {run.run_id!r} cannot be undone: no tool with undo= is known by the name of "
            f"{what}. Give it: undo(..., tools=[...]). Nothing was executed."
        )
    return todo


def by_name(
    tools: Iterable[Callable[..., Any]], known: Mapping[str, ToolSpec | None]
) -> dict[str, ToolSpec]:
    """The tools that have compensations, by name; given tools precede known ones."""
    given: dict[str, ToolSpec] = {}
    if callable(tools):
        name = function_name(tools)
        raise TypeError(f"tools is a list of tools: write tools=[{name}], not tools={name}")
    for spec in map(spec_of, tools):
        if spec.name in given:
            raise ValueError(f"two of the tools are called {spec.name!r}")
        given[spec.name] = spec
    found = {**known, **given}
    return {name: spec for name, spec in found.items() if spec is not None and spec.undo}
