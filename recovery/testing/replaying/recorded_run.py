"""Copies a recorded run into memory, as a run that begins at its first record."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from eventlog import Damage, EventLog, Packed, Record, Snapshot, WritableLog
from eventlog.encryption import Encryption
from eventlog.format.export_lines import (
    LINE_SIZE_MAX,
    BadExportError,
    check_head,
    end_line,
    parse,
    parse_log,
    parse_record,
)
from recovery.agent.checkpoint_store import CheckpointStore
from recovery.errors import DamagedRunError, RecoveryError
from recovery.history.checkpoint_store_base import CheckpointStoreBase
from recovery.history.find_run import approvers_of, reader_of
from recovery.journal.encoding import decode, encode, is_event
from recovery.journal.events import (
    AgentRaised,
    RunCancelled,
    RunFailed,
    RunFinished,
    RunStarted,
    RunUndone,
)
from recovery.journal.forked_from import ForkedFrom
from recovery.stores.memory import MemoryStore
from recovery.stores.protocol import RunStore
from recovery.values.pack import pack_map

Source = CheckpointStoreBase | RunStore | str | os.PathLike[str]

# Stands in the copy for checkpoints and for the end of the run: the code does not make these.
LEFT_OUT = "left_out", Packed(pack_map({}))
_LEFT_OUT = {one.kind: one for one in (AgentRaised, RunFinished, RunFailed, RunCancelled)}


@dataclass(slots=True)
class RecordedRun:
    """A run in memory: its store and id, and what its record says of its end.

    ``finished``: the LSN and the event of its end, if it finished. ``raised``: the types of the
    exceptions that the agent raised. ``redacted``: whether values are hidden in the record.
    """

    store: CheckpointStore
    run_id: str
    records: int = 0
    finished: tuple[int, RunFinished] | None = None
    raised: set[str] = field(default_factory=set)
    redacted: bool = False


def recorded_run(source: Source, run_id: str | None, encryption: Encryption | None) -> RecordedRun:
    """Copy a run from a store, the directory of its log, or an export. Takes no lock there.

    Raises RecoveryError if the beginning is not in the record, DamagedRunError if other records
    are lost.
    """
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        if run_id is None and path.is_file():
            with path.open("rb") as file:
                lines = _Export(file)
                return _copied(lines.records(), CheckpointStore(MemoryStore()), lines)
        path = path if run_id is None else path / run_id
        if not any(path.glob("*.seg")):
            what = (
                "is neither the log of a run nor an export" if path.exists() else "does not exist"
            )
            raise RecoveryError(f"{path} {what}")
        with EventLog.read(path, encryption=encryption) as log:
            return _copied(_sound(log.records, path.name), CheckpointStore(MemoryStore()))
    if run_id is None:
        raise TypeError("a store has many runs: give the run_id of one")
    store = CheckpointStore(MemoryStore(), approvers=approvers_of(source))
    with reader_of(source, run_id) as log:
        return _copied(_sound(log.records, run_id), store)


def _sound(records: Any, run_id: str) -> Iterator[Record]:
    def on_damage(found: Damage) -> None:
        if not found.snapshot:  # a checkpoint is not needed
            raise DamagedRunError(run_id, [found])

    yield from records(1, on_damage=on_damage)


class _Export:
    """The lines of an export."""

    def __init__(self, file: Any) -> None:
        self._file, self._number, self._digest = file, 0, sha256()
        self.redacted = False

    def records(self) -> Iterator[Record]:
        """The records of the run. Raises BadExportError where it is not whole and unchanged."""
        head = self._next()
        self.redacted = head.pop("redacted", None) is not None
        check_head(1, head)
        is_inbox, records = False, 0
        while (line := self._next())["type"] != "end":
            match line["type"]:
                case "log":
                    is_inbox = bool(parse_log(self._number, line)[0])
                case "record" | "snapshot":
                    records += 1
                    one = parse_record(self._number, line)
                    kind = Snapshot if one.snapshot else Record
                    if not is_inbox:
                        yield kind(one.lsn, one.kind, one.time_ns, bytes(one.packed))
                case other:
                    raise BadExportError(self._number, f"a line of type {other!r:.40}")
        if line != end_line(records, 0, self._digest.hexdigest()):
            raise BadExportError(self._number, "its digest differs: the export was changed")

    def _next(self) -> dict[str, Any]:
        text = self._file.readline(LINE_SIZE_MAX + 1)
        self._number += 1
        line = parse(self._number, text)
        if line["type"] != "end":
            self._digest.update(text)
        return line


def _copied(
    records: Iterable[Record], store: CheckpointStore, export: _Export | None = None
) -> RecordedRun:
    rest = iter(records)
    first = next(rest, None)
    if first is None or first.lsn > 1:
        gone = f": LSN 1 to {first.lsn - 1} are gone" if first else ": nothing is recorded"
        raise RecoveryError(
            f"the beginning of the run is not in the record{gone}. A replay begins with the first "
            'record. A store with retention="all" keeps it.'
        )
    while first is not None and not is_event(first.kind):  # a submission
        first = next(rest, None)
    started = decode(first) if first is not None else None
    if first is None or not isinstance(started, RunStarted):
        raise RecoveryError("no agent has begun this run, so there is nothing to replay")
    if store.approvers is None:  # resolutions were verified when the run used them
        started = replace(started, signed=None)
    made = RecordedRun(store, started.run_id, redacted=export is not None and export.redacted)
    link = ForkedFrom.of(started)
    with store.backend.claim(started.run_id) as log:
        while log.last_lsn + 1 < first.lsn:
            log.append(*LEFT_OUT)
        log.append(*encode(started), time_ns=first.time_ns)
        for record in rest:
            _append(log, made, record, link.base if link else 0)
        made.records = log.last_lsn
    return made


def _append(log: WritableLog, made: RecordedRun, record: Record, base: int) -> None:
    if record.kind == RunUndone.kind:
        raise RecoveryError(
            f"run {made.run_id!r} was undone. Fork it at a step, and replay the fork."
        )
    while log.last_lsn + 1 < record.lsn:  # damaged checkpoints
        log.append(*LEFT_OUT)
    if isinstance(record, Snapshot):
        if record.lsn == base:  # what came before it is in the run that was forked
            log.append_snapshot(Packed(record.packed))
            return
    elif record.kind not in _LEFT_OUT:
        log.append(record.kind, Packed(record.packed), time_ns=record.time_ns)
        return
    else:
        event = decode(record)
        if isinstance(event, RunFinished):
            made.finished = record.lsn, event
        elif isinstance(event, AgentRaised | RunFailed):
            made.raised.add(event.type)
    log.append(*LEFT_OUT, time_ns=record.time_ns)
