"""Records each change of a run's messages, or matches it with a recorded change."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from recovery.engine.divergence import Drift, messages_text, shown
from recovery.errors import RecoveryError, Sides
from recovery.journal.events import MessagesChanged
from recovery.replay.recorded_call import RecordedChange
from recovery.text import shorten
from recovery.values.backref_index import BackrefIndex
from recovery.values.backrefs import CompositeMessage, refs_of
from recovery.values.diff import differences
from recovery.values.pack import unpack
from recovery.values.sealed import plain, sealed_data
from recovery.values.types import Ref

if TYPE_CHECKING:
    from recovery.engine.execution_base import ExecutionBase
    from recovery.history.load import History


class Conversation:
    """Records each change of a run's messages; guarded by the run's mutex."""

    def __init__(self, run: ExecutionBase, history: History, drift: Drift) -> None:
        self._run, self._history, self._drift = run, history, drift
        self.check: Callable[[], None] = lambda: None  # called before each change
        restored = history.restored
        self._outcomes = (
            BackrefIndex(restored.referenced_size, restored.generation.first)
            if restored
            else BackrefIndex()
        )
        self.remember = self._outcomes.remember
        self.forget_before = self._outcomes.forget_before

    def record(self, start: int, stop: int, packed: list[bytes]) -> list[Ref | None]:
        """Record ``messages[start:stop] = packed``; returns where in the log each new one is."""
        run = self._run
        with run.mutex:
            run.before_action()
            self.check()
            call = run.current_scope().call
            if call is not None:
                raise RecoveryError(
                    f"run.messages was changed inside a call of {call.tool}, which is not executed "
                    "again on replay: return the message, and let the agent append it"
                )
            again = self._match(start, stop, packed)
            if again is not None:
                return again
            packed[:] = self._sealed(packed)
            found, new = self._outcomes.references_for(packed)
            return refs_of(found, run.record_when_caught_up(MessagesChanged(start, stop, new)))

    def _sealed(self, packed: list[bytes]) -> list[bytes]:
        run = self._run
        if not run.subjects.is_used:
            return packed
        return [run.write_or_stop(run.subjects.message, one) for one in packed]

    def restore(self) -> None:
        """Make the recorded changes: of a run whose code does not make them again."""
        messages = self._run.messages
        for recorded in list(self._run.replay.changes):
            change, packed = recorded.change, self._known(recorded.change)
            self._run.subjects.restored(packed, {})
            messages.change(change.start, change.stop, packed, self._take(recorded))

    def _match(self, start: int, stop: int, packed: list[bytes]) -> list[Ref | None] | None:
        """Where the new messages are in the log, if the change is recorded: it is not written
        twice.

        Changes of parallel tasks are matched by content and not by order, because nothing makes
        these tasks run in the recorded order.
        """
        run = self._run
        if not run.replay.changes:
            return None  # every change except on replay: the tasks around need not be examined
        allowed = self._drift.is_allowed
        # If changes may be lost, the next recorded one need not be the code's next one.
        alone = run.alone() and not self._may_be_lost()
        for recorded in run.replay.changes:
            change = recorded.change
            known = run.write_or_stop(partial(self._known, change))
            same = stop - start == change.stop - change.start and self._are_same(packed, known)
            if same and (start == change.start or allowed or not run.alone()):
                packed[:] = known
                run.subjects.restored(known, {})
                return self._take(recorded)
            if alone and not allowed:
                break
        if not alone:
            return None
        return self._match_drifted(MessagesChanged(start, stop), packed)

    def _are_same(self, packed: list[bytes], known: list[bytes]) -> bool:
        """Whether these messages are the recorded ones. A forgotten one is not compared."""
        return len(packed) == len(known) and all(map(self._is_same, packed, known))

    def _is_same(self, packed: bytes, known: bytes) -> bool:
        if packed == known or sealed_data(known) is None:
            return packed == known
        found = plain(known)
        if found is known:
            self._run.check_readable(unpack(known), "a message")
        return found is known or plain(packed) == found

    def _match_drifted(self, now: MessagesChanged, packed: list[bytes]) -> list[Ref | None] | None:
        """The same of a change that is not recorded. If a recorded change is this one in other
        words, ``packed`` becomes the recorded messages."""
        drift, new = self._drift, [unpack(one) for one in packed]
        for one in self._run.replay.changes if drift.is_allowed else ():
            values = self._known(one.change)
            old, at = [unpack(value) for value in values], one.change.start
            same_span = one.change.stop - at == now.stop - now.start
            if same_span and drift.reworded(now.start, old, new, at):
                drift.say(
                    f"{messages_text(one.change, values)} (LSN {one.lsn}) stays, in place of "
                    f"{shorten(shown(self._sealed(packed)))}"
                )
                packed[:] = values
                return self._take(one)
        packed = self._sealed(packed)
        if not drift.takes(messages_text(now, packed)):
            first = self._run.replay.changes[0]
            self._diverge(first, self._known(first.change), now, packed)
        return None  # it is new, or the recorded change was dropped by accept

    def _take(self, recorded: RecordedChange) -> list[Ref | None]:
        self._run.replay.take_change(recorded)
        if not self._run.replay.changes:
            self._history.forget_values()
        new = recorded.change.new
        self._outcomes.referenced_size += sum(
            item.referenced_size for item in new if isinstance(item, CompositeMessage)
        )
        return refs_of(new, recorded.lsn)

    def _diverge(
        self,
        recorded: RecordedChange,
        known: list[bytes],
        now: MessagesChanged,
        packed: list[bytes],
    ) -> None:
        change = recorded.change
        found = differences(
            {"start": change.start, "stop": change.stop, "messages": shown(known)},
            {"start": now.start, "stop": now.stop, "messages": shown(packed)},
        )
        self._drift.diverge(
            Sides(recorded.lsn, messages_text(change, known), messages_text(now, packed), found)
        )

    def _may_be_lost(self) -> bool:
        losses, step = self._run.replay.losses, self._run.step
        return losses is not None and (losses.covers_step(step) or step <= losses.upto_change)

    def _known(self, change: MessagesChanged) -> list[bytes]:
        return [self._history.packed_of(item) for item in change.new]
