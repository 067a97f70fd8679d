"""Judges code that differs from the record: reports harmless drift, and stops at side effects.

``replay.by_identity`` compares the record with the present code: a call has its exact identity
there, or an unambiguous counterpart, or none. This module decides what follows, by what a mistake
could do:

    a call that is safe to repeat   is served its counterpart's outcome; or executed
    messages                        the recorded ones stay; reworded ones are dropped
    calls and messages not made     are expected no more, if they are safe to repeat
    a side effect                   stops the run

Code that has not changed should do the same again. If it does not, an unrecorded input has led it
elsewhere. Then a call is served only an outcome of a call that resembles it, and no new side effect
is made while recorded calls are left.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from recovery.declare.spec import ToolSpec
from recovery.errors import AtStake, DivergenceError, Sides
from recovery.journal.call_key import CallKey
from recovery.journal.events import HistoryDropped, MessagesChanged
from recovery.replay.by_identity import counterpart
from recovery.replay.call_view import call_text, recorded_call_view
from recovery.replay.recorded_call import RecordedCall, RecordedChange
from recovery.text import SEALED_TEXT, shorten
from recovery.values.diff import differing
from recovery.values.pack import unpack
from recovery.values.sealed import sealed_data

if TYPE_CHECKING:
    from recovery.engine.execution_base import ExecutionBase
    from recovery.history.load import History

_logger = logging.getLogger("recovery")

ALIKE_MIN = (
    0.5  # the share of words that two texts have in common, of which one is the other edited
)
WORDS_MAX = 2000
STAKES_MAX = 20  # side effects that an error names


class Drift:
    """The differences between the code of one run and its record."""

    def __init__(self, run: ExecutionBase, history: History) -> None:
        self._run, self._replay, self._history = run, history.replay, history
        self.said: list[str] = []  # a line each
        # Whether the run was found to diverge while its caller was cancelling it.
        self.in_cancellation = False
        self._known = {
            event.drift
            for _, _, event in history.entries
            if isinstance(event, HistoryDropped) and event.drift
        }

    @property
    def is_allowed(self) -> bool:
        """Whether harmless drift is reported instead of stopping the run."""
        return self._run.settings.on_drift == "report"

    # -- calls

    def judge(
        self, spec: ToolSpec, key: CallKey, sides: Sides, compared: Callable[[Any], Any]
    ) -> RecordedCall | None:
        """Judge a call that is not recorded, while recorded calls are left. Returns the recorded
        call whose outcome it is served; None if it is new and may be made. Otherwise the run stops.

        ``compared`` gives the compared part of recorded arguments, or of the call's own for None.
        """
        left = self._replay.unmatched()
        risky = [call for call in left if self._replay.side_effects.has(call)]
        like = self._replay.resembling(key)
        if self.is_allowed and like not in risky:
            if spec.repeatable:
                found = counterpart(left, key)
                if found is not None and found not in risky and self._serves(found, compared):
                    self.say(
                        f"call {call_text(found)} (LSN {found.lsn}) is served to the present "
                        f"code: {sides.found}",
                        served=(found.lsn, key),
                    )
                    return self._replay.match(found.key)
                if any(map(self.is_of_other_code, self._left())):
                    self.say(f"made between recorded calls: {sides.found}")
                    return None
            elif not risky and all(map(self.is_of_other_code, self._left())):
                self.pass_over()
                return None
        self.diverge(sides, key)
        return None

    def _serves(self, found: RecordedCall, compared: Callable[[Any], Any]) -> bool:
        known = found.intent.args
        if self.is_of_other_code(found.lsn):
            return True
        return known is not None and alike(compared(known), compared(None))

    def may_finish(self) -> bool:
        """Whether the agent may return though recorded calls are left. They are expected no
        more."""
        if not self.is_allowed or any(map(self._replay.side_effects.has, self._replay.unmatched())):
            return False
        self.pass_over()
        return True

    def pass_over(self) -> None:
        """Stop expecting the calls and messages that are left."""
        left = self._replay.unmatched()
        said = [f"call {call_text(call)} (LSN {call.lsn}) is not made any more" for call in left]
        said += [
            f"LSN {one.lsn}, {change_text(self._history, one)}, is not made any more"
            for one in self._replay.changes
        ]
        dropped = self._replay.pass_over()
        for line in said[:-1]:
            self.say(line)
        for line in said[-1:]:
            self.say(line, dropped)

    # -- messages

    def reworded(self, start: int, known: list[Any], new: list[Any], change_start: int) -> bool:
        """Whether these new messages are the recorded ones in other words."""
        return len(known) == len(new) and all(
            alike(one, other) or (start == change_start and _is_system(one) and _is_system(other))
            for one, other in zip(known, new, strict=True)
        )

    def takes(self, new: str) -> bool:
        """Whether an unrecorded message may come between recorded ones."""
        known = all(self.is_of_other_code(one.lsn) for one in self._replay.changes)
        if not self.is_allowed or not known:
            return False
        self.say(f"made between recorded messages: {new}")
        return True

    # -- reporting

    def say(
        self, text: str, dropped: Sequence[int] = (), served: tuple[int, CallKey] | None = None
    ) -> None:
        """Log and report a difference, once. ``served``: the LSN of a call, and the call that is
        served its outcome, now and in later processes, whatever is recorded by then."""
        run = self._run
        line = f"step {run.step}: {text}"
        self.said.append(line)
        if line in self._known and not (dropped or served):
            return
        self._known.add(line)
        _logger.warning("run %s: the code has drifted from the record, in %s", run.run_id, line)
        event = HistoryDropped(list(dropped), line)
        if served is not None:
            lsn, key = served
            event = replace(
                event, call=lsn, call_id=key.call_id, digest=key.digest, occurrence=key.occurrence
            )
        run.note_dropped(event)

    def diverge(self, sides: Sides, key: CallKey | None = None) -> None:
        """Stop the run, because the code differs from the record; unless that was accepted.

        If it was, the records that the code has not replayed are expected no more, and the code
        continues. In a run that is to stop anyway, the stop explains the difference.
        """
        run = self._run
        if run.stopped is not None:
            run.stop(run.stopped)
        # A read in doubt may be forgotten: code that needs it makes it again.
        in_doubt = self._replay.side_effects.in_doubt(self._replay.unmatched())
        if not self._history.accepted or in_doubt:
            self.in_cancellation = run.is_being_cancelled()
            doubt = (0, "")
            if self._history.accepted:
                doubt = in_doubt[0].lsn, in_doubt[0].intent.idempotency_key(run.uid)
            run.stop(DivergenceError(run.run_id, run.step, sides, doubt, self._at_stake(key)))
        self._history.accepted = False
        dropped = self._replay.discard_unmatched()
        _logger.warning(
            "run %s: diverged in step %d, as accepted: %d records dropped (LSN %s)",
            run.run_id,
            run.step,
            len(dropped),
            dropped,
        )
        run.note_dropped(HistoryDropped(dropped))

    def _at_stake(self, key: CallKey | None) -> AtStake:
        left = self._replay.unmatched()
        effects = [
            str(recorded_call_view(self._run, one)) for one in self._replay.side_effects.among(left)
        ]
        renamed = ""
        if key is not None and not self._replay.knows_tool(key.tool):
            renamed = next(
                (
                    call.key.tool
                    for call in left
                    if (call.key.scope, call.key.call_id, call.key.digest)
                    == (key.scope, key.call_id, key.digest)
                ),
                "",
            )
        known = self._left()
        same = bool(known) and not any(map(self.is_of_other_code, known))
        return AtStake(
            tuple(effects[:STAKES_MAX]),
            max(0, len(effects) - STAKES_MAX),
            renamed,
            key.tool if key is not None else "",
            same,
        )

    # -- which code wrote a record

    def is_of_other_code(self, lsn: int) -> bool:
        """Whether other code than the present one wrote this record, or that is unknown."""
        code = self._replay.code_at(lsn)
        return not code or code != self._history.code

    def _left(self) -> list[int]:
        """The records of calls and messages that the code has not made again."""
        left = [call.lsn for call in self._replay.unmatched()]
        return left + [one.lsn for one in self._replay.changes]


def change_text(history: History, recorded: RecordedChange) -> str:
    """The text of a recorded change of the messages."""
    packed = [history.packed_of(item) for item in recorded.change.new]
    return messages_text(recorded.change, packed)


def messages_text(change: MessagesChanged, packed: Iterable[bytes]) -> str:
    """The text of a change of the messages to these."""
    return f"messages[{change.start}:{change.stop}] = {shorten(shown(packed))}"


def shown(packed: Iterable[bytes]) -> list[Any]:
    """Packed messages as people, and the events of a run, may have them: no subject's."""
    return [unpack(one) if sealed_data(one) is None else SEALED_TEXT for one in packed]


def alike(one: Any, other: Any) -> bool:
    """Whether two values differ only in texts that have most of their words in common."""
    return all(
        type(a) is type(b) is str and _common(a, b) >= ALIKE_MIN
        for _, a, b in differing(one, other)
    )


def _common(one: str, other: str) -> float:
    a, b = (Counter(re.findall(r"\w+", text.lower())[:WORDS_MAX]) for text in (one, other))
    return 2 * (a & b).total() / max(1, a.total() + b.total())


def _is_system(message: Any) -> bool:
    return isinstance(message, dict) and message.get("role") in ("system", "developer")
