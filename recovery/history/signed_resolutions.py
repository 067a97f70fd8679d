"""Verifies the signatures of resolutions, in stores that require them.

A resolution is a record in the run's own log, and holds its signature: of the run, the call, the
outcome, and the position in the log. So it is verified each time that the run is read, and is valid
in no other place. The log can still be forged: a process that can write to it can record that the
call returned.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, TypedDict

from eventlog import Packed, Record, WritableLog
from recovery.errors import RecoveryError
from recovery.journal.encoding import decode_shallow, encode
from recovery.journal.events import CallIntended, CallResolved, Event, RunStarted
from recovery.journal.signed_statement import (
    RESOLVE,
    UNSIGNED,
    Signatures,
    Statement,
    content_of,
    has_to_be_signed,
)

if TYPE_CHECKING:
    from recovery.approvers import Sign


class Attribution(TypedDict, total=False):
    """The author of a resolution, the reason, and the function that signs it; ``force``: see
    RunHandle.resolve."""

    who: str
    why: str
    sign: Sign | None
    force: bool


_logger = logging.getLogger("recovery")

Entry = tuple[int, int, Event]  # LSN, time in ns, event


def kinds_signed(approvers: Signatures | None) -> list[str] | None:
    """The kinds of messages that must be signed, as a new run records them; None for none."""
    return None if approvers is None else sorted({"decision", *approvers.also})


def check_signed(
    kind: str,
    started: RunStarted | None,
    approvers: Signatures | None,
    sign: Sign | None,
    asked: bool = False,
) -> None:
    """Raise RecoveryError for a message that would not count. ``asked``: the call requires a
    signature."""
    if sign is None and (asked or has_to_be_signed(kind, started, approvers)):
        raise RecoveryError(
            f"a {kind} counts for run {started.run_id if started else ''!r} only when it is "
            "signed, for its store has approvers=. Nothing was written. Sign it: `--sign KEYFILE`, "
            "or sign=signing_key(path) of recovery.approvers."
        )


def signature_of(said: Statement, sign: Sign, approvers: Signatures | None) -> bytes:
    """The signature of a statement; RecoveryError when the store cannot verify it."""
    signature = sign(said.to_bytes())
    if approvers is not None and not approvers.accepts(said, signature):
        raise RecoveryError(
            f"approvers= of the store knows of no such signature of {said.who!r} (who=). "
            "Nothing was written."
        )
    return signature


def append_resolution(
    log: WritableLog,
    run: tuple[RunStarted | None, Signatures | None],
    event: CallResolved,
    key: str,
    sign: Sign | None,
) -> None:
    """Record a resolution of the call of this idempotency key, durably."""
    started, approvers = run
    check_signed(RESOLVE, started, approvers, sign)
    time_ns = None
    if sign is not None and started is not None:
        event, lsn, time_ns = replace(event, key=key), log.last_lsn + 1, log.time_ns()
        said = _statement(started.uid, lsn, time_ns, event)
        event = replace(event, signature=signature_of(said, sign, approvers))
    log.append(*encode(event), time_ns=time_ns)
    log.commit()


class Resolutions:
    """Drops resolutions that do not count, while a run is read from its beginning.

    Decisions of the run's own process, by the policy of a tool, need no signature.
    """

    def __init__(self, run_id: str, approvers: Signatures | None) -> None:
        self._run_id, self._approvers = run_id, approvers
        self._started: RunStarted | None = None
        self._intents: dict[int, CallIntended] = {}

    def of_entries(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """Entries as ``decode_shallow`` has them, without those that do not count."""
        return (entry for entry in entries if self._counts(*entry))

    def of_items(self, items: Iterable[tuple[Record, Event]]) -> Iterator[tuple[Record, Event]]:
        """The same of records with their events."""
        for record, event in items:
            light = decode_shallow(record) if isinstance(event, CallResolved) else event
            assert light is not None  # its kind is known
            if self._counts(record.lsn, record.time_ns, light):
                yield record, event

    def _counts(self, lsn: int, time_ns: int, event: Event) -> bool:
        match event:
            case RunStarted():
                self._started = event
            case CallIntended() if self._approvers is not None:
                self._intents[lsn] = event
            case CallResolved(by_policy=False):
                if refused := self._refuses(lsn, time_ns, event):
                    what = (
                        f"the resolution of call {event.call} by {event.who!r} (LSN {lsn}) does "
                        "not count"
                    )
                    _logger.warning("run %s: %s: %s", self._run_id, what, refused)
                return not refused
        return True

    def _refuses(self, lsn: int, time_ns: int, event: CallResolved) -> str:
        started, approvers = self._started, self._approvers
        if started is None or not has_to_be_signed(RESOLVE, started, approvers):
            return ""
        if event.signature is None:
            return UNSIGNED
        if approvers is None:
            return ""  # it may be shown, but no agent continues with it: see check_known
        intent = self._intents.get(event.call)
        if intent is not None and intent.idempotency_key(started.uid) != event.key:
            return "it was signed for another call"
        if approvers.accepts(_statement(started.uid, lsn, time_ns, event), event.signature):
            return ""
        return f"approvers= knows of no such signature of {event.who!r}"


def _statement(uid: str, lsn: int, time_ns: int, event: CallResolved) -> Statement:
    content = content_of(event.value) if isinstance(event.value, Packed) else ""
    about = f"{event.key}@{lsn}"
    return Statement(uid, RESOLVE, about, event.how, event.who, event.why, time_ns, content)
