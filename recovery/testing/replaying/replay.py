"""Replays a recorded run through its agent, and executes nothing."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import functools
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from eventlog.encryption import Encryption
from recovery.agent.recoverable import RecoverableAgent
from recovery.declare.spec import is_async
from recovery.errors import DivergenceError, InDoubtError, RunFailedError, Sides
from recovery.graph.graph import Graph
from recovery.graph.walk import Walk
from recovery.testing.replaying.execution import KINDS, Plan, RecordEndError, differs
from recovery.testing.replaying.recorded_run import Source, recorded_run
from recovery.testing.simulated.virtual_time import Clock, Loop, StuckError, bury, virtual_time
from recovery.text import shorten
from recovery.values.diff import differences
from recovery.values.pack import pack, unpack


@dataclass(frozen=True, slots=True)
class Replayed:
    """How a replay of run ``run_id`` ended: the agent returned ``result``, or raised ``error``, or
    came to the end of its record.

    ``record_end``: where that was, "" if the agent ended by itself. ``served``: the calls that got
    their recorded outcome. ``differences``: a line for each value that is another one than
    recorded, in a replay with ``swap=`` or of a redacted export.
    """

    run_id: str
    result: Any = None
    error: Exception | None = None
    record_end: str = ""
    served: int = 0
    differences: tuple[str, ...] = ()


def replay(
    source: Source,
    agent: Any,
    run_id: str | None = None,
    *,
    swap: Mapping[str, Callable[..., Any]] | None = None,
    encryption: Encryption | None = None,
) -> Replayed:
    """Replay a recorded run through its agent: every call gets its recorded outcome, and no tool is
    executed.

    The agent function runs from its first line, whatever checkpoints the run has, and its
    coroutines continue in the recorded order. Sleeps and waits take no time. Code of the agent
    outside of calls is executed. Nothing is written to ``source``, and no lock is taken. Can be
    called in a running event loop, and blocks it.

    Args:
        source: A store of runs (a CheckpointStore, a RunStore, or its path) with ``run_id``. Or a
            path: of the directory of a run's log, or of an export.
        agent: A RecoverableAgent, an agent function, or a Graph.
        run_id: The run in a store (None: ``source`` is one run).
        swap: Functions to call in place of tools, by the tool's name (none). Such a call is
            executed, and its recorded outcome is not served. After the first outcome that differs,
            arguments and messages are not compared. A call then gets the outcome of the next
            recorded call of its tool in its step, and ``differences`` has what differs.
        encryption: The keys of an encrypted run at a path (None). A store has its own.

    Raises DivergenceError, with the difference, where the agent does something else than its
    record; any exception of the agent that the record does not have; RecoveryError when the record
    has no beginning, because retention has removed it; DamagedRunError.
    """
    recorded = recorded_run(source, run_id, encryption)
    plan = Plan(recorded, dict(swap or {}), lenient=recorded.redacted)
    return replay_by(plan, agent)


def replay_by(plan: Plan, agent: Any) -> Replayed:
    """``replay`` of a run that was read."""
    made = _agent_of(agent, plan)
    if asyncio._get_running_loop() is None:
        return _Replay(plan, made).run()
    with ThreadPoolExecutor(1) as pool:
        run = contextvars.copy_context().run
        return pool.submit(run, _Replay(plan, made).run).result()


def _agent_of(agent: Any, plan: Plan) -> RecoverableAgent:
    """The agent, on the copy of the run."""
    if isinstance(agent, Graph):
        agent = Walk(agent).agent
    made = copy.copy(agent) if isinstance(agent, RecoverableAgent) else RecoverableAgent(agent)
    made.store = plan.recorded.store
    made.settings = replace(
        made.settings,
        checkpoint_every_n=None,
        checkpoint_every_bytes=None,
        max_recoveries=0,
        stop_on=(),
        on_event=None,
        budget=None,
        park_after_s=None,
        check_locals=False,
        on_drift="stop",
    )
    recover = type(made)._recover

    def replayed(task: Any, session: Any, takeover: bool, kind: Any) -> Any:
        return recover(made, task, session, takeover, functools.partial(KINDS[kind], plan))  # type: ignore[arg-type]

    made._recover = replayed  # type: ignore[method-assign]
    return made


class _Loop(Loop):
    """A loop of virtual time whose threads are real: their calls may have to wait for one
    another."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.pool = ThreadPoolExecutor(thread_name_prefix="recovery-commit replay")

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        return super().run_in_executor(executor or self.pool, func, *args)


class _Replay:
    """One replay."""

    def __init__(self, plan: Plan, agent: RecoverableAgent) -> None:
        self._plan, self._agent = plan, agent

    def run(self) -> Replayed:
        """Execute it, and compare its end with the record."""
        plan, made = self._plan, Replayed(self._plan.recorded.run_id)
        try:
            made = replace(made, result=self._executed())
        except RecordEndError as exc:
            made = replace(made, record_end=str(exc))
        except InDoubtError as exc:
            made = replace(made, record_end=f"calls in doubt: {', '.join(map(str, exc.calls))}")
        except StuckError:
            where = f"step {plan.run.step if plan.run else 0}: the agent waits for something else"
            made = replace(made, record_end=f"{where} than a call")
        except Exception as exc:
            failed = exc.__cause__ if isinstance(exc, RunFailedError) else None
            error = failed if isinstance(failed, Exception) else exc
            if not self._is_recorded(error):
                error.add_note("the record of the replayed run does not have this error")
                raise error from error.__cause__
            made = replace(made, error=error)
        else:
            self._check_result(made.result)
        served = plan.run.served if plan.run else 0
        return replace(made, served=served, differences=tuple(plan.differences))

    def _executed(self) -> Any:
        clock, run_id = Clock(), self._plan.recorded.run_id
        clock.begin()
        with virtual_time(clock):
            if not is_async(self._agent.agent_fn):
                return self._agent.resume_sync(run_id)["result"]
            loop = _Loop(clock)
            try:
                return loop.run_until_complete(self._agent.resume(run_id))["result"]
            finally:
                bury(loop)
                loop.pool.shutdown(wait=False, cancel_futures=True)

    def _is_recorded(self, exc: Exception) -> bool:
        recorded, run = self._plan.recorded, self._plan.run
        if isinstance(exc, DivergenceError) or run is None:
            return False
        known = {one.rpartition(".")[2] for one in recorded.raised}
        is_new = recorded.finished is None and run.caught_up()
        return type(exc).__name__ in known or self._plan.lenient or is_new

    def _check_result(self, result: Any) -> None:
        plan, run = self._plan, self._plan.run
        if plan.recorded.finished is None or run is None:
            return
        lsn, event = plan.recorded.finished
        known, now = event.result, unpack(pack(result, "result"))
        if not differs(known, now):
            return
        found = differences({"result": known}, {"result": now})
        was, text = f"the agent returned {shorten(known)}", f"it returned {shorten(now)}"
        if plan.lenient:
            plan.differences.append(f"LSN {lsn}, {was}: {text}")
            return
        raise DivergenceError(plan.recorded.run_id, run.step, Sides(lsn, was, text, found))
