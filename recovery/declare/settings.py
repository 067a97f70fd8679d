"""Holds the options with which an agent's runs are executed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from signal import Signals
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from eventlog.light_dataclass import light_dataclass
from recovery.declare.budget import Budget
from recovery.declare.spec import AfterCrash, ToolSpec, is_async
from recovery.declare.tool_options import check_policy
from recovery.journal.call_key import UNDO_CALL
from recovery.option_checks import check_count, check_one_of, check_seconds, names_its_options
from recovery.values.sealed import checked_subject

if TYPE_CHECKING:
    from recovery.inspect.run_event import RunEvent


OnDrift = Literal["report", "stop"]
OnForgotten = Literal["stop", "serve"]
Subject = str | Callable[[Any], str | None]


class Options(TypedDict, total=False):
    """See RecoverableAgent."""

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
    subject: Subject | None
    on_forgotten: OnForgotten


class ChildOptions(Options, total=False):
    """Further options of run.child: as for a RecoverableAgent."""

    checkpoint_every_n: int | None


@names_its_options("RecoverableAgent")
@light_dataclass
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
    subject: Subject | None = None
    on_forgotten: OnForgotten = "stop"

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
        check_one_of("on_forgotten", self.on_forgotten, ("stop", "serve"))
        if self.subject is not None and (not callable(self.subject) or is_async(self.subject)):
            checked_subject(self.subject)
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

    def subject_of(self, task: Any) -> str | None:
        """To whom a run on this task belongs; None for no subject."""
        found = self.subject(task) if callable(self.subject) else self.subject
        return None if found is None else checked_subject(found)

    def is_due(self, steps: int, size: int) -> bool:
        """Whether a checkpoint is due after so many steps, and so many recorded bytes."""
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
