"""Tracks where in a run the present code is."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol, cast

from recovery.declare.spec import ToolSpec
from recovery.journal.call import Arguments, Call

if TYPE_CHECKING:
    from asyncio import Timeout


class SpansOfRun(Protocol):
    """Emits the spans of a run."""

    def enter(self, scope: Scope) -> Callable[[], None] | None:
        """The present code comes into this scope; what is to be called when it leaves it."""


class ActiveRun(Protocol):
    """A run whose agent function is being executed, as the scopes of its code need it."""

    @property
    def spans(self) -> SpansOfRun | None:
        """What emits its spans; None where nothing does."""

    def enter_thread(self, lsn: int) -> None:
        """Note that a thread executes the plain tool of this call, maybe beyond its time-out."""

    def leave_thread(self, lsn: int) -> None:
        """Note that it has ended."""

    def check(self) -> None:
        """Raise what stops the run, if anything does."""

    async def perform_async(self, spec: ToolSpec, given: Arguments, call_id: str) -> Any:
        """Make a call from async code."""

    def perform_sync(self, spec: ToolSpec, given: Arguments, call_id: str) -> Any:
        """Make a call from plain code."""

    def open_stream(self, spec: ToolSpec, given: Arguments, call_id: str) -> Any:
        """Make a call whose chunks are requested one by one."""


class Scope:
    """The position of code in a run: part of the identity of the calls it makes.

    Counts equal calls itself, so that the counts are freed with the last task of the scope.
    ``calls``: the LSNs of the calls around the code, the innermost last. ``outer``: the attempt in
    which the call was made, if it is nested.
    """

    __slots__ = (
        "__weakref__",
        "_counts",
        "call",
        "calls",
        "metered",
        "origins",
        "outer",
        "over",
        "path",
        "raised",
        "run",
        "stopped",
        "timer",
    )

    def __init__(
        self, run: ActiveRun, path: str, call: Call | None = None, outer: Scope | None = None
    ) -> None:
        self.run, self.path, self.call = run, path, call
        around = outer.calls if outer is not None else ()
        self.outer = outer if around else None
        self.calls: tuple[int, ...] = (*around, call.lsn) if call is not None else around
        self.over = False  # whether the attempt has ended, and another follows
        self.stopped = False  # whether the run was stopped at a call made here
        self.metered = False  # whether a call made here reported its usage
        self.timer: Timeout | None = None  # of the attempt, where it has one
        self.raised = 0  # attempts at the call that have raised before this one
        self._counts: dict[object, int] = {}
        self.origins: dict[object, Any] = {}  # by call: its code, see agent_code.closures

    @property
    def used(self) -> bool:
        """Whether a record of this scope has an occurrence."""
        return bool(self._counts)

    @property
    def attempt_has_ended(self) -> bool:
        """Whether the code here belongs to an attempt that has ended."""
        return self.over or (self.outer is not None and self.outer.attempt_has_ended)

    @property
    def overdue(self) -> int:
        """The outermost call (LSN) around this code whose time is over: it tidies up. 0: none."""
        if self.outer is not None and (found := self.outer.overdue):
            return found
        return self.calls[-1] if self.timer is not None and self.timer.expired() else 0

    def check(self) -> None:
        """Stop again if a call made here did, also if the code caught that; or if no code waits for
        the result."""
        if self.stopped or self.attempt_has_ended:
            self.run.check()

    def next_occurrence(self, what: object) -> int:
        """The occurrence: 1 for the first of its kind here, then 2, 3, ..."""
        self._counts[what] = count = self._counts.get(what, 0) + 1
        return count


current_scope: ContextVar[Scope | None] = ContextVar("recovery_scope", default=None)
runs_at_work: set[Any] = set()  # those of this process whose agent function is being executed
NOWHERE = Scope(cast(Any, None), "")  # of library code that works for several runs


class Entered:
    """The present code is in this scope, until it leaves it."""

    __slots__ = ("_leave", "_token")

    def __init__(self, scope: Scope | None) -> None:
        self._token = current_scope.set(scope)
        spans = scope.run.spans if scope is not None else None
        self._leave = spans.enter(scope) if spans is not None and scope is not None else None

    def leave(self) -> None:
        """To what was before."""
        if self._leave is not None:
            self._leave()
        current_scope.reset(self._token)


def current_call() -> Call | None:
    """The recorded call around the present code: its idempotency key, its attempt.

    None outside of one. Works in the tool itself and in all functions it calls, also in threads
    started by ``asyncio.to_thread``.
    """
    scope = current_scope.get()
    return scope.call if scope is not None else None
