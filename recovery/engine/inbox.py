"""Reads the messages that other processes have sent to a run.

A run's log has one writer. So messages from outside go into a log beside it, which its senders
open one after the other and the run reads. A message counts only once it is durable, because the
run's record must not refer to a message that a power loss takes away.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from eventlog import Damage, Packed, ReadableLog, Record
from recovery.declare.scope import runs_at_work
from recovery.errors import DamagedRunError, RunCancelledError
from recovery.inspect.inbox_check import inbox_damage, lost_inbox, lost_log
from recovery.journal.events import RunCancelled
from recovery.journal.inbox_messages import OTHER_ARGUMENTS, Message, is_message, is_repair, last_of
from recovery.replay.taken_signals import Signals
from recovery.text import quoted

if TYPE_CHECKING:
    from recovery.engine.execution_base import ExecutionBase

_logger = logging.getLogger("recovery")

# How often an agent that makes one call after the other reads its messages. It is less often the
# more runs there are, so that a thousand runs do not look at each step.
LOOK_S, LOOK_PER_RUN_S = 0.2, 0.001


class Inbox:
    """The messages to a run, each read once; guarded by the run's mutex."""

    def __init__(self, run: ExecutionBase) -> None:
        self._run = run
        # Reads the inbox of the run that has started this one.
        self.above: Callable[[], None] | None = None
        self._reader: ReadableLog | None = None
        self._arrivals: Iterator[Record | Damage | None] = iter(())
        self._held: deque[Record] = deque()  # read, but maybe not durable yet
        self._durable_lsn = 0
        self._next_look = 0.0
        self._signals: dict[str, deque[Message]] = {}  # signals not taken yet, by name
        self._decisions: dict[str, list[Message]] = {}  # by the key of the call
        self._spent: set[str] = set()
        self._reported: set[int] = set()
        self._cancelled: Message | None = None

    def look(self, *, at_once: bool = False) -> None:
        """Read new messages, now and then or ``at_once``. A cancelled run ends here."""
        now = time.monotonic()
        if now >= self._next_look or at_once:
            self._next_look = now + LOOK_S + LOOK_PER_RUN_S * len(runs_at_work)
            self._run.write_or_stop(self._read)
            if self.above is not None:
                self.above()
                self._run.check()
        if self._cancelled is not None:
            self._end_run(self._cancelled)

    def came(self, names: tuple[str, ...], until: float | None) -> float | None:
        """When the signal was sent that ``take`` would give (seconds since 1970)."""
        found = self._next(names, until)
        return None if found is None else found.time_ns / 1e9

    def take(
        self, names: tuple[str, ...], until: float | None = None
    ) -> tuple[Message, Packed] | None:
        """The oldest signal of these names that is not taken, and its value.

        A signal that was sent later than ``until`` is for a later wait, and so are those after it.
        """
        found = self._next(names, until)
        if found is None:
            return None
        self._signals[found.about].popleft()
        record = self._run.write_or_stop(lambda: self._fetch(found.lsn))
        value = Message.of(record).value
        assert value is not None
        return found, value

    def _next(self, names: tuple[str, ...], until: float | None) -> Message | None:
        oldest = (self._signals[name][0] for name in names if self._signals.get(name))
        in_time = (sent for sent in oldest if until is None or sent.time_ns / 1e9 <= until)
        return min(in_time, key=lambda sent: sent.lsn, default=None)

    def decision(
        self, key: str, counts: Callable[[Message], bool], packed: Packed
    ) -> Message | None:
        """The last decision about the call of this idempotency key and these arguments, among
        those that ``counts`` accepts."""
        counting: list[Message] = []
        for made in self._decisions.get(key, ()):
            if made.is_about(packed):
                counting += [made] * counts(made)
            else:
                self._refused(made, OTHER_ARGUMENTS)
        return last_of(counting)

    def spent(self, key: str) -> None:
        """Note that the call of this key begins: later decisions come too late."""
        self._spent.add(key)

    def close(self) -> None:
        """Close the files."""
        if self._reader is not None:
            self._reader.close()

    def _read(self) -> None:
        if self._reader is None:
            self._reader = self._run.store.backend.inbox(self._run.run_id)
            self._check(self._reader)
            if self._reader is None:
                return
            self._arrivals = self._reader.arrivals()
        for item in self._arrivals:
            if item is None:
                break
            if isinstance(item, Record):
                self._held.append(item)
                self._sort(self._reader)
            elif item.lost:
                raise self._lost(item)
            else:
                _logger.warning("run %s: inbox: %s", self._run.run_id, item)
        self._sort(self._reader)

    def _sort(self, inbox: ReadableLog) -> None:
        """Sort the messages that are durable."""
        while self._held:
            lsn = self._held[0].lsn
            if self._durable_lsn < lsn:
                self._durable_lsn = inbox.durable_lsn()
            if lsn > self._durable_lsn:
                return
            self._sort_one(self._held.popleft())

    def _check(self, inbox: ReadableLog | None) -> None:
        """Check that this is the inbox whose messages the run has read before."""
        damage = inbox_damage(inbox, self._signals_taken(), self._run.uid)
        if damage:
            raise lost_inbox(self._run.run_id, damage, self._run.store.backend)

    def _signals_taken(self) -> Signals:
        signals = self._run.tallies[Signals.name]
        assert isinstance(signals, Signals)
        return signals

    def _sort_one(self, record: Record) -> None:
        if is_repair(record):
            return
        if not is_message(record):
            what = f"record {record.lsn} is no message, but {record.kind!r}: files of another log"
            raise self._lost(Damage.of_records(record.lsn, record.lsn, what))
        sent, last = Message.of(record), self._run.log.last_lsn
        if sent.run_lsn > last:
            raise lost_log(self._run.run_id, sent.run_lsn, last)
        if refused := self._run.recipient.refuses(sent):
            self._refused(sent, refused)
            return
        sent = replace(sent, value=None)  # which may be large, and is read when it is taken
        match sent.kind:
            case "signal" if sent.lsn > self._signals_taken().taken(self._run.uid, sent.about):
                self._signals.setdefault(sent.about, deque()).append(sent)
            case "cancel":
                self._cancelled = self._cancelled or sent
            case "decision":
                if sent.about in self._spent:
                    _logger.warning(
                        "run %s: message %d (%s by %s) came too late: the call has begun, "
                        "idempotency key %s",
                        self._run.run_id,
                        sent.lsn,
                        sent.statement.answer,
                        quoted(sent.who) or "nobody named",
                        sent.about,
                    )
                self._decisions.setdefault(sent.about, []).append(sent)

    def _refused(self, sent: Message, why: str) -> None:
        """Log once that a message does not count."""
        if sent.lsn not in self._reported:
            self._reported.add(sent.lsn)
            what = f"message {sent.lsn} ({sent.kind}) does not count: {why}"
            _logger.warning("run %s: inbox: %s", self._run.run_id, what)

    def _fetch(self, lsn: int) -> Record:
        assert self._reader is not None
        record = self._reader.fetch({lsn}).get(lsn)
        if record is None:
            raise self._lost(Damage.of_records(lsn, lsn, "a signal cannot be read again"))
        return record

    def _lost(self, damage: Damage) -> DamagedRunError:
        # It may have been a denial, or a cancellation.
        error = DamagedRunError(self._run.run_id, [damage])
        error.add_note(
            "This is in what others have sent to the run: the log in `inbox`, which `logdump "
            "repair RUN/inbox` repairs."
        )
        return error

    def _end_run(self, asked: Message) -> None:
        run = self._run
        in_doubt = [call.lsn for call in run.replay.in_doubt()]
        run.record(RunCancelled(asked.who, asked.why, in_doubt, asked.lsn))
        run.commit()
        run.stop(RunCancelledError(run.run_id, asked.who, asked.why, in_doubt))
