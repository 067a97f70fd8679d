"""Exports a run without the values that are to stay where it ran."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from typing import Any

import msgpack

from eventlog import Damage, Packed, ReadableLog, Record, Snapshot
from eventlog.format.export_lines import Line, as_text, end_line, head, log_line, record_line
from eventlog.format.record import pack, unpack
from recovery.errors import DamagedRunError, RecoveryError
from recovery.history.load import packed_of_ref
from recovery.journal.encoding import is_event
from recovery.journal.events import CallFailed, CallIntended, MessagesChanged, RunStarted
from recovery.values.backrefs import RecordedValues, parse_reference
from recovery.values.pack import split_list, unpack_map
from recovery.values.render import HIDDEN, Redaction

# Text of the program or of people, which may quote any value.
_TEXTS = {"message", "traceback", "drift", "why", "former"}
_OF_EXCEPTION = ("args", "attributes", "group", "cause")
_OF_TOOL = {"args", "value"}
_LEFT_OUT = Packed(pack({}))


def export_redacted(log: ReadableLog, run_id: str, redaction: Redaction) -> Iterator[str]:
    """The run in ``log`` as lines of an export, without what ``redaction`` hides.

    Checkpoints and the inbox are left out, and errors and reasons have no text. The first line
    says that it is redacted: it can be replayed, and not imported. Raises DamagedRunError, and
    RecoveryError if retention has removed the beginning.
    """
    if log.oldest_lsn > 1:
        raise RecoveryError(f"the beginning of run {run_id!r} is gone, so it cannot be replayed")
    made, digest, count = _Redacted(log, run_id, redaction), sha256(), 0

    def counted(line: dict[str, Any]) -> str:
        text = as_text(line)
        digest.update(text.encode("ascii") + b"\n")
        return text

    yield counted({**head(), "redacted": True})
    yield counted(log_line("", 1))
    for record in made.records():
        count += 1
        yield counted(record_line(record))
    yield as_text(end_line(count, 0, digest.hexdigest()))


class _Redacted:
    def __init__(self, log: ReadableLog, run_id: str, redaction: Redaction) -> None:
        self._log, self._run_id, self._redaction = log, run_id, redaction
        self._values = RecordedValues(log.fetch)
        self._tools: dict[int, str] = {}  # of calls
        self._hidden: set[int] = set()  # outcomes of tools that are hidden

    def records(self) -> Iterator[Line]:
        last = 0
        for record in self._log.records(1, on_damage=self._on_damage):
            while last + 1 < record.lsn:  # a damaged checkpoint
                last += 1
                yield Line(last, (last, last), record.time_ns, "left_out", _LEFT_OUT, False)
            last = record.lsn
            kind, packed = "left_out", _LEFT_OUT
            if not isinstance(record, Snapshot) and is_event(record.kind):
                kind, packed = record.kind, Packed(_pack(self._body(record)))
            yield Line(last, (last, last), record.time_ns, kind, packed, False)

    def _on_damage(self, found: Damage) -> None:
        if not found.snapshot:
            raise DamagedRunError(self._run_id, [found])

    def _body(self, record: Record) -> dict[str, Any]:
        body: dict[str, Any] = unpack(record.packed)
        if record.kind == CallIntended.kind:
            self._tools[record.lsn] = str(body["tool"])
        tool = self._tools.get(body.get("call", record.lsn), "")
        if tool and self._redaction.hides(tool) and "call" in body:
            self._hidden.add(record.lsn)
        made = {name: self._field(name, value, tool) for name, value in body.items()}
        args = made.get("args")  # of a subject, they are sealed
        if args and isinstance(args, list) and body.get("after_crash") != "wait":  # not of a wait
            args[0] = unnamed(args[0])
        if record.kind == MessagesChanged.kind:
            made["new"] = self._messages(record)
        elif record.kind == RunStarted.kind:  # digests of secrets could be guessed with it
            made.pop("salt", None)
        elif record.kind == CallFailed.kind:
            for gone in _OF_EXCEPTION:
                made.pop(gone, None)
        elif record.kind == CallIntended.kind and (
            made.get("args") is None or made["args"] != body["args"]
        ):  # so could arguments with their digests
            made["digest"] = record.lsn.to_bytes(16)
            made.pop("key", None)
        return made

    def _field(self, name: str, value: Any, tool: str) -> Any:
        if name in _TEXTS:
            return blank(value)
        if name in _OF_TOOL and tool and self._redaction.hides(tool):
            return [[], {}] if name == "args" else blank(value)
        if name in ("task", "args", "value", "result"):
            return self._shown(value, name)
        if name == "forked_from" and value.get("why"):
            return value | {"why": HIDDEN}
        return value

    def _messages(self, record: Record) -> list[Any]:
        found = []
        for packed in split_list(unpack_map(record.packed)["new"]):
            item, whole = parse_reference(packed), bytes(packed)
            if item is not None:
                if not self._hidden.isdisjoint(item.lsns):
                    found.append(HIDDEN)
                    continue
                whole = packed_of_ref(self._values, self._run_id, item)
            found.append(self._shown(unpack(whole), ""))
        return found

    def _shown(self, value: Any, name: str) -> Any:
        """The value without what is hidden, at any depth, and inside of values of types."""
        if self._redaction.everything or (name and self._redaction.hides(name)):
            return blank(value)
        if isinstance(value, dict):
            return {
                key: self._shown(part, key if isinstance(key, str) else "")
                for key, part in value.items()
            }
        if isinstance(value, list):
            return [self._shown(part, "") for part in value]
        if isinstance(value, msgpack.ExtType):
            try:
                inner = unpack(value.data)
            except ValueError:  # no document: a number, a date
                return value
            shown = self._shown(inner, "")
            return value if shown == inner else msgpack.ExtType(value.code, _pack(shown))
        return value


def unnamed(value: Any) -> Any:
    """Arguments by position, without what no name stands at. The log does not have the names of
    their parameters, also where the code has named them."""
    match value:
        case list():
            return [unnamed(part) for part in value]
        case None | dict():
            return value
        case msgpack.ExtType():
            with suppress(ValueError):  # of a value without parts, such as a date
                match unpack(value.data):
                    case [str(), dict()]:  # a type with its fields
                        return value
    return HIDDEN


def _pack(value: Any) -> bytes:
    """As ``pack``, with values of types as they are in the log."""
    return bytes(msgpack.packb(value))


def blank(value: Any) -> Any:
    """A value that says nothing, of the same plain type, so that code still reads it."""
    match value:
        case None | bool() | int() | float():
            return value and type(value)()
        case bytes() | list() | dict():
            return type(value)()
    return HIDDEN
