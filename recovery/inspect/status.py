"""Reads the status of a run, live or dead, from its log."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from eventlog import Damage, LogError, LogOwner, Packed, ReadableLog, Record
from eventlog.errors import EncryptedLogError
from recovery.errors import RecoveryError
from recovery.history.find_run import Store, approvers_of, backend_of, reader_of
from recovery.history.load_shallow import ShallowHistory, load_shallow
from recovery.history.signed_resolutions import kinds_signed
from recovery.history.subject_values import is_personal
from recovery.inspect.calls_without_outcome import OpenCall, open_calls, packed_value
from recovery.inspect.inbox_view import OpenInbox, PendingMessage, unread
from recovery.inspect.run_event import EventReader, line_of, text_of
from recovery.inspect.states import BROKEN, OPEN, State, state_of_end, state_of_parked
from recovery.journal.events import (
    RunFailed,
    RunParked,
    RunResumed,
    RunStarted,
    RunUndone,
)
from recovery.journal.forked_from import ForkedFrom
from recovery.journal.related_runs import CALL_JOURNAL, CONVERSATION, ParentRun
from recovery.journal.run_label import wake_time
from recovery.journal.submission import Submission, first_record_of, submission_of
from recovery.replay.crash_counts import crashes_in_a_row
from recovery.replay.error_counts import ErrorTally, RunError, has_diverged
from recovery.replay.matching import Replay
from recovery.replay.progress import Progress, ProgressTally
from recovery.replay.run_owners import Owners
from recovery.stores.protocol import ReadsManyRuns, ReadsRuns, clock_ahead_s, in_pages
from recovery.values.pack import pack, unpack

if TYPE_CHECKING:
    from recovery.approvers import Approvers
    from recovery.stores.protocol import RunStore

Kind = Literal["agent", "conversation", "journal", "checkpoints"]
# As many processes that die at the same place are a crash loop.
CRASHES_MIN = 3

_KINDS: dict[Packed, Kind] = {
    pack(CONVERSATION, "task"): "conversation",
    pack(CALL_JOURNAL, "task"): "journal",
}


@dataclass(frozen=True, slots=True)
class RunStatus:
    """The status of a run.

    ``state``: "submitted" (no process has begun it), "running" (a process has it), "interrupted"
    (no process has it, and it can be resumed), "in doubt" (parked until calls are resolved),
    "waiting" (parked for a time, a signal or an approval), "parked" (for the reason in ``why``),
    "finished", "failed", "cancelled", "undone", "empty" (it has no records), "damaged" (records
    that a recovery needs are lost, so it refuses), "unreadable" (nothing is known: no log, or
    encrypted, or all of it is lost). "saved": a program has saved checkpoints itself, by
    ``CheckpointStore.save``, ``CheckpointManager.save_checkpoint`` or a checkpointer of its
    framework. It loads one to resume, and the log does not say whether the program has ended.

    ``why`` explains the state in a line, if there is more to say. ``kind``: what resumes the run:
    "agent" (its agent), "conversation" and "journal" (the program that records it opens it again,
    also when it has finished; see CallJournal), "checkpoints" (the program that saved them).

    ``progress``: steps, calls, tokens, cost (see Progress). ``owner``: the process that has it, or
    had it last. ``started`` and ``last``: its first and last record, in seconds since 1970, 0.0 if
    unknown; ``last_event``: the last one, in a line. ``wake_at``: when a waiting run can continue
    by itself, or one in doubt because no process from which it was taken executes the call then.

    ``checkpoint`` and ``checkpoint_step``: LSN and step of the checkpoint that a recovery begins
    with, 0 if none; ``replayed``: the records after it. ``damage``: what is lost of these, or of
    the end of the log. ``last_lsn``: where it ends, with ``torn`` bytes of a torn tail after it.
    ``uid`` distinguishes it from other runs of its name. ``parent`` is the run that started it as
    its child, ``forked_from`` the one it was forked from.

    ``failed_call``: the call (LSN) that a failed run ended by, which can be resolved; 0 if none.
    ``failed_call_key``: its idempotency key; "" if there is none, or the log lacks it. ``unread``:
    pending messages, in the order sent; a signal that no wait is for (perhaps its name is
    misspelt) stays there. ``inbox_damage``: why the inbox cannot be read, or that messages which
    the run has read are lost. ``error``: the last error that the agent's own code raised (see
    RunError); None if there was none. ``signed``: what counts in the run only with a signature (see
    Approvers.also). ``unclaimed_outcomes``: outcomes (LSNs) in the log whose calls were lost. The
    agent's call that one of them is of becomes in doubt when the run is resumed. ``crashes``: how
    many processes in a row have died without getting further than the one before. ``diverged``:
    whether its code stopped it by a DivergenceError when it was last run, which is not accepted.
    ``traceback``: of the error that a failed run ended by. ``agent``: the name under which it was
    submitted (see ``CheckpointStore.submit``), else the function of the agent that began it, as
    ``module:name`` where it can be imported; "" if the record does not say. ``agent_object``:
    ``module:name`` of the RecoverableAgent, or of the dict or list with it, that begins the run
    with its options; "" if it has no such name. Both are for people: import nothing by them.
    ``needs_key``: whether it is unreadable because it is encrypted, and its key was not given.
    ``priority`` and ``limit_key``: as of the submission. ``clock_ahead_s``: by how much the store's
    clock, which decides when a wait is over, was ahead of this machine's when this was read.
    """

    run_id: str
    state: State
    why: str = ""
    progress: Progress = field(default_factory=lambda: ProgressTally().progress())
    recoveries: int = 0
    calls: tuple[OpenCall, ...] = ()
    owner: LogOwner | None = None
    started: float = 0.0
    last: float = 0.0
    last_event: str = ""
    wake_at: float | None = None
    checkpoint: int = 0
    checkpoint_step: int = 0
    replayed: int = 0
    last_lsn: int = 0
    torn: int = 0
    damage: tuple[Damage, ...] = ()
    uid: str = ""
    parent: ParentRun | None = None
    forked_from: ForkedFrom | None = None
    failed_call: int = 0
    failed_call_key: str = ""
    unread: tuple[PendingMessage, ...] = ()
    inbox_damage: str = ""
    error: RunError | None = None
    signed: tuple[str, ...] = ()
    kind: Kind = "agent"
    unclaimed_outcomes: tuple[int, ...] = ()
    crashes: int = 0
    diverged: bool = False
    traceback: str = ""
    agent: str = ""
    agent_object: str = ""
    needs_key: bool = False
    priority: int = 0
    limit_key: str = ""
    packed_task: Packed | None = field(default=None, repr=False)
    clock_ahead_s: float = field(default=0.0, repr=False, compare=False)

    @property
    def due(self) -> bool:
        """Whether it would continue if it were resumed now: it was interrupted, the time that it
        waits for has come by the store's clock, or the message that it waits for was sent. Not if
        it would park for a call in doubt."""
        if self._to_resolve:
            return False
        has_come = self.wake_at is not None and self.wake_at <= time.time() + self.clock_ahead_s
        if self.state == "submitted":
            return self.wake_at is None or has_come
        if has_come:
            return True
        sent = any(message.wanted for message in self.unread)
        return self.state == "interrupted" or (self.state in ("waiting", "parked") and sent)

    @property
    def crash_loop(self) -> str:
        """The place where processes die again and again, in words; "" if they do not."""
        return self._crash_loop(CRASHES_MIN)

    def _crash_loop(self, crashes_min: int) -> str:
        if self.crashes < crashes_min:
            return ""
        calls = ", ".join(call.name for call in self.calls if call.state != "waits")
        step = self.progress.step
        is_between = 0 < step == self.checkpoint_step and not calls
        where = f"after step {step}" if is_between else f"in step {step}"
        died = "1 process" if self.crashes == 1 else f"{self.crashes} processes in a row"
        return f"{died} died {where}{calls and ', in '}{calls}"

    @property
    def _of_code(self) -> str:
        error = self.error
        if self.state != "interrupted" or error is None or error.is_past or not error.of_code:
            return ""
        return str(error)

    def _divergence(self) -> Iterator[str]:
        if self.diverged:
            said = self.error.message if self.error is not None else ""
            call = re.search(r"^ *recorded \(LSN (\d+)\): (\w+)", said, re.MULTILINE)
            what = re.search("^ *different: (.*)$", said, re.MULTILINE)
            named = f" of {call[2]}#{call[1]}" if call else ""
            more = f": {what[1]}" if what else ""
            yield f"its code does not do what is recorded{named}{more}"

    @property
    def _to_resolve(self) -> list[OpenCall]:
        asked = self.state == "in doubt"  # its reconcile function was, and did not know
        return [
            one
            for one in self.in_doubt
            if one.after_crash == "park"
            or (
                asked
                and one.after_crash == "reconcile"
                and one.elsewhere
                and one.elsewhere_until is None
            )
        ]

    @property
    def quarantined(self) -> bool:
        """Whether workers leave it alone until it has changed: it is due, and gets no further (see
        ``Worker``, with its default ``max_crashes``)."""
        return self.due and bool(self.stuck())

    def stuck(self, crashes_min: int = CRASHES_MIN) -> str:
        """Why the run gets no further by being resumed, in a line; "" if it may.

        ``crashes_min``: so many processes that died in a row at one place, or errors of the agent
        there, are too many (3).
        """
        if self.state not in OPEN:
            return ""
        if self._to_resolve or self.diverged:
            calls = self._to_resolve
            doubt = [f"in doubt: {', '.join(one.name for one in calls)}"] * bool(calls)
            there = dict.fromkeys(one.elsewhere for one in calls if one.elsewhere)
            return "; ".join([*doubt, *there, *self._divergence()])
        error = self.error
        if error is not None and not error.is_past and error.in_a_row >= crashes_min:
            return str(error)
        return self._crash_loop(crashes_min)

    @property
    def needs_person(self) -> str:
        """Why a person has to act, in a line; "" if none has to.

        A call in doubt has to be resolved, or a call approved; the code has diverged, raises an
        error that unchanged code raises again, or fails at the same place again and again; the log
        is damaged; or the run is parked for a limit, or has failed.
        """
        if self.state in (*BROKEN, "failed"):
            return f"{self.state}: {self.why}"
        if self.state not in (*OPEN, "running"):
            return ""
        sent = {one.about for one in self.unread if one.kind not in ("signal", "cancel")}
        asks = [one for one in self.calls if one.state == "asks" and str(one.lsn) not in sent]
        if self.stuck() or not asks:
            limited = self.state == "parked" and not self.due
            parked = limited and not any(one.child for one in self.calls)
            return self.stuck() or (f"parked: {self.why}" if parked else self._of_code)
        return f"asks for approval: {', '.join(one.name for one in asks)}"

    @property
    def in_doubt(self) -> tuple[OpenCall, ...]:
        """The calls that were begun and have no outcome."""
        return tuple(call for call in self.calls if call.state == "in doubt")

    @property
    def task(self) -> Any:
        """The task of the run; UnreadableValueError when its type is not registered here."""
        return None if self.packed_task is None else unpack(self.packed_task)


def status(store: Store, run_id: str) -> RunStatus:
    """See RunHandle.status."""
    backend = backend_of(store)
    with reader_of(store, run_id) as reader:
        return _status_of(reader, run_id, backend.inbox, approvers_of(store), backend).status


def runs(store: Store) -> Iterator[RunStatus]:
    """The status of each run of a store, read from its log now."""
    backend, approvers = backend_of(store), approvers_of(store)
    for run_ids, source in pages(backend, backend.run_ids()):
        for run_id in run_ids:
            if (found := read_status(source, run_id, approvers)) is not None:
                yield found.status


def pages(backend: RunStore, run_ids: Sequence[str]) -> Iterator[tuple[Sequence[str], ReadsRuns]]:
    """Some runs at a time, and what reads them: with one query, where the store can."""
    if not isinstance(backend, ReadsManyRuns):
        yield run_ids, backend
        return
    for page in in_pages(run_ids):
        yield page, backend.loaded(page)


class StatusRead(NamedTuple):
    """A status, and whether it stays the same for as long as the run's files do."""

    status: RunStatus
    lasts: bool = False


def read_status(backend: ReadsRuns, run_id: str, approvers: Approvers | None) -> StatusRead | None:
    """The status of a run of a store; None when the run is in creation, or there is none."""
    try:
        reader = backend.read(run_id)
        if reader is None:
            return None
        with reader:
            return _status_of(reader, run_id, backend.inbox, approvers, backend)
    except (LogError, OSError, RecoveryError) as exc:
        needs_key = isinstance(exc, EncryptedLogError)
        return StatusRead(RunStatus(run_id, "unreadable", str(exc), needs_key=needs_key))


def status_of(reader: ReadableLog, run_id: str, inbox: OpenInbox | None = None) -> RunStatus:
    """The status by an open log; ``inbox`` opens the inbox of a run."""
    return _status_of(reader, run_id, inbox, None, reader).status


def _status_of(
    reader: ReadableLog,
    run_id: str,
    inbox: OpenInbox | None,
    approvers: Approvers | None,
    clock: object,
) -> StatusRead:
    tail, owner = reader.tail(), reader.owner()
    known: dict[str, Any] = {"owner": owner, "torn": tail.torn_size, "damage": tail.damaged}
    known |= {"last_lsn": tail.next_lsn - 1, "clock_ahead_s": clock_ahead_s(clock)}
    try:
        read = _read(reader, run_id, approvers, tail.next_lsn - 1)
    except (EncryptedLogError, RecoveryError, ValueError) as exc:
        known["needs_key"] = isinstance(exc, EncryptedLogError)
        return StatusRead(RunStatus(run_id, "unreadable", str(exc), **known))
    run, start, started, ended = read.run, read.run.start, read.run.started, read.run.ended
    run.damage = list(dict.fromkeys((*tail.damaged, *run.damage)))
    known["damage"] = tuple(run.damage)
    alive = owner is not None and owner.alive
    _note_former(read, reader, tail.next_lsn, alive)
    calls = _open_calls(read, alive, time.time() + known["clock_ahead_s"])
    failed = ended.call if isinstance(ended, RunFailed) else 0
    state, why = _state(read, calls, alive)
    last_event, may_be_kept = _last_event_text(reader, run_id, read)
    unread, inbox_damage = _unread(inbox, read, approvers) if inbox is not None else ((), "")
    began_ns, last_ns = read.times_ns()
    status = RunStatus(
        run_id,
        state,
        why,
        read.tally.progress(),
        start.recoveries + sum(isinstance(event, RunResumed) for *_, event in run.tail),
        calls,
        started=began_ns / 1e9,
        last=last_ns / 1e9,
        last_event=last_event,
        wake_at=_wake_at(state, read.parked, read.submission),
        checkpoint=start.lsn,
        checkpoint_step=start.step,
        replayed=len(run.tail),
        kind=_kind(read),
        packed_task=_packed_task(started, read.submission),
        uid=run.uid,
        parent=ParentRun.of(started),
        forked_from=run.origin,
        failed_call=failed,
        failed_call_key=run.keys().get(failed, "") if failed else "",
        unread=unread,
        inbox_damage=inbox_damage,
        error=read.errors.last,
        signed=tuple(started.signed or ()) if started else (),
        unclaimed_outcomes=_unclaimed(run.replay),
        crashes=crashes_in_a_row((event for *_, event in run.tail), is_dead=not alive),
        traceback=ended.traceback if isinstance(ended, RunFailed) else "",
        diverged=has_diverged(event for *_, event in run.tail),
        **known,
        **_queued(read),
    )
    changes = alive or inbox_damage or run.damage or _changes_by_itself(run.replay, calls)
    return StatusRead(status, may_be_kept and not changes)


def _open_calls(read: _Read, alive: bool, now: float) -> tuple[OpenCall, ...]:
    run = read.run
    return tuple(open_calls(run.replay, read.owners, run.started, run.ended, alive, now))


def _changes_by_itself(replay: Replay, calls: Sequence[OpenCall]) -> bool:
    """Whether an approval comes too late by the clock, or another process may end meanwhile."""
    bounded = any(call.asks_until < math.inf for call in replay.undecided())
    return bounded or any(call.elsewhere for call in calls)


def _queued(read: _Read) -> dict[str, Any]:
    """What workers choose the run by."""
    known: dict[str, Any] = {}
    started = read.run.started
    if started is not None:
        queued, made = started.queued or {}, started.agent_object
        known = {"agent": started.agent or "", **queued, "agent_object": made}
    elif read.submission is not None:
        known = read.submission.queued or {}
    kinds = {"agent": str, "agent_object": str, "priority": int, "limit_key": str}
    return {name: known[name] for name, kind in kinds.items() if type(known.get(name)) is kind}


def _wake_at(state: State, parked: RunParked | None, submission: Submission | None) -> float | None:
    if state == "submitted" and submission is not None and submission.not_before_ns:
        return submission.not_before_ns / 1e9
    if state in ("waiting", "in doubt") and parked is not None:
        return wake_time(parked.wake_at)
    return None


def _packed_task(started: RunStarted | None, submission: Submission | None) -> Packed | None:
    if started is not None:
        return packed_value(started.task)
    return pack(submission.task, "task") if submission is not None else None


@dataclass(slots=True)
class _Read:
    """A run from its newest checkpoint on, without values, and what is counted of it."""

    run: ShallowHistory
    tally: ProgressTally
    errors: ErrorTally
    owners: Owners
    parked: RunParked | None
    submission: Submission | None
    foreign: Record | None = None  # the newest record of a log that has none of a run

    @property
    def is_empty(self) -> bool:
        run = self.run
        return not (run.started or run.tail or run.start.lsn or run.damage or run.lost)

    def times_ns(self) -> tuple[int, int]:
        """When the run began, and its last record."""
        run, submission = self.run, self.submission
        else_ns = submission.submitted_ns if submission is not None else run.start.time_ns
        began_ns = run.entries[0][1] if run.entries else else_ns
        if self.foreign is not None:
            return began_ns, self.foreign.time_ns
        return began_ns, run.tail[-1][1] if run.tail else else_ns


def _unread(
    inbox: OpenInbox, read: _Read, approvers: Approvers | None
) -> tuple[tuple[PendingMessage, ...], str]:
    run = read.run
    if run.started is None and read.submission is None:
        return (), ""
    try:
        if run.started is None and read.submission is not None:
            run = replace(run, started=first_record_of(read.submission, kinds_signed(approvers)))
        return tuple(unread(inbox, run, approvers)), ""
    except (LogError, RecoveryError, ValueError) as exc:
        return (), str(exc)


def _unclaimed(replay: Replay) -> tuple[int, ...]:
    """The outcomes of lost calls, until a resumed run has calls that they may be of."""
    losses = replay.losses
    return losses.unclaimed_outcomes() if losses is not None and not losses.assumed else ()


def _note_former(read: _Read, reader: ReadableLog, next_lsn: int, alive: bool) -> None:
    """Have the owners before known where it matters: for calls in doubt."""
    if any(call.in_doubt for call in read.run.replay.unmatched()):
        former = reader.former_owner()
        if not (alive and former):  # else the owner's own record tells of them
            read.owners.reads(next_lsn, former)


def _last_event_text(reader: ReadableLog, run_id: str, read: _Read) -> tuple[str, bool]:
    """The last event in a line. And whether a listing may keep the status: this process has all
    types of values in the line, and no value belongs to a subject, because listings are not
    encrypted."""
    run = read.run
    if not run.tail:
        return (f"checkpoint at the end of step {run.start.step}" if run.start.lsn else ""), True
    event = EventReader(run_id, read.tally, reader.fetch).build(*run.tail[-1])
    try:
        return line_of(event), not is_personal(entry[2] for entry in run.entries)
    except (RecoveryError, ValueError):
        return text_of(event), False


def _read(reader: ReadableLog, run_id: str, approvers: Approvers | None, last_lsn: int) -> _Read:
    run = load_shallow(reader, run_id, approvers)
    tallies = run.tallied(ProgressTally()), run.tallied(ErrorTally()), run.tallied(Owners())
    submission = submission_of(reader, run_id) if run.started is None else None
    events = (event for *_, event in reversed(run.entries))
    parked = next((event for event in events if isinstance(event, RunParked)), None)
    read = _Read(run, *tallies, parked, submission)
    if read.is_empty and last_lsn and submission is None:
        read.foreign = reader.fetch({last_lsn}).get(last_lsn)
    return read


def _kind(read: _Read) -> Kind:
    run = read.run
    if run.started is None:
        return "checkpoints" if run.start.lsn or read.foreign else "agent"
    task = run.started.task
    return _KINDS.get(task, "agent") if type(task) is Packed else "agent"


def _state_of_no_agent(read: _Read) -> tuple[State, str]:
    run = read.run
    if found := [*run.lost, *run.damage]:
        return "unreadable", str(found[0])
    if read.submission is not None:
        return "submitted", f"a worker that has agent {read.submission.agent!r} begins it"
    if read.foreign is not None:
        return "saved", f"records of kind {read.foreign.kind!r}, and none of a run"
    return ("saved", f"the newest of step {run.start.step}") if run.start.lsn else ("empty", "")


def _state(read: _Read, calls: tuple[OpenCall, ...], alive: bool) -> tuple[State, str]:
    run, ended = read.run, read.run.ended
    undoing = isinstance(ended, RunUndone) and read.tally.status != "undone"
    if ended is not None and not undoing:
        return state_of_end(ended)
    if alive:
        return "running", ""
    if undoing:
        return "interrupted", "its undo was not finished"
    if run.started is None:
        return _state_of_no_agent(read)
    if run.lost:
        return "damaged", f"{run.lost[0]}. A recovery refuses; see `logdump repair`"
    if read.parked is None or read.tally.status != "parked":
        error = read.errors.last
        return "interrupted", str(error) if error is not None and not error.is_past else ""
    again = {call.lsn for call in run.replay.unmatched() if call.parked_run}
    return state_of_parked(read.parked, calls, again)
