"""Defines a call as its tool or an operator sees it, and how it may be resolved. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from recovery.text import SEALED_TEXT, shorten
from recovery.values.sealed import KeyIds

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Resolution:
    """How a call in doubt is resolved: made by the class methods."""

    how: Literal["outcome", "retry", "fail", "unknown"]
    value: Any = None

    @classmethod
    def outcome(cls, value: Any) -> Resolution:
        """It happened, and ``value`` is its result. It is not executed again."""
        return cls("outcome", value)

    @classmethod
    def retry(cls) -> Resolution:
        """It did not happen (or is safe to repeat): execute it, under the same idempotency key."""
        return cls("retry")

    @classmethod
    def fail(cls, reason: str) -> Resolution:
        """It is abandoned: the agent gets a ToolError with this ``reason``."""
        return cls("fail", reason)

    @classmethod
    def unknown(cls) -> Resolution:
        """Its outcome is still unknown: the call stays in doubt and the run parks."""
        return cls("unknown")


class Parameters(Protocol):
    """The parameters of a tool: see declare.parameters.Form."""

    defaults: dict[str, Any]

    def arguments(self, given: Arguments) -> dict[str, Any] | None: ...


@dataclass(frozen=True, slots=True)
class Call:
    """A call as its tool, a reconcile hook or an operator sees it.

    ``idempotency_key`` is the same for every attempt; ``attempt`` counts from 1; ``lsn``: of the
    intent; ``started_ns``: when it was first intended (wall clock, ns). ``args`` and ``kwargs``: as
    recorded, by position where that is possible (see ``arguments``). ``subject``: the ids of the
    keys of the subject that it belongs to; ``str()`` shows no arguments then.

    ``fence``: the number of the run's present owner, which grows with each owner. A service that
    keeps the highest fence of the run, and refuses a lower one, refuses a process that has lost the
    run. 0 in a process that only reads the run.
    """

    run_id: str
    lsn: int
    step: str
    tool: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    call_id: str
    idempotency_key: str
    attempt: int
    started_ns: int
    fence: int = 0
    subject: KeyIds = ()
    form: Parameters | None = field(default=None, repr=False, compare=False)

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments by parameter, however the agent passed them, with the defaults. In a
        process that only reads the run: ``kwargs`` alone, for the log names no parameters."""
        if self.form is None:
            return dict(self.kwargs)
        kwargs = {name: value for name, value in self.kwargs.items() if name != "self"}
        found = self.form.arguments((self.args, kwargs))
        return self.kwargs if found is None else {**self.form.defaults, **self.kwargs, **found}

    @property
    def headers(self) -> dict[str, str]:
        """The idempotency key as the HTTP header that many services read, and ``Fence``."""
        key = {"Idempotency-Key": self.idempotency_key}
        return key | {"Fence": str(self.fence)} if self.fence else key

    def __str__(self) -> str:
        parts = [shorten(arg, 80) for arg in self.args]
        text = ", ".join(
            parts + [f"{name}={shorten(arg, 80)}" for name, arg in self.kwargs.items()]
        )
        if self.subject:
            text = SEALED_TEXT
        return f"LSN {self.lsn}: {self.tool}({text}), idempotency key {self.idempotency_key}"
