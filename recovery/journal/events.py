"""Defines what a run writes to its log: one frozen type per event. Pure.

The body of a record is a map of the event's fields. An unknown field is ignored and a missing one
takes its default, so that later versions can add fields.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any, ClassVar, get_args

from eventlog.format.record import Packed
from eventlog.light_dataclass import light_dataclass
from recovery.journal.call_key import UNDO_PREFIX, CallKey, idempotency_key, number_of


@light_dataclass
class RunStarted:
    """The run began. ``uid`` distinguishes it from any other run of the same name.

    ``parent``: the run that started it (see ParentRun); None if no run did. ``code``: a digest of
    the agent's code; "" where it is unknown (see agent_code.code_digest). ``forked_from``: the run
    it was forked from (see ForkedFrom); empty if it was not. ``salt``: for digests of redacted
    arguments, in place of ``uid``; a fork has the salt of its origin. ``rules``: the contract that
    it was begun under (see Rules); None for the first. ``signed``: what counts only with a
    signature (as in Approvers, and "decision"); None for nothing. ``agent``: the function of the
    agent that began it (see agent_name), for people: nothing is imported by it; None if unknown.
    ``queued``: what workers choose it by (see Submission.queued); None if it was not submitted.
    ``fence``: of its owner, see Call; None from older libraries. ``subject``: to whom all that it
    records belongs (a Subjects); None for no subject. ``agent_object``: ``module:name`` of the
    RecoverableAgent that began it, or of the dict or list with it; for people, like ``agent``.
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
    agent: str | None = None
    queued: dict[str, Any] | None = None
    fence: int | None = None
    subject: Any = None
    agent_object: str | None = None


@light_dataclass
class RunResumed:
    """A process resumed the run: the ``recovery``-th time, from the end of ``from_step``.

    ``rules``: the version of the library's contract, where the run was begun under an older one.
    ``fence``: of its owner, as in RunStarted. ``former``: the owner before, in words, if it may be
    alive and still execute calls; "" if all earlier owners are known to have ended, after a record
    that one may be alive; None if the owner before is known to have ended.
    """

    kind: ClassVar = "run_resumed"
    recovery: int
    from_step: int
    reason: str = ""
    rules: Any = None
    code: str | None = None
    fence: int | None = None
    former: str | None = None


@light_dataclass
class StepStarted:
    """A step began; earlier records belong to earlier steps."""

    kind: ClassVar = "step"
    step: int


BEFORE, RESUMED, BESIDE = "before", "resumed", "beside"  # see CallIntended.loop


@light_dataclass
class CallIntended:
    """A call is about to be made. Durable before a side effect starts.

    ``args`` is [positional, by name] while that is small or the call can be undone, else None;
    ``size`` is its packed size. ``undo`` names the function that undoes it, "" if none does;
    ``child`` the run that it starts.

    ``key``: the idempotency key of a nested call, or of a call that a fork copied from another run;
    empty where it follows from the identity.

    ``asks_until``: the call awaits approval before it begins, until then (seconds since 1970, or
    infinity); None where it needs no approval. ``signed``: True where a decision counts only with a
    signature.

    ``lost``: True where it may have been made before, because its record may be among lost ones;
    None where it was not. ``loop``, of a call that was made in no step: BEFORE the loop of steps,
    before the loop of a RESUMED run, or BESIDE it by a task that was started earlier; None in runs
    of older libraries. ``timeout_s``: of an attempt at a side effect; None without one.
    ``subject``: to whom its values belong (a Subjects; then the digest is keyed); None: to no one.
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
    timeout_s: float | int | None = None
    subject: Any = None

    @property
    def identity(self) -> CallKey:
        """Its identity in its run."""
        return CallKey(self.scope, self.tool, self.call_id, self.digest, self.occurrence)

    def idempotency_key(self, uid: str) -> str:
        """The key under which other services may know it, in run ``uid``."""
        return self.key or idempotency_key(uid, self.identity)

    @property
    def undoes(self) -> int:
        """The LSN of the call that it undoes, which is its call id; 0 for no compensation."""
        return (number_of(self.call_id) or 0) if self.tool.startswith(UNDO_PREFIX) else 0

    @property
    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Its arguments; None when they were too large to be recorded."""
        match self.args:
            case [list(args), dict(kwargs)]:
                return tuple(args), kwargs
        return None


@light_dataclass
class CallDecided:
    """A call that awaited approval was approved or denied. After an approval it may have begun.

    ``inbox``: the LSN of the message, in the run's inbox; 0: the time was over, or a fork copied
    it. ``sent``: the time of that message (ns since 1970), which identifies it; ``uid``: of the run
    whose inbox that is. ``signature``: of the user who decided, if it was signed.
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


@light_dataclass
class CallRetried:
    """Call ``call`` (the LSN of its intent) is about to be made again, as ``attempt``."""

    kind: ClassVar = "retry"
    call: int
    attempt: int


@light_dataclass
class ChildStarted:
    """The run that call ``call`` starts has a log. Durable before that run executes anything."""

    kind: ClassVar = "child_started"
    call: int
    run_id: str


@light_dataclass
class AttemptFailed:
    """An attempt raised, and is to be repeated at ``retry_at`` (seconds since 1970).

    ``sealed``: of a call of a subject, a map of the fields that are encrypted, here and in other
    events with it. When these can be read, they are in their places and this is True.
    """

    kind: ClassVar = "attempt_failed"
    call: int
    attempt: int
    type: str
    message: str
    retry_at: float
    traceback: str = ""
    sealed: Any = None


@light_dataclass
class CallAbandoned:
    """No code waits for the call any more: its outcome is unknown.

    ``why``: "timeout" or "cancelled". ``went_on``: the agent that cancelled it continued without an
    outcome, and replay has to cancel it again. ``begun``: whether it had been started.
    """

    kind: ClassVar = "abandoned"
    call: int
    attempt: int
    why: str
    went_on: bool = False
    begun: bool = False


@light_dataclass
class CallReturned:
    """The call's result. ``usage`` is [input tokens, output tokens, cost] if it reports them."""

    kind: ClassVar = "outcome"
    call: int
    value: Any
    usage: list[Any] | None = None


@light_dataclass
class SignalTaken(CallReturned):
    """A wait for signal ``name`` ended with the one at LSN ``inbox`` of the inbox of run ``uid``.

    The same record is the outcome, and says which signal it consumed. ``several``: the wait was for
    one of several names, and ``value`` is the pair of the name and the value. ``sent``: the time of
    the message (ns since 1970), which identifies it.
    """

    kind: ClassVar = "signal"
    name: str = ""
    inbox: int = 0
    uid: str = ""
    several: bool | None = None
    sent: int | None = None


@light_dataclass
class CallFailed:
    """The call's exception: enough to raise it again. ``args`` is None if it cannot be recorded.

    ``type`` is module and qualified name, of this library's types ``recovery.`` or ``eventlog.``
    and their own name (older logs name the module, too).

    ``bases``: the base classes of ``type``, the nearest first, up to Exception. ``attributes`` are
    those that could be recorded, ``left_out`` names the others. ``group``: of an exception group,
    its exceptions, each a map of these fields; ``cause``: the same of its cause.
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
    sealed: Any = None


@light_dataclass
class CallResolved:
    """A call in doubt, or a failed one, was resolved.

    ``how``: "outcome" (``value`` is its result), "retry", "fail" (``value`` is the reason).
    ``undo``: it counts only for an undo, because the agent continues without an outcome of the
    call. ``by_policy``: the run's own process decided, by the options of the tool. ``signature``:
    of ``who``, if it was signed; ``key``: the idempotency key of the call that it was signed for.
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


@light_dataclass
class ValueRecorded:
    """A value from the outside world: the time, a random number, an id."""

    kind: ClassVar = "value"
    scope: str
    name: str
    occurrence: int
    value: Any


@light_dataclass
class MessagesChanged:
    """``messages[start:stop] = new``, where ``new`` holds values or Refs to values in the log."""

    kind: ClassVar = "messages"
    start: int
    stop: int
    new: list[Any] | Packed = field(default_factory=list)


@light_dataclass
class DivergenceAccepted:
    """A user decided that code may continue although it does not do what is recorded.

    ``inbox``: instead, that the run continues although its inbox is missing or replaced. All
    messages sent from then on count, whatever their number.
    """

    kind: ClassVar = "accepted"
    who: str
    why: str
    inbox: bool | None = None


@light_dataclass
class HistoryDropped:
    """The outcomes of these records are not awaited any more: diverged code may do without them.

    If the code makes one of these calls again, it is served from the record all the same.
    ``drift``: a harmless difference, with which the code continues without asking; None where the
    divergence was accepted. ``call``: the LSN of a call whose outcome is served to another call; 0:
    none. From here on the recorded call has the identity of the other: ``call_id``, ``digest`` and
    ``occurrence``.
    """

    kind: ClassVar = "dropped"
    records: list[int]
    drift: str | None = None
    call: int = 0
    call_id: str | None = None
    digest: bytes | None = None
    occurrence: int | None = None


@light_dataclass
class RunParked:
    """The run is parked until calls (LSNs of intents) are resolved, or for the reason ``why``.

    ``undo``: it waits to be undone. ``wake_at``: when the first of the calls ends by itself, for a
    run that waits for something outside (seconds since 1970; None: never). ``stays``: calls that
    failed for good: resuming the run does not repeat them, but a user can decide to.
    """

    kind: ClassVar = "run_parked"
    calls: list[int]
    undo: bool = False
    why: str = ""
    wake_at: float | int | None = None
    stays: list[int] | None = None


@light_dataclass
class RunFinished:
    """The agent returned."""

    kind: ClassVar = "run_finished"
    result: Any
    recovered_from_step: int = 0
    recovery_count: int = 0


@light_dataclass
class RunFailed:
    """The agent failed for good. ``call`` is the failed call that it did not handle, or 0."""

    kind: ClassVar = "run_failed"
    type: str
    message: str
    traceback: str = ""
    call: int = 0
    sealed: Any = None


@light_dataclass
class AgentRaised:
    """The agent's own code raised an error that is no outcome of a call, in ``step``; or the
    library stopped the run with one.

    ``place``: file, line and function. ``goes_on``: whether the process that records it recovers
    the run by itself. ``call``: the call whose result cannot be recorded, if that is the error.
    ``of_code``: True if unchanged code raises it again; else None. A replay ignores the event.
    """

    kind: ClassVar = "agent_raised"
    type: str
    message: str
    traceback: str = ""
    step: int = 0
    place: str = ""
    goes_on: bool = False
    call: int = 0
    sealed: Any = None
    of_code: bool | None = None


@light_dataclass
class RunUndone:
    """The run was aborted by a user; the events that follow undo its calls. It is not resumed."""

    kind: ClassVar = "run_undone"
    who: str
    why: str


@light_dataclass
class RunCancelled:
    """The run was ended by a user. ``calls`` were in doubt then; ``inbox`` is the LSN of the
    message in the run's inbox (0: the run was ended without one)."""

    kind: ClassVar = "run_cancelled"
    who: str
    why: str
    calls: list[int] = field(default_factory=list)
    inbox: int = 0


@light_dataclass
class RecordsLost:
    """A placeholder for lost records, up to LSN ``last``; further placeholders have 0 there.

    Written by ``eventlog.repair``. ``snapshot``: only a checkpoint was lost.
    """

    kind: ClassVar = "lost"
    last: int
    snapshot: bool = False


@light_dataclass
class LogRepaired:
    """The log was damaged and is repaired. ``lost``: pairs of LSNs, the first and the last one."""

    kind: ClassVar = "repaired"
    lost: list[list[int]]
    who: str = ""
    why: str = ""
    backup: str = ""

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """The lost ranges."""
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
