"""Repairs a damaged log: keeps sound records, marks lost ones, and makes a backup first.

    with EventLog.read(path) as reader:
        print(plan(reader))                  # reads only
    done = repair(path, who="ops", why="bad sector")
    done.backup                              # the log as it was

A repaired log is contiguous again. Each lost record has a placeholder of kind "lost". A record of
kind "repaired" says which they are, who repaired the log, and where the backup is. Sound records
keep their LSNs and bytes. Each application decides what a placeholder means: `recovery` treats
calls that may have been lost as calls in doubt.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from eventlog.crypto.keys import Encryption
from eventlog.errors import LogError
from eventlog.files.api import Directory, Files
from eventlog.files.lock import Owner, claim_if_linked
from eventlog.files.posix import OSFiles
from eventlog.format.names import segment_name
from eventlog.read.reader import LogReader
from eventlog.read.verify import TORN, Finding, examine
from eventlog.read.verify import Totals as _Totals
from eventlog.repair.backup import back_up, free_name
from eventlog.repair.planning import LOST, REPAIRED, LogSurvey, Range, SegmentPlan, layout, survey
from eventlog.repair.segment import Rewriting
from eventlog.write.log import EventLog

__all__ = ["LOST", "REPAIRED", "Loss", "Remade", "RepairPlan", "plan", "repair"]


@dataclass(frozen=True, slots=True)
class Loss:
    """Lost records: LSNs ``first_lsn`` to ``last_lsn``.

    ``snapshot``: only one snapshot was lost; an earlier one replaces it.
    """

    first_lsn: int
    last_lsn: int
    snapshot: bool = False

    def __str__(self) -> str:
        if self.first_lsn == self.last_lsn:
            return f"LSN {self.first_lsn}" + (" (a snapshot)" if self.snapshot else "")
        return f"LSN {self.first_lsn}-{self.last_lsn}"


@dataclass(frozen=True, slots=True)
class Remade:
    """A ``segment`` (its number) that is rewritten. ``missing``: it does not exist, or cannot be
    read at all.

    ``kept``: records that keep their bytes in it; ``lost``: those that get a placeholder.
    """

    segment: int
    missing: bool
    kept: int
    lost: tuple[Loss, ...]


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """What a repair would do, or has done. ``str()`` says it in some lines.

    ``findings``: the problems, as ``eventlog.dump.verify`` gives them. ``segments``: those that are
    rewritten. ``kept``: sound records in the log. ``torn_size``: bytes at the end that were never
    acknowledged, and are cut off. ``backup``: the copy of the log as it was. ``unfinished``: losses
    for which an earlier, interrupted repair made placeholders. ``encrypted``: whether the key is
    needed. ``lsn``: of the record that describes the repair; 0 before.
    """

    path: str
    findings: tuple[Finding, ...]
    segments: tuple[Remade, ...]
    kept: int
    torn_size: int
    backup: str
    unfinished: tuple[Loss, ...] = ()
    encrypted: bool = False
    lsn: int = 0

    @property
    def needed(self) -> bool:
        """Whether there is anything to repair. The next opening cuts a torn tail by itself."""
        return bool(self.segments or self.unfinished)

    @property
    def lost(self) -> tuple[Loss, ...]:
        """All losses, in the order of LSNs."""
        found = [loss for segment in self.segments for loss in segment.lost]
        return tuple(sorted((*found, *self.unfinished), key=lambda loss: loss.first_lsn))

    @property
    def lost_count(self) -> int:
        """How many records are lost."""
        return sum(loss.last_lsn - loss.first_lsn + 1 for loss in self.lost)

    def __str__(self) -> str:
        if not self.needed:
            return f"{self.path}: nothing to repair"
        done = bool(self.lsn)
        lines = [f"{self.path}: {self.kept} records kept, {self.lost_count} lost"]
        lines += [f"  {finding.text}" for finding in self.findings if finding.bit]
        for one in self.segments:
            what = "made" if one.missing else "made anew"
            lost = f", {', '.join(map(str, one.lost))} marked as lost" if one.lost else ""
            lines.append(
                f"  {segment_name(one.segment)} {'was' if done else 'will be'} {what}: "
                f"{one.kept} records kept{lost}"
            )
        if self.unfinished:
            lines.append(
                f"  marked as lost by a repair that was interrupted: "
                f"{', '.join(map(str, self.unfinished))}"
            )
        if self.torn_size:
            lines.append(f"  {self.torn_size} bytes of torn tail, never acknowledged, cut off")
        lines.append(f"  the log as it was: {self.backup}")
        return "\n".join(lines)


def plan(reader: LogReader) -> RepairPlan:
    """The repair that ``repair`` would do to the log of ``reader``. Reads only; a live log may look
    damaged at its end.

    Raises UnsupportedFormatError for files that are no part of the log, or of another version;
    LogError for a log that cannot be repaired; WrongKeyError with another key than the log's.
    """
    seen = survey(reader)
    return _plan(reader, seen, layout(reader, seen))


def repair(
    path: str | os.PathLike[str],
    *,
    who: str = "",
    why: str = "",
    files: Files | None = None,
    encryption: Encryption | None = None,
) -> RepairPlan:
    """Repair the log in directory ``path``; returns what was done. A sound log is not changed.

    ``encryption``: the key of an encrypted log. ``files``: a file system for tests (the real one).
    Holds the log, as its writer does, until it is done. First it copies the directory to
    ``path.~1~`` beside it (or ``.~2~``, ...). Then it rewrites each damaged segment under another
    name, reads it back, and renames it. At last it appends a record of kind "repaired", with
    ``who`` and ``why``. Each step is durable before the next begins. After a crash the log has
    everything that could be read before, and another repair continues.

    Raises LogLockedError while another process has the log, EncryptedLogError without the key of
    an encrypted one, and as ``plan``: nothing was changed then. OSError and LogError may come
    later: the backup remains, and the segments that were not reached are unchanged.
    """
    files = files or OSFiles()
    path = os.fspath(path).rstrip("/") or "/"
    if isinstance(files, OSFiles):
        path = os.path.realpath(path)
        # Plan before the claim, which changes files: a sound log, or none, must not be changed.
    with EventLog.read(path, files=files, encryption=encryption) as reader:
        found = plan(reader)
        if not found.needed:
            return replace(found, backup="")
        reader.decoder.encrypter(files.random_bytes)
        last_epoch = reader.listing.last_epoch()
    directory = files.open_directory(path)
    try:
        owner = claim_if_linked(files, directory, last_epoch, takeover=False)
        try:
            return _repaired(files, directory, owner, (who, why), encryption)
        finally:
            owner.close()
    finally:
        directory.close()


def _repaired(
    files: Files,
    directory: Directory,
    owner: Owner,
    said: tuple[str, str],
    encryption: Encryption | None,
) -> RepairPlan:
    reader = LogReader(files, directory, encryption)
    encrypter = reader.decoder.encrypter(files.random_bytes)
    seen = survey(reader)
    plans = layout(reader, seen)
    log_id = reader.listing.log_id() or files.random_bytes(16)
    planned = replace(_plan(reader, seen, plans), backup=back_up(files, directory.path))
    for segment in plans:
        owner.check()
        made = Rewriting(reader, segment, log_id, files.time_ns())
        before = [lsn for number, lsn in seen.newest.items() if number < segment.number]
        made.write(directory, max(before, default=0))
    reader = LogReader(files, directory, encryption)
    _check_sound(reader, planned)
    log = EventLog._owned(reader, directory, owner, encrypter)
    with log:
        lsn = log.append(REPAIRED, _body(planned, *said))
        log.commit()
    return replace(planned, lsn=lsn)


def _plan(reader: LogReader, seen: LogSurvey, plans: Sequence[SegmentPlan]) -> RepairPlan:
    kept = sum(last - first + 1 for ranges in seen.found.values() for first, last in ranges)
    declared = tuple(Loss(first, last) for first, last in seen.undeclared())
    path = reader.path.rstrip("/") or "/"
    return RepairPlan(
        reader.path,
        tuple(seen.findings),
        tuple(_remade(segment) for segment in plans),
        kept,
        seen.torn_size,
        free_name(reader.files, path),
        declared,
        any(
            header is not None and header.encrypted
            for header in map(reader.listing.header, reader.listing.numbers())
        ),
    )


def _remade(segment: SegmentPlan) -> Remade:
    lost = tuple(_losses(segment.lost, segment.snapshots))
    count = sum(loss.last_lsn - loss.first_lsn + 1 for loss in lost)
    return Remade(segment.number, segment.info is None, segment.next - segment.first - count, lost)


def _losses(ranges: Sequence[Range], snapshots: frozenset[int]) -> list[Loss]:
    return [Loss(first, last, first == last and first in snapshots) for first, last in ranges]


def _body(done: RepairPlan, who: str, why: str) -> dict[str, object]:
    return {
        "lost": [[loss.first_lsn, loss.last_lsn] for loss in done.lost],
        "snapshots": [loss.first_lsn for loss in done.lost if loss.snapshot],
        "segments": [one.segment for one in done.segments],
        "who": who,
        "why": why,
        "backup": done.backup,
    }


def _check_sound(reader: LogReader, done: RepairPlan) -> None:
    for item in examine(reader, _Totals()):
        if isinstance(item, Finding) and item.bit & ~TORN:
            raise LogError(
                f"{done.path}: still damaged after the repair: {item.text}. The log as it was is "
                f"in {done.backup}; move it back, or repair again."
            )
