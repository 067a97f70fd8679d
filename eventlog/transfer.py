"""Exports a log as lines of JSON, and imports such lines as a log.

    with EventLog.read(path) as reader:
        for line in export(reader): ...            # text, without line ends
    with open("export.jsonl", "rb") as file:
        import_(file, new_path)

An export has all records, but no segments, offsets or epochs. An export of an imported log has the
same bytes as the export it was made from. docs/format.md describes the lines.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any, Literal, Protocol

from eventlog.crypto.keys import Encryption
from eventlog.errors import EncryptedLogError, LogError, RefusedValueError, UnsupportedFormatError
from eventlog.files.api import Files
from eventlog.files.posix import OSFiles
from eventlog.format.export_lines import (
    LINE_SIZE_MAX,
    BadExportError,
    Line,
    as_text,
    check_head,
    end_line,
    head,
    integer,
    log_line,
    lost_line,
    parse,
    parse_log,
    parse_record,
    record_line,
)
from eventlog.format.frame import LSN_MAX, PAYLOAD_SIZE_MAX, RECORDS, SNAPSHOT
from eventlog.format.record import Packed, Record, Snapshot, encode_payload, encode_snapshot, pack
from eventlog.read.reader import LogReader
from eventlog.read.verify import (
    BAD_SNAPSHOT,
    NOT_A_LOG,
    DecodedFrame,
    EncryptedFrame,
    Finding,
    Totals,
    examine,
)
from eventlog.repair.planning import LOST, LOST_MAX, REPAIRED
from eventlog.repair.segment import placeholders
from eventlog.write.log import SEGMENT_SIZE, EventLog

__all__ = ["BadExportError", "Imported", "export", "import_"]

OnFinding = Callable[[Finding], None]


class Lines(Protocol):
    """A file that was opened for reading bytes."""

    def readline(self, size: int, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Imported:
    """What ``import_`` made: ``records`` in all its logs; ``lost`` of them are placeholders for
    records that the export calls lost."""

    records: int
    lost: int


def export(
    reader: LogReader,
    inside: Iterable[tuple[str, LogReader]] = (),
    on_finding: OnFinding | None = None,
) -> Iterator[str]:
    """The log of ``reader`` as lines of JSON, without line ends; the last has a digest of the
    others.

    ``inside``: returns the logs in directories inside the log's own, with their names. It is called
    when the log was read, so that these logs have everything that the log refers to.
    Reads as ``eventlog.dump`` does: takes no lock, one segment at a time, also a live log.
    A lost range of records is a line in its position; all findings go to ``on_finding``. A torn
    tail was never acknowledged, and is in no line.

    Raises EncryptedLogError for records whose key was not given (an export is unencrypted),
    UnsupportedFormatError for what is no log, LogError when it was truncated meanwhile.
    """
    digest, records, lost = sha256(), 0, 0
    yield _counted(digest, as_text(head()))
    for name, log in chain([("", reader)], inside):
        for line in _Exported(log, on_finding or _ignore).lines(name):
            records += line["type"] in ("record", "snapshot")
            lost += line["type"] == "lost" and line["last_lsn"] - line["first_lsn"] + 1
            yield _counted(digest, as_text(line))
    yield as_text(end_line(records, lost, digest.hexdigest()))


def _counted(digest: Any, text: str) -> str:
    digest.update(text.encode("ascii") + b"\n")
    return text


def _ignore(finding: Finding) -> None:
    pass


class _Exported:
    """One log being exported. ``expected``: the LSN of the next record."""

    def __init__(self, reader: LogReader, on_finding: OnFinding) -> None:
        self._reader, self._on_finding = reader, on_finding
        self.expected = 0  # not known yet
        self._lost_lsn = 0  # last LSN that findings since the last record call lost
        self._texts: list[str] = []
        self._snapshot = 0  # the LSN of a lost snapshot

    def lines(self, name: str) -> Iterator[dict[str, Any]]:
        for item in examine(self._reader, Totals()):
            if isinstance(item, Finding):
                self._note(item)
                continue
            if isinstance(item, EncryptedFrame):
                raise EncryptedLogError(self._reader.path, item.key_id)
            first = item.records[0].lsn
            yield from self._begin(name, first)
            yield from self._lost(first - 1)
            yield from _lines_of(item)
            self.expected = item.records[-1].lsn + 1
        yield from self._begin(name, 0)
        yield from self._lost(self._lost_lsn)

    def _begin(self, name: str, first: int) -> Iterator[dict[str, Any]]:
        if not self.expected:
            # Segments may have been removed on purpose since the reader listed them.
            oldest = self._reader.oldest_lsn
            self.expected = min(oldest, first or oldest)
            yield log_line(name, self.expected)

    def _note(self, finding: Finding) -> None:
        if finding.bit & NOT_A_LOG:
            raise UnsupportedFormatError(f"{self._reader.path}: {finding.text}")
        self._on_finding(finding)
        if finding.first_lsn <= finding.last_lsn:
            self._lost_lsn = max(self._lost_lsn, finding.last_lsn)
            self._texts.append(finding.text)
            if finding.bit == BAD_SNAPSHOT and finding.first_lsn == finding.last_lsn:
                self._snapshot = finding.first_lsn

    def _lost(self, last: int) -> Iterator[dict[str, Any]]:
        """A line for the missing records up to ``last``."""
        if self.expected <= last:
            if self._reader.oldest_lsn > self.expected:
                raise LogError(
                    f"{self._reader.path}: old records were removed while it was exported. Nothing "
                    "is wrong with it: export it again."
                )
            snapshot = self.expected == last == self._snapshot
            yield lost_line(self.expected, last, snapshot, "; ".join(self._texts) or "missing")
            self.expected = last + 1
        self._texts.clear()


def _lines_of(found: DecodedFrame) -> Iterator[dict[str, Any]]:
    batch = found.records[0].lsn, found.records[-1].lsn
    for record in found.records:
        yield record_line(_as_line(record, batch))


def _as_line(record: Record, batch: tuple[int, int]) -> Line:
    return Line(
        record.lsn,
        batch,
        record.time_ns,
        record.kind,
        Packed(record.packed),
        isinstance(record, Snapshot),
    )


def import_(
    file: Lines,
    path: str | os.PathLike[str],
    *,
    lost: Literal["refused", "marked"] = "refused",
    encryption: Encryption | None = None,
    segment_size: int = SEGMENT_SIZE,
    files: Files | None = None,
) -> Imported:
    """Import the export in ``file`` as a log in directory ``path``.

    The directory must be missing or empty. The log is made beside it, under a name that begins with
    a dot, read back, and compared with the export. It durably has its final name when this returns:
    a crash leaves no incomplete log under that name. ``encryption`` and ``segment_size``: as for
    ``EventLog.open``. ``files``: a file system for tests (the real one). ``lost``: for an export
    with lost records, either refuse it, or write placeholders as ``eventlog.repair`` does, and a
    record that says so.

    Raises BadExportError for an input that is not a whole, unchanged export, and for one with lost
    records; LogError when the directory is not empty, LogLockedError when another process imports
    to it, OSError. It then leaves no files.
    """
    files = files or OSFiles()
    target = Path(path)
    if target.name in ("", ".."):
        raise LogError(f"{target} is no name for a new log. Nothing was written.")
    _check_free(files, str(target))
    # A unique name, because another process may import at the same time.
    making = target.with_name(f".{target.name}.importing-{files.random_bytes(4).hex()}")

    def open_log(name: str) -> EventLog:
        # Flushed only when a segment is full and at the end: the log has no name yet.
        return EventLog.open(
            making / name, "none", segment_size=segment_size, files=files, encryption=encryption
        )

    def read_log(name: str) -> LogReader:
        return EventLog.read(making / name, files=files, encryption=encryption)

    imported = _Import(file, open_log, lost == "marked")
    try:
        imported.read()
        with ExitStack() as stack:
            readers = {name: stack.enter_context(read_log(name)) for name in imported.logs}
            imported.verify(readers)
        _check_free(files, str(target))
        files.move(str(making), str(target))
    except BaseException:
        imported.abandon()
        with suppress(OSError):
            files.delete(str(making))
        raise
    return Imported(imported.records, imported.lost)


def _check_free(files: Files, path: str) -> None:
    try:
        directory = files.open_directory(path)
    except FileNotFoundError:
        return
    try:
        names = directory.names() or files.list_directories(path)
    finally:
        directory.close()
    if names:
        raise LogError(
            f"{path} is there and holds {names[0]!r}: an import makes a log of its own and adds to "
            "none. Nothing was written. Give the path of a directory that is not there yet."
        )


class _Import:
    """One import: lines in, logs out."""

    def __init__(self, file: Lines, open_log: Callable[[str], EventLog], marks: bool) -> None:
        self._file, self._open_log, self._marks = file, open_log, marks
        self.logs: list[str] = []
        self.records = self.lost = 0
        self._number = 0  # of the line
        self._text = b""
        self._digest = sha256()  # of the lines
        self._made = sha256()  # of the lines that an export of the new log would have
        self._time_ns = 0
        self._missing_lsns: list[list[int]] = []  # ranges, of this log
        self._snapshots: list[int] = []
        self._log: EventLog | None = None
        self._batch: list[Line] = []
        self._batch_size = 0
        self._added = 0  # records that are not in the export

    def read(self) -> None:
        check_head(1, self._next())
        self._made.update(self._text)
        while True:
            line = self._next()
            match line["type"]:
                case "record" | "snapshot":
                    self._record(parse_record(self._number, line))
                case "log":
                    self._begin(*parse_log(self._number, line))
                case "lost":
                    self._missing(line)
                case "end":
                    return self._finish(line)
                case other:
                    self._refuse(f"a line of type {other!r:.40} has no place in an export")

    def _next(self) -> dict[str, Any]:
        self._text = self._file.readline(LINE_SIZE_MAX + 1)
        self._number += 1
        line = parse(self._number, self._text)
        if line["type"] != "end":
            self._digest.update(self._text)
        return line

    def _refuse(self, what: str) -> None:
        raise BadExportError(self._number, what)

    def _begin(self, name: str, oldest_lsn: int) -> None:
        self._close()
        if bool(name) != bool(self.logs) or name in self.logs:
            self._refuse(f"the log {name!r} is out of place")
        self.logs.append(name)
        self._made.update(self._text)
        self._log = self._open_log(name)
        if oldest_lsn > 1:
            self._log._appender.begin_at(oldest_lsn)

    def _record(self, line: Line) -> None:
        log = self._log
        if log is None:
            raise BadExportError(self._number, "a record before the line of its log")
        expected = log.last_lsn + 1 + len(self._batch)
        if line.lsn != expected:
            self._refuse(f"LSN {line.lsn} where {expected} comes next")
        first = self._batch[0] if self._batch else line
        if line.batch != first.batch or line.batch[0] != first.lsn:
            self._refuse(f"LSN {line.lsn} is in no batch with the records before it")
        if line.time_ns != first.time_ns or (line.snapshot and line.batch != (line.lsn, line.lsn)):
            self._refuse(f"LSN {line.lsn} cannot be in a batch with the records before it")
        self._made.update(self._text)
        self._batch.append(line)
        self._batch_size += len(line.packed)
        if self._batch_size > PAYLOAD_SIZE_MAX:
            self._refuse(f"a batch of more than {PAYLOAD_SIZE_MAX} bytes")
        if line.lsn == line.batch[1]:
            self._append(log, line)

    def _append(self, log: EventLog, last: Line) -> None:
        batch, self._batch, self._batch_size = self._batch, [], 0
        try:
            payload = encode_payload(last.time_ns, [(line.kind, line.packed) for line in batch])
            if last.snapshot:
                payload = encode_snapshot(last.time_ns, last.kind, last.packed)
            log._appender.append(SNAPSHOT if last.snapshot else RECORDS, len(batch), payload)
        except RefusedValueError as exc:
            self._refuse(str(exc))
        self.records += len(batch)
        self._time_ns = last.time_ns

    def _missing(self, line: dict[str, Any]) -> None:
        first = integer(self._number, line, "first_lsn", 1, LSN_MAX // 2)
        last = integer(self._number, line, "last_lsn", first, LSN_MAX // 2)
        log = self._log
        if log is None or self._batch or first != log.last_lsn + 1:
            raise BadExportError(self._number, f"LSN {first} is not what comes next")
        if not self._marks:
            self._refuse(
                f"the log had lost LSN {first} to {last} when it was exported. Repair it with "
                "`logdump repair` and export it then, or say --lost: what is lost is marked as "
                "lost in the new log"
            )
        if last - first >= LOST_MAX - self.lost:
            self._refuse(f"more than {LOST_MAX} lost records")
        self._missing_lsns.append([first, last])
        self._snapshots += [first] if line.get("snapshot") is True else []
        self.lost += last - first + 1
        for _, bodies in placeholders((first, last), self._snapshots[-1:]):
            self._add(log, [(LOST, body) for body in bodies])

    def _add(self, log: EventLog, items: list[tuple[str, Packed]]) -> None:
        """Append a record that is not in the export."""
        first = log.last_lsn + 1
        batch = first, log.last_lsn + len(items)
        for lsn, (kind, packed) in enumerate(items, first):
            line = Line(lsn, batch, self._time_ns, kind, packed, False)
            self._made.update(as_text(record_line(line)).encode() + b"\n")
            self._batch.append(line)
        self._added += len(items)
        self._append(log, line)

    def _say_what_is_missing(self, log: EventLog) -> None:
        if self._missing_lsns:
            about = {
                "lost": self._missing_lsns,
                "snapshots": self._snapshots,
                "segments": [],
                "who": "",
                "why": "imported with losses",
                "backup": "",
            }
            self._missing_lsns, self._snapshots = [], []
            self._add(log, [(REPAIRED, Packed(pack(about)))])

    def _finish(self, line: dict[str, Any]) -> None:
        self._close()
        if not self.logs:
            self._refuse("the export holds no log")
        told = self.records - self._added
        if line != end_line(told, self.lost, self._digest.hexdigest()):
            self._refuse("its digest is not that of the lines before it: the export was changed")
        if self._file.readline(1):
            self._number += 1
            self._refuse("something comes after the last line")

    def _close(self) -> None:
        if self._batch:
            self._refuse(f"the batch of LSN {self._batch[0].lsn} is not whole")
        if self._log is not None:
            self._say_what_is_missing(self._log)
            self._log.close()
        self._log = None

    def abandon(self) -> None:
        """Close all open files."""
        if self._log is not None:
            with suppress(LogError, OSError):
                self._log.close()

    def verify(self, logs: dict[str, LogReader]) -> None:
        """Raise unless an export of the new log equals the input."""
        line = ""
        for line in export(logs.pop(""), logs.items()):  # noqa: B007 - the last one is wanted
            pass
        if line != as_text(end_line(self.records, 0, self._made.hexdigest())):
            self._refuse(
                "what was written is not what the lines say, for they are not written as "
                "`logdump export` writes them"
            )
