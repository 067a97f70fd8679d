"""How an agent's runs are executed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from signal import Signals
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict

from eventlog._dataclass import dataclass
from recovery._budget import Budget
from recovery._keys import UNDO_CALL
from recovery._options import check_count, check_names, check_seconds
from recovery._tool import AfterCrash, ToolSpec, is_async
from recovery._tool_options import check_policy

if TYPE_CHECKING:
    from recovery._run_event import RunEvent


OnDrift = Literal["report", "stop"]


class Options(TypedDict, total=False):
    """What else a RecoverableAgent can be given, each by name.

    ``max_recoveries``: how often in a row an error of the agent is recovered from in this process
    without getting a step further (3); the last one is raised, and the run can be resumed later.
    An error that says that the code is wrong (a TypeError and its like) is raised at once.
    ``after_crash``: what to do about calls in doubt, for all tools or by the name of the tool, in
    place of what the tools themselves say. ``stop_on``: signals to the process upon which runs stop
    at the next safe point, as by ``stop()``; a second one does what it did before.
    ``max_children``: how many child runs are at work at once (64): of all children of a run, of all
    their children, and so on; the others wait. That of the outermost run counts.
    ``on_event``: a function that is given each RunEvent once it is recorded, by the process that
    runs the agent; never what is replayed. The first is "run_started", or "run_resumed" with the
    ``progress`` so far. The run waits while it works, so it must be quick, and it is not to use the
    run. What it raises is logged. ``budget``: limits of a run, see Budget; another one may be given
    each time that the run is taken up. ``checkpoint_every_bytes``: a checkpoint is taken also at
    the end of a step behind which so much has been recorded since the last one (None: steps alone
    count), so that what a recovery has to read stays below that and a step more.
    ``park_after_s``: when all that a run has done for so long is to wait, and it will for longer
    still, it parks (WaitingError) instead of keeping its process; None waits in the process. Longer
    than what the agent does on its own between two calls.
    ``check_locals``: whether to warn, in log "recovery", of what a resumed run would lose or do in
    another order: local variables, objects that the state has twice, a changed ``run.task``, races
    (True). The agent's source is looked at once, its variables until the first checkpoint.
    ``on_drift``: what comes of code that does something else than is recorded, where no side effect
    can come of it: "report" (it goes on, and the report, the log and an event say what is
    different) or "stop" (DivergenceError).
    """

    max_recoveries: int
    after_crash: AfterCrash | Mapping[str, AfterCrash]
    stop_on: Sequence[Signals]
    max_children: int
    on_event: Callable[[RunEvent], Any] | None
    budget: Budget | None
    checkpoint_every_bytes: int | None
    park_after_s: float | None
    check_locals: bool
    on_drift: OnDrift


class ChildOptions(Options, total=False):
    """What run.child can be given besides: as for a RecoverableAgent."""

    checkpoint_every_n: int | None


@dataclass(frozen=True, slots=True)
class Settings:
    """Options with their defaults."""

    checkpoint_every_n: int | None = 3
    max_recoveries: int = 3
    after_crash: AfterCrash | Mapping[str, AfterCrash] | None = None
    stop_on: Sequence[Signals] = ()
    max_children: int = 64
    on_event: Callable[[RunEvent], Any] | None = None
    budget: Budget | None = None
    checkpoint_every_bytes: int | None = None
    park_after_s: float | None = None
    check_locals: bool = True
    on_drift: OnDrift = "report"

    def __new__(cls, *args: Any, **given: Any) -> Self:
        check_names("RecoverableAgent", given, cls.__dataclass_fields__)
        return object.__new__(cls)

    def __post_init__(self) -> None:
        check_count("checkpoint_every_n", self.checkpoint_every_n, none=True)
        check_count("checkpoint_every_bytes", self.checkpoint_every_bytes, none=True)
        if self.checkpoint_every_n is None and self.checkpoint_every_bytes is not None:
            raise ValueError(
                "checkpoint_every_n=None takes no checkpoints, checkpoint_every_bytes= asks for "
                "some: leave one of them out"
            )
        check_count("max_recoveries", self.max_recoveries, 0)
        check_count("max_children", self.max_children)
        check_seconds("park_after_s", self.park_after_s, above=False)
        if self.on_drift not in ("report", "stop"):
            raise ValueError(f'on_drift is "report" or "stop", not {self.on_drift!r}')
        given = self.after_crash
        for policy in given.values() if isinstance(given, Mapping) else [given]:
            if policy is not None:
                check_policy(policy)
        listener: object = self.on_event
        if listener is not None and (not callable(listener) or is_async(listener)):
            raise TypeError(f"on_event is a plain function of a RunEvent, not {listener!r}")
        budget: object = self.budget
        if budget is not None and not isinstance(budget, Budget):
            raise TypeError(f"budget is a Budget, as in Budget(steps=100), not {budget!r:.80}")
        stop_on: Any = self.stop_on
        if isinstance(stop_on, str | int) or not all(isinstance(one, int) for one in stop_on):
            raise TypeError(
                f"stop_on is a list of signals, as in [signal.SIGTERM], not {stop_on!r:.80}"
            )

    def is_due(self, steps: int, size: int) -> bool:
        """Whether to take a checkpoint behind so many steps, of so many recorded bytes."""
        if self.checkpoint_every_n is None:
            return False
        limit = self.checkpoint_every_bytes
        much = limit is not None and steps > 0 and size >= limit
        return much or steps >= self.checkpoint_every_n

    def adapted(self, spec: ToolSpec) -> ToolSpec:
        """How calls of a tool are recorded in these runs."""
        given = self.after_crash
        if given is None:
            return spec
        policy = given.get(spec.name) if isinstance(given, Mapping) else given
        if policy is None or spec.waits or spec.name == UNDO_CALL or policy == spec.after_crash:
            return spec
        return replace(spec, after_crash=policy, reconcile=None)
