"""What a run writes to its log: one frozen type per event. Pure.

The body of a record is a map of the event's fields. An unknown field is ignored and a missing one
takes its default, so that later versions can add fields.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, get_args

from eventlog.format.record import Packed
from recovery.journal.keys import CallKey, idempotency_key


@dataclass(frozen=True, slots=True)
class RunStarted:
    """The run began. ``uid`` tells it from any other run of the same name.

    ``parent``: the run that started it (see ParentRun), None if nobody did.
    ``code``: a digest of the agent's code; "" where nobody knows it (see agent_code.code_digest).
    ``forked_from``: what it was forked from (see ForkedFrom); empty if it was not. ``salt``: with
    which redacted arguments are digested, in place of ``uid``: a fork has that of its origin.
    ``rules``: the contract that it was begun under (see Rules); None for the first. ``signed``:
    what counts with a signature alone (as Approvers has it, "decision" besides); None for nothing.
    """

    kind: ClassVar = "run_started"
    run_id: str
    task: Any
    uid: str
    parent: dict[str, Any] | None = None
    forked_from: dict[str, Any] = field(default_factory=dict)
    salt: str = ""
    rules: Any = None
    code: str | None = None
    signed: list[str] | None = None


@dataclass(frozen=True, slots=True)
class RunResumed:
    """A process took the run up again: the ``recovery``-th time, from the end of ``from_step``.

    ``rules``: the version of the library's contract, where the run was begun under an older one.
    """

    kind: ClassVar = "run_resumed"
    recovery: int
    from_step: int
    reason: str = ""
    rules: Any = None
    code: str | None = None


@dataclass(frozen=True, slots=True)
class StepStarted:
    """A step began; all before it belongs to earlier ones."""

    kind: ClassVar = "step"
    step: int


BEFORE, RESUMED, BESIDE = "before", "resumed", "beside"  # see CallIntended.loop


@dataclass(frozen=True, slots=True)
class CallIntended:
    """A call is about to be made. Durable before a side effect starts.

    ``args`` is [positional, by name] while that is small or the call can be undone, else None;
    ``size`` is its packed size. ``undo`` names the function that undoes it, "" if none does;
    ``child`` the run that it starts. ``key`` is the idempotency key of a call that was made inside
    another one, or in another run and came here with a fork; empty where it follows from the
    identity.
    ``asks_until``: somebody has to approve it before it begins, until then (seconds since 1970, or
    infinity); None where nobody has to. ``signed``: True where a yes or no counts with a signature
    alone. ``lost``: True where it may have been made before, for its record may be among those that
    are lost; None where it was not. ``loop``, of a call that was made in no step: BEFORE the loop
    of steps, before that of a RESUMED run, or BESIDE it by a task that was started before; None in
    runs of older libraries.
    """

    kind: ClassVar = "call"
    scope: str
    tool: str
    call_id: str
    digest: bytes
    occurrence: int
    after_crash: str
    args: Any = None
    size: int = 0
    undo: str = ""
    child: str = ""
    key: str = ""
    asks_until: float | int | None = None
    lost: bool | None = None
    loop: str | None = None
    signed: bool | None = None

    @property
    def identity(self) -> CallKey:
        """Which call of its run it is."""
        return CallKey(self.scope, self.tool, self.call_id, self.digest, self.occurrence)

    def idempotency_key(self, uid: str) -> str:
        """What the outside world may know it by, in run ``uid``."""
        return self.key or idempotency_key(uid, self.identity)

    @property
    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """What it was made with; None when that was too large to be recorded."""
        match self.args:
            case [list(args), dict(kwargs)]:
                return tuple(args), kwargs
        return None


@dataclass(frozen=True, slots=True)
class CallDecided:
    """Somebody has said yes or no to a call that asked for it. A call with a yes may have begun.

    ``inbox``: the LSN of the message, in the run's inbox; 0: nobody decided in time, or it came
    here with a fork. ``sent``: the time of that message (ns since 1970), by which it is known; and
    ``uid``: of the run whose inbox that is. ``signature``: of who decided, if it was signed.
    """

    kind: ClassVar = "decided"
    call: int
    approved: bool
    who: str
    why: str
    inbox: int = 0
    sent: int | None = None
    uid: str | None = None
    signature: bytes | None = None


@dataclass(frozen=True, slots=True)
class CallRetried:
    """Call ``call`` (the LSN of its intent) is about to be made again, as ``attempt``."""

    kind: ClassVar = "retry"
    call: int
    attempt: int


@dataclass(frozen=True, slots=True)
class ChildStarted:
    """The run that call ``call`` starts has a log. Durable before that run executes anything."""

    kind: ClassVar = "child_started"
    call: int
    run_id: str


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """An attempt raised, and the call is to be made again at ``retry_at`` (seconds since 1970)."""

    kind: ClassVar = "attempt_failed"
    call: int
    attempt: int
    type: str
    message: str
    retry_at: float
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class CallAbandoned:
    """Nobody waits for the call any more: what came of it is unknown.

    ``why``: "timeout" or "cancelled". ``went_on``: the agent that cancelled it was let go on
    without an outcome, and replay has to cancel it again. ``begun``: whether it had been started.
    """

    kind: ClassVar = "abandoned"
    call: int
    attempt: int
    why: str
    went_on: bool = False
    begun: bool = False


@dataclass(frozen=True, slots=True)
class CallReturned:
    """The call's result. ``usage`` is [input tokens, output tokens, cost] where it says so."""

    kind: ClassVar = "outcome"
    call: int
    value: Any
    usage: list[Any] | None = None


@dataclass(frozen=True, slots=True)
class SignalTaken(CallReturned):
    """A wait for signal ``name`` ended with the one at LSN ``inbox`` of the inbox of run ``uid``.

    An outcome that says in the same record which signal is spent by it. ``several``: the wait was
    for one of several names, and ``value`` is the pair of the name and the value. ``sent``: the
    time of the message (ns since 1970), by which it is known.
    """

    kind: ClassVar = "signal"
    name: str = ""
    inbox: int = 0
    uid: str = ""
    several: bool | None = None
    sent: int | None = None


@dataclass(frozen=True, slots=True)
class CallFailed:
    """The call's exception: enough to raise it again. ``args`` is None if not to be carried.

    ``bases``: the types that ``type`` is derived from, the nearest first, up to Exception.
    ``attributes`` are those that could be recorded, ``left_out`` names the others. ``group``: of an
    exception group, its exceptions, each a map of these fields; ``cause``: the same of what it was
    raised from.
    """

    kind: ClassVar = "failure"
    call: int
    type: str
    message: str
    args: Any = None
    traceback: str = ""
    bases: list[str] | None = None
    attributes: Any = None
    left_out: list[str] | None = None
    group: Any = None
    cause: list[Any] | None = None


@dataclass(frozen=True, slots=True)
class CallResolved:
    """Somebody decided what became of a call in doubt (or of a failed one).

    ``how``: "outcome" (``value`` is its result), "retry", "fail" (``value`` says why). ``undo``: it
    counts for an undo alone, for the agent goes on without an outcome of the call. ``by_policy``:
    the run's own process decided, by what the tool says. ``signature``: of ``who``, if it was
    signed, and ``key``: the idempotency key of the call that it was signed for.
    """

    kind: ClassVar = "resolved"
    call: int
    how: str
    value: Any = None
    who: str = ""
    why: str = ""
    undo: bool = False
    by_policy: bool = False
    key: str | None = None
    signature: bytes | None = None


@dataclass(frozen=True, slots=True)
class ValueRecorded:
    """What the outside world answered: the time, a random number, an id."""

    kind: ClassVar = "value"
    scope: str
    name: str
    occurrence: int
    value: Any


@dataclass(frozen=True, slots=True)
class MessagesChanged:
    """``messages[start:stop] = new``, where ``new`` holds values or Refs to values in the log."""

    kind: ClassVar = "messages"
    start: int
    stop: int
    new: list[Any] | Packed = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class DivergenceAccepted:
    """Somebody decided that code which does not do what is recorded may go on all the same.

    ``inbox``: or else, that the run goes on though its inbox is gone, or another one. What is sent
    from then on counts, whatever its number.
    """

    kind: ClassVar = "accepted"
    who: str
    why: str
    inbox: bool | None = None


@dataclass(frozen=True, slots=True)
class HistoryDropped:
    """What these records say is waited for no more: the code, which diverged, may do without.

    Calls among them that it does make again are served from the record, as ever. ``drift``: what it
    does otherwise, where that is harmless and it goes on unasked; None where it was accepted.
    ``call``: the LSN of a call whose outcome is served to another one; 0: none. From here on the
    recorded one has the identity of the other: ``call_id``, ``digest`` and ``occurrence``.
    """

    kind: ClassVar = "dropped"
    records: list[int]
    drift: str | None = None
    call: int = 0
    call_id: str | None = None
    digest: bytes | None = None
    occurrence: int | None = None


@dataclass(frozen=True, slots=True)
class RunParked:
    """The run stands still until calls (LSNs of intents) are resolved, or for what ``why`` says.

    ``undo``: it waits to be undone. ``wake_at``: when the first of the calls ends by itself, for a
    run that waits for something outside (seconds since 1970; None: never). ``stays``: calls that
    have failed for good: resuming the run does not make them again, and somebody can decide so.
    """

    kind: ClassVar = "run_parked"
    calls: list[int]
    undo: bool = False
    why: str = ""
    wake_at: float | int | None = None
    stays: list[int] | None = None


@dataclass(frozen=True, slots=True)
class RunFinished:
    """The agent returned."""

    kind: ClassVar = "run_finished"
    result: Any
    recovered_from_step: int = 0
    recovery_count: int = 0


@dataclass(frozen=True, slots=True)
class RunFailed:
    """The agent failed for good. ``call`` is the failed call that it did not handle, or 0."""

    kind: ClassVar = "run_failed"
    type: str
    message: str
    traceback: str = ""
    call: int = 0


@dataclass(frozen=True, slots=True)
class AgentRaised:
    """The agent's own code raised an error that is no outcome of a call, in ``step``; or the
    library stopped the run with one.

    ``place``: file, line and function. ``goes_on``: whether the process that records it recovers
    the run by itself. ``call``: the call that returned what cannot be recorded, where that is the
    error. A replay takes no notice of it.
    """

    kind: ClassVar = "agent_raised"
    type: str
    message: str
    traceback: str = ""
    step: int = 0
    place: str = ""
    goes_on: bool = False
    call: int = 0


@dataclass(frozen=True, slots=True)
class RunUndone:
    """The run was given up from outside; what follows undoes its calls. It is not resumed."""

    kind: ClassVar = "run_undone"
    who: str
    why: str


@dataclass(frozen=True, slots=True)
class RunCancelled:
    """Somebody ended the run. ``calls`` were in doubt then; ``inbox`` is the LSN of the message
    that asked for it, in the run's inbox (0: the run was ended without one)."""

    kind: ClassVar = "run_cancelled"
    who: str
    why: str
    calls: list[int] = field(default_factory=list)
    inbox: int = 0


@dataclass(frozen=True, slots=True)
class RecordsLost:
    """Stands where records were lost, up to LSN ``last``; the others of these have 0 for it.

    Written by ``eventlog.repair``. ``snapshot``: it was a checkpoint, and nothing else.
    """

    kind: ClassVar = "lost"
    last: int
    snapshot: bool = False


@dataclass(frozen=True, slots=True)
class LogRepaired:
    """The log was damaged and is repaired. ``lost``: pairs of LSNs, the first and the last one."""

    kind: ClassVar = "repaired"
    lost: list[list[int]]
    who: str = ""
    why: str = ""
    backup: str = ""

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """What is lost."""
        return [(first, last) for first, last in self.lost]


Event = (
    RunStarted
    | RunResumed
    | StepStarted
    | CallIntended
    | CallDecided
    | ChildStarted
    | CallRetried
    | AttemptFailed
    | CallAbandoned
    | CallReturned
    | SignalTaken
    | CallFailed
    | CallResolved
    | ValueRecorded
    | MessagesChanged
    | DivergenceAccepted
    | HistoryDropped
    | RunParked
    | RunFinished
    | RunFailed
    | AgentRaised
    | RunUndone
    | RunCancelled
    | RecordsLost
    | LogRepaired
)

TYPES: dict[str, type[Event]] = {event.kind: event for event in get_args(Event)}
