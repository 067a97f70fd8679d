"""Defines the messages that others send to a run: signals, decisions, the end of the run. Pure.

A message names its run by the run's uid, inside the record. So an attacker who copies files, and
has no key, cannot make a message count in another run, or in a fork of its run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal, cast

from eventlog import Packed, Record
from eventlog.light_dataclass import light_dataclass
from recovery.journal.contract_version import version_of
from recovery.journal.events import LogRepaired, RecordsLost, RunStarted
from recovery.journal.signed_statement import (
    NOBODY_KNOWS,
    UNSIGNED,
    Signatures,
    Statement,
    content_of,
    has_to_be_signed,
)
from recovery.values.pack import unpack, unpack_map
from recovery.values.sealed import plain

Kind = Literal["signal", "decision", "cancel"]
SIGNAL: Kind = "signal"
DECISION: Kind = "decision"
CANCEL: Kind = "cancel"
_KINDS = {SIGNAL, DECISION, CANCEL}
_REPAIRS = {RecordsLost.kind, LogRepaired.kind}

# Fields of the envelope. RUN_LSN: up to where the log of the run was known to be durable when the
# message was sent. A log that ends before that has lost records, or is another log.
UID, RUN_LSN, KEY = "uid", "run_lsn", "key"
# The content and time under the signature, and the signature.
CONTENT, SIGNATURE = "content", "signature"
OTHER_ARGUMENTS = "it was signed for other arguments"


@light_dataclass
class Message:
    """A message; ``lsn`` is its number in the inbox, ``time_ns`` when it was sent.

    ``about``: the name of a signal, or the idempotency key of the call that was decided.
    ``uid``: of the run that it is for; "" in messages of older libraries. ``value``: of a signal.
    ``content`` and ``signature``: see approvers.Statement; empty where it is not signed.
    ``nonsense``: why it cannot be read; its other fields are unknown then.
    """

    lsn: int
    time_ns: int
    kind: Kind
    about: str = ""
    who: str = ""
    why: str = ""
    approved: bool = False
    uid: str = ""
    run_lsn: int = 0
    value: Packed | None = None
    content: str = ""
    signature: bytes = b""
    nonsense: str = ""

    @property
    def statement(self) -> Statement:
        """The statement under its signature."""
        answer = ("denied", "approved")[self.approved] if self.kind == DECISION else ""
        return Statement(
            self.uid, self.kind, self.about, answer, self.who, self.why, self.time_ns, self.content
        )

    def signed_after(self, records: Iterable[Record]) -> Message:
        """The same message, if it was signed after those already recorded about its subject."""
        others = map(Message.of, filter(is_message, records))
        times = [one.time_ns for one in others if one.about == self.about]
        return replace(self, time_ns=max([self.time_ns, *(time_ns + 1 for time_ns in times)]))

    def is_after(self, heard: tuple[int, int]) -> bool:
        """Whether a decision was made after this one (its LSN, and when it was made).

        Signed decisions are ordered by the time of signing. Otherwise an old approval could be sent
        again after a denial.
        """
        lsn, time_ns = heard
        return self.lsn > lsn and (not self.signature or self.time_ns > time_ns)

    def is_about(self, packed: Packed) -> bool:
        """Whether a decision is about a call with these arguments, as far as it says."""
        return not self.content or self.content == content_of(packed)

    @classmethod
    def of(cls, record: Record) -> Message:
        """The message in a record of a kind that ``is_message`` knows."""
        where = record.lsn, record.time_ns, cast(Kind, record.kind)
        try:
            body = unpack_map(record.packed)
            return cls(*where, **_fields(record.kind, body))
        except (KeyError, TypeError, ValueError) as exc:
            return cls(*where, nonsense=f"it makes no sense ({type(exc).__name__}: {exc})"[:200])


@light_dataclass
class Recipient:
    """The run to which messages are sent. ``takes_unbound``: messages that name no run count, too.
    ``approvers``: who must sign messages. ``started``: the run's first record."""

    uid: str
    takes_unbound: bool = False
    approvers: Signatures | None = None
    started: RunStarted | None = None

    @classmethod
    def of(cls, started: RunStarted | None, approvers: Signatures | None) -> Recipient:
        """The run that began with this record. Only a run of an older library can have messages
        that name no run; none of them is for a fork."""
        if started is None:
            return cls("")
        unbound = version_of(started.rules) < 2 and not started.forked_from
        return cls(started.uid, unbound, approvers, started)

    def refuses(self, message: Message) -> str:
        """Why a message does not count here; "" if it does."""
        if message.nonsense:
            return message.nonsense
        if not message.uid:
            if not self.takes_unbound:
                return "it names no run, as messages of older libraries do: send it again"
        elif message.uid != self.uid:
            return "it was sent to another run"
        return self._unsigned(message)

    def _unsigned(self, message: Message) -> str:
        approvers = self.approvers
        if not has_to_be_signed(message.kind, self.started, approvers):
            return ""
        if not message.signature:
            return UNSIGNED
        if approvers is None:
            return NOBODY_KNOWS
        if message.kind == DECISION and not message.content:
            return "it was signed without the arguments of the call"
        if message.value is not None and message.content != content_of(message.value):
            return "it was signed with another value"
        if approvers.accepts(message.statement, message.signature):
            return ""
        return f"approvers= knows of no such signature of {message.who!r}"


def last_of(decisions: Sequence[Message]) -> Message | None:
    """The decision about a call that counts. Of signed ones the one signed last, because messages
    can be copied; of others the one sent last, because clocks differ."""
    return max(
        decisions, key=lambda one: ((one.signature and one.time_ns) or 0, one.lsn), default=None
    )


def is_message(record: Record) -> bool:
    """Whether messages have this kind of record."""
    return record.kind in _KINDS


def is_repair(record: Record) -> bool:
    """Whether the record is a placeholder of a repair for lost messages."""
    return record.kind in _REPAIRS


def _fields(kind: str, body: dict[str, Packed]) -> dict[str, Any]:
    def read(name: str, wanted: type, default: Any = None) -> Any:
        if name not in body and default is not None:
            return default
        value = unpack(body[name])
        if type(value) is not wanted:
            raise TypeError(f"{name} is no {wanted.__name__}")
        return value

    found = {
        "who": read("who", str, ""),
        "why": read("why", str, ""),
        "uid": read(UID, str, ""),
        "run_lsn": read(RUN_LSN, int, 0),
        "content": read(CONTENT, str, ""),
        "signature": read(SIGNATURE, bytes, b""),
    }
    match kind:
        case "signal":
            found |= {"about": read("name", str), "value": body["value"]}
        case "decision":
            found |= {"about": read("of", str), "approved": read("approved", bool)}
    return found


def is_same_message(record: Record, sent: tuple[str, dict[str, Packed]], key: str) -> bool | None:
    """Whether a record is the message ``sent`` (kind and body) under ``key``; None if it was sent
    under another key, or to another run."""
    try:
        body = unpack_map(record.packed)
        known = unpack(body[KEY])
    except (KeyError, ValueError):
        return None
    if known != key or body.get(UID) != sent[1].get(UID):
        return None
    body.pop(RUN_LSN, None)
    first, again = (
        {name: part for name, part in one.items() if name != SIGNATURE} for one in (body, sent[1])
    )
    # Each time it is sent, a sealed value has other bytes.
    return (record.kind, *_plain(first)) == (sent[0], *_plain(again))


def _plain(body: dict[str, Packed]) -> list[tuple[str, bytes]]:
    return sorted((name, plain(part)) for name, part in body.items())
