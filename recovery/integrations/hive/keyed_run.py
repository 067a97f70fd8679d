"""A run that is written by key and never replayed: the calls of a conversation, and its messages.

An agent function is replayed: it comes upon its calls again, in an order that the record knows. A
conversation of Hive's is not: after a crash the model goes on from what it reads, and asks for
something else. So of the runtime this uses events, identities of calls, checkpoints and what reads
them, and no replay: what the log says is folded into what is, and whoever opens the run goes on.
"""

from __future__ import annotations

import threading
import time
import uuid
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any

from eventlog import Packed
from recovery import RecoveryError
from recovery.engine.journal_writer import record
from recovery.history.checkpoint_store_base import CheckpointStoreBase
from recovery.history.load import Entry, History, check_known, load
from recovery.history.signed_resolutions import kinds_signed
from recovery.history.snapshot_writer import CheckpointMeta, SnapshotWriter
from recovery.journal.call import Call
from recovery.journal.events import (
    CallAbandoned,
    CallFailed,
    CallIntended,
    CallResolved,
    CallReturned,
    Event,
    MessagesChanged,
    RunFinished,
    RunResumed,
    RunStarted,
    StepStarted,
    ValueRecorded,
)
from recovery.journal.keys import CallKey, step_scope
from recovery.journal.links import CONVERSATION, ParentRun
from recovery.journal.messages import Messages
from recovery.replay.call_view import recorded_call
from recovery.replay.recorded_call import RecordedCall
from recovery.values.backref_index import BackrefIndex
from recovery.values.backrefs import refs_of
from recovery.values.pack import pack, pack_arguments, unpack
from recovery.values.types import Ref, digest

SHARED = ("phase_id", "run_id")  # by which Hive tells conversations in one store apart
UNSEEN_MAX = 1000  # more calls than any model asks for in a turn
CHECKPOINT_SIZE = 256 << 10  # so much is read at most, and the last turn, when it is opened again


class Book:
    """What is recorded of a conversation; thread-safe.

    ``parts``: its messages, in the order of their seq. ``state``: what else there is of it, by name
    (None: cleared). ``left``: calls that a process before this one began, and of which nothing says
    how they ended. ``unseen``: calls that have ended, and of which the conversation does not know,
    by the model's id. ``earlier``: those of them (LSNs) that a process before this one made, once
    the conversation is read: a loop of which only the tools are recorded asks for new results.
    ``lost``: which records a repair says are lost; "" for none. Then Hive's files count for what
    the conversation is, and the record for its calls. ``is_new``: whether this process began it.
    """

    def __init__(
        self, store: CheckpointStoreBase, run_id: str, parent: ParentRun | None = None
    ) -> None:
        self.run_id, self.step = run_id, 0
        self._parent = parent
        self.mutex = threading.RLock()
        self.state: dict[str, Any] = {}
        self.unseen: dict[str, RecordedCall] = {}
        # Of each conversation that is in here, the last turn: its LSN, and what it asked for.
        self._turns: dict[tuple[Any, ...], tuple[int, dict[str, Any]]] = {}
        self._open: set[int] = set()  # calls of this process that have not ended
        self._counts: Counter[CallKey] = Counter()
        self._log = store.claim(run_id)
        self._approvers = store.approvers
        try:
            self._history = load(self._log, run_id, store.approvers)
            self._check(self._history)
            check_known(self._history, store.approvers)
            restored = self._history.restored
            writer = SnapshotWriter(self._log, restored)
            self._outcomes = BackrefIndex(
                restored.referenced_size if restored else 0,
                restored.generation.first if restored else 1,
            )
            self.parts = Messages(self._record_parts)
            if restored is not None:
                self.step = restored.step
                self.state = restored.state
                self.parts.restore(restored.messages, restored.refs)
            self.parts.on_change = writer.messages_changed
            self._pruning = store.pruning(run_id, self._log, writer)
            self.left = self._fold(self._history.entries)
            self.earlier: set[int] = set()
            self._history.entries = []
            self.is_new = self._history.started is None
            self._begin()
            if self.lost:
                self.state = {}
                self.parts[:] = []
        except BaseException:
            self._log.close()
            raise

    def _check(self, history: History) -> None:
        if history.started is not None and history.started.task != CONVERSATION:
            raise RecoveryError(f"run {self.run_id!r} is not one of a conversation of Hive's")
        # A conversation that was finished goes on when it is opened again.
        if history.ended is not None and not isinstance(history.ended, RunFinished):
            raise RecoveryError(f"run {self.run_id!r} has ended: nothing can be added to it")
        losses = history.replay.losses
        self.lost = ", ".join(f"{gap.first}-{gap.last}" for gap in losses.gaps) if losses else ""

    def _fold(self, entries: list[Entry]) -> list[RecordedCall]:
        """Take what was recorded behind the checkpoint; the calls that have not ended."""
        calls = {call.lsn: call for call in self._history.replay.unmatched()}
        for lsn, _, event in entries:
            match event:
                case StepStarted():
                    self.step = max(self.step, event.step)
                case ValueRecorded() if not self.lost:
                    self.state[event.name] = event.value
                case CallReturned() | CallResolved() | CallFailed() | CallAbandoned():
                    call = calls.get(event.call)
                    if call is not None and (call.has_outcome or call.cancelled):
                        self.unseen[call.key.call_id] = call
                case MessagesChanged() if not self.lost:  # each says what changes in the last one
                    packed = [self._history.packed_of(item) for item in event.new]
                    self.parts._put(event.start, event.stop, packed, refs_of(event.new, lsn))
                    self._notice(self.parts[event.start : event.start + len(packed)], lsn)
        return [call for call in calls.values() if not (call.has_outcome or call.cancelled)]

    def _begin(self) -> None:
        history = self._history
        if history.started is None:
            history.started = RunStarted(
                self.run_id,
                CONVERSATION,
                uuid.uuid4().hex,
                self._parent.packable() if self._parent is not None else None,
                signed=kinds_signed(self._approvers),
            )
            history.prologue.append(record(self._log, history, history.started))
        else:
            history.recoveries += 1
            record(self._log, history, RunResumed(history.recoveries, history.step))
        self.next_step()

    # -- what is written

    def emit(self, event: Event) -> int:
        """Record an event; its LSN. With the operating system when this returns."""
        with self.mutex:
            lsn = record(self._log, self._history, event)
        self._log.commit_behind()
        return lsn

    def commit(self) -> None:
        """Make all of it durable."""
        self._log.commit()

    def next_step(self) -> None:
        """A turn of the conversation begins. Calls of other turns, and processes, are others."""
        with self.mutex:
            self.step += 1
            self._counts.clear()
            self.emit(StepStarted(self.step))

    def put(self, name: str, value: Any) -> None:
        """Set a value of the state, if it is another one."""
        with self.mutex:
            if name in self.state and self.state[name] == value:
                return
            self.emit(ValueRecorded(step_scope(self.step), name, 0, pack(value, name)))
            self.state[name] = deepcopy(value)

    def intend(
        self, tool: str, call_id: str, given: Mapping[str, Any], policy: str
    ) -> RecordedCall:
        """Record that a call is about to be made; durable when this returns."""
        packed = pack_arguments((), dict(given), f"{tool}(...)")
        with self.mutex:
            key = CallKey(step_scope(self.step), tool, call_id, digest(packed))
            self._counts[key] += 1
            key = key.nth(self._counts[key])
            event = CallIntended(
                key.scope, tool, call_id, key.digest, key.occurrence, policy, packed, len(packed)
            )
            now = self._log.time_ns()
            made = RecordedCall(self.emit(event), now, event, key, now)
            made.intent = replace(event, args=unpack(packed))
            self._open.add(made.lsn)
        self.commit()
        return made

    def doubt(self, tool: str, call_id: str, given: Mapping[str, Any], policy: str) -> None:
        """Record a call that an earlier process may have made: nothing says that it did, and
        nothing that it did not."""
        made = self.intend(tool, call_id, given, policy)
        self._open.discard(made.lsn)
        self.left.append(made)
        self.earlier.add(made.lsn)

    def answer(
        self, call_id: str, tool: str, given: Mapping[str, Any] | None
    ) -> RecordedCall | None:
        """The call that is meant by what a message asks for, if it has ended and the conversation
        does not know of it. Without arguments (Hive cuts old ones) its id and tool say so.

        After a crash a model asks under another id. So where the conversation has no place for what
        an earlier process did, that is meant by its tool and arguments, and answers this id now.
        """
        with self.mutex:
            found = self.unseen.get(call_id)
            same = given is None or (found is not None and found.arguments == ((), given))
            if found is not None and found.key.tool == tool and same:
                return found
            for known, call in self.unseen.items():
                meant = (call.key.tool, call.arguments) == (tool, ((), given))
                if meant and call.has_outcome and call.lsn in self.earlier:
                    self.earlier.discard(call.lsn)
                    self.unseen[call_id] = self.unseen.pop(known)
                    return call
        return None

    def forget_calls(self) -> None:
        """A conversation begins that asks for nothing of what was done before."""
        self.unseen.clear()

    def ended(self, made: RecordedCall, event: CallReturned | CallFailed | CallResolved) -> None:
        """Record how a call ended; durable when this returns."""
        with self.mutex:
            lsn = self.emit(event)
            if not isinstance(event, CallFailed) and type(event.value) is Packed:
                self._outcomes.remember(event.value, lsn)
                event = replace(event, value=unpack(event.value))
            made.apply(lsn, self._log.time_ns(), event)
            self._settled(made)
        self.commit()

    def cancelled(self, made: RecordedCall) -> None:
        """Whoever waited for a call was cancelled: nobody knows what becomes of it."""
        with self.mutex:
            event = CallAbandoned(made.lsn, made.attempts, "cancelled", True, True)
            made.apply(self.emit(event), self._log.time_ns(), event)
            self._settled(made)

    def _settled(self, made: RecordedCall) -> None:
        self._open.discard(made.lsn)
        self.left = [call for call in self.left if call is not made]
        self.unseen[made.key.call_id] = made
        if len(self.unseen) > UNSEEN_MAX:  # of a loop whose conversation is not recorded
            del self.unseen[next(iter(self.unseen))]

    def call(self, made: RecordedCall) -> Call:
        """A recorded call as tools and people see it."""
        return recorded_call(self._history, made)

    @property
    def last_lsn(self) -> int:
        """The newest record."""
        return self._log.last_lsn

    # -- the messages

    def place_of(self, seq: int) -> int:
        """Where the part of this seq is, or would be."""
        return bisect_left(self.parts, seq, key=lambda part: part["seq"])

    def part(self, seq: int) -> Any:
        """The part of this seq, None if there is none."""
        at = self.place_of(seq)
        found = self.parts[at] if at < len(self.parts) else None
        return found if found is not None and found["seq"] == seq else None

    def write(self, start: int, stop: int, new: list[dict[str, Any]]) -> None:
        """``parts[start:stop] = new``, which then are known to the conversation."""
        with self.mutex:
            if any(part["role"] == "assistant" and part.get("tool_calls") for part in new):
                self.next_step()
            self.parts[start:stop] = new
            self._notice(new, self.last_lsn)
            self._checkpoint_if_due()

    def _record_parts(self, start: int, stop: int, packed: list[bytes]) -> list[Ref | None]:
        found, new = self._outcomes.references_for(packed)
        return refs_of(found, self.emit(MessagesChanged(start, stop, new)))

    def _notice(self, new: list[Any], lsn: int) -> None:
        """The conversation knows of these calls now, or will never ask for them again.

        What a turn has asked for is over when the next turn of the same conversation begins. What
        nobody has asked for may be asked for by a message that the model has not ended: one turn
        more.
        """
        for part in new:
            if part["role"] == "tool":
                self.unseen.pop(part.get("tool_use_id") or "", None)
            elif part["role"] == "assistant":
                whose, asked = conversation_of(part), ids_of(part)
                before, over = self._turns.get(whose, (0, {}))
                self._turns[whose] = lsn, asked
                known = {one for _, ids in self._turns.values() for one in ids}
                self.unseen = {
                    key: call
                    for key, call in self.unseen.items()
                    if key in known or not (key in over or call.last_lsn < before)
                }

    def _checkpoint_if_due(self) -> None:
        # Behind a checkpoint nothing would know of calls before it.
        if self._history.size < CHECKPOINT_SIZE or self._open or self.left or self.unseen:
            return
        history = self._history
        what = CheckpointMeta(
            self.run_id,
            self.step,
            time.time(),
            recoveries=history.recoveries,
            prologue=tuple(history.prologue),
            carried=history.tallies.to_checkpoint(),
            bytes_since=history.size,
        )
        self._pruning.write(what, self.state, self.parts)
        self._outcomes.forget_before(self._pruning.first)
        history.size = 0
        self._log.commit_behind()
        self._pruning.prune(self.mutex)
        self.next_step()

    def finish(self) -> None:
        """Record that it ends here in good order: nothing is under way, or unknown to it."""
        with self.mutex:
            if not (self._open or self.left or self.unseen):
                self.emit(RunFinished(None))
                self.commit()

    def close(self) -> None:
        """Let go of the run. What is under way is in doubt when it is opened again."""
        self._pruning.close()
        self._log.close()


def conversation_of(part: Mapping[str, Any]) -> tuple[Any, ...]:
    """Which of the conversations that share a store a message belongs to."""
    return tuple(part.get(name) for name in SHARED)


def ids_of(part: Mapping[str, Any]) -> dict[str, Any]:
    """The calls that an assistant message asks for, by the model's id."""
    return {one["id"]: one for one in part.get("tool_calls") or () if one.get("id")}
