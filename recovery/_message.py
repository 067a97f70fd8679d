"""What others send to a run: one envelope for signals, decisions and the end of the run. Pure.

A message names the run that it is for by the run's uid, inside the record. So whoever can copy
files, and has no key, cannot have a message count in another run, or in a fork of its run.
"""

from __future__ import annotations

from typing import Any, Literal, cast

from eventlog import Packed, Record
from eventlog._dataclass import dataclass
from recovery._events import LogRepaired, RecordsLost, RunStarted
from recovery._rules import version_of
from recovery._values import unpack, unpack_map

Kind = Literal["signal", "decision", "cancel"]
SIGNAL: Kind = "signal"
DECISION: Kind = "decision"
CANCEL: Kind = "cancel"
_KINDS = {SIGNAL, DECISION, CANCEL}
_REPAIRS = {RecordsLost.kind, LogRepaired.kind}

# Fields of the envelope. RUN_LSN: up to where the log of the run was known to be durable when the
# message was sent. A log that ends before that has lost records, or is another one.
UID, RUN_LSN, KEY = "uid", "run_lsn", "key"


@dataclass(frozen=True, slots=True)
class Message:
    """A message; ``lsn`` is its number in the inbox, ``time_ns`` when it was sent.

    ``about``: the name of a signal, or the idempotency key of the call that was decided about.
    ``uid``: of the run that it is for; "" in messages of older libraries. ``value``: of a signal.
    ``nonsense``: why it cannot be read; then nothing else of it is known.
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
    nonsense: str = ""

    @classmethod
    def of(cls, record: Record) -> Message:
        """The message in a record of a kind that ``is_message`` knows."""
        where = record.lsn, record.time_ns, cast(Kind, record.kind)
        try:
            body = unpack_map(record.packed)
            return cls(*where, **_fields(record.kind, body))
        except (KeyError, TypeError, ValueError) as exc:
            return cls(*where, nonsense=f"it makes no sense ({type(exc).__name__}: {exc})"[:200])


@dataclass(frozen=True, slots=True)
class Recipient:
    """The run to which messages are sent. ``takes_unbound``: those count, too, that name no run."""

    uid: str
    takes_unbound: bool = False

    @classmethod
    def of(cls, started: RunStarted | None) -> Recipient:
        """The run that began with this record. Only a run of an older library can have been sent
        messages that name no run; none of them was meant for a fork."""
        if started is None:
            return cls("")
        return cls(started.uid, version_of(started.rules) < 2 and not started.forked_from)

    def refuses(self, message: Message) -> str:
        """Why a message does not count here; "" if it does."""
        if message.nonsense:
            return message.nonsense
        if not message.uid:
            unbound = "it names no run, as messages of older libraries do: send it again"
            return "" if self.takes_unbound else unbound
        return "" if message.uid == self.uid else "it was sent to another run"


def is_message(record: Record) -> bool:
    """Whether the record is of a kind that messages have."""
    return record.kind in _KINDS


def is_repair(record: Record) -> bool:
    """Whether the record is what a repair has put in the place of messages."""
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
    return (record.kind, body) == sent
