"""Copies runs between stores, byte for byte."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext, suppress

from eventlog import LogError, LogLockedError, LogReader
from eventlog.read.segment_files import read_segment
from recovery.errors import RecoveryError
from recovery.history.find_run import keys_of, no_such_run
from recovery.history.subject_values import keys_in
from recovery.journal.encoding import decode_shallow
from recovery.journal.run_label import RunLabel, label_of
from recovery.stores.protocol import INBOX, AdoptsLogs, LogBytes, RunStore
from recovery.values.sealed import key_ids_in


def copy_run(source: RunStore, target: RunStore, run_id: str) -> int:
    """Copy a run and its inbox, with all segments as they are; returns the number of bytes.

    The run must not be live. The copy is compared with the original. A crash in between leaves no
    run in the target. ``source`` keeps its run. Raises RecoveryError if ``source`` lacks the run or
    ``target`` has one of its id, or if the run was resumed meanwhile; LogLockedError for a live
    run.
    """
    return _size(_copied(source, target, run_id))


def move_run(source: RunStore, target: RunStore, run_id: str) -> int:
    """``copy_run``; then removes the run from ``source``, unless anything was added to it.

    A crash in between may leave the run in both: then repeat it, and it removes the original.
    """
    logs = _copied(source, target, run_id, is_moved=True)
    try:
        source.remove(run_id, logs[""].next_lsn - 1)
    except LogError as exc:  # it was resumed since it was compared
        raise _differs(target, run_id) from exc
    return _size(logs)


def _copied(
    source: RunStore, target: RunStore, run_id: str, *, is_moved: bool = False
) -> dict[str, LogBytes]:
    if not isinstance(target, AdoptsLogs):
        raise RecoveryError(f"{target.address or target!r} takes no copies of runs")
    found = source.read(run_id)
    if found is None:
        raise no_such_run(source, run_id)
    found.close()
    there: dict[str, LogBytes] = {}
    with source.claim(run_id):  # a torn tail, if there is one, is cut off
        if is_moved:
            # The same store under another address is live now: its only copy must not be removed.
            with suppress(LogLockedError):
                there = dict(_logs(target, run_id))
    logs = dict(_logs(source, run_id))
    if not there or there != logs:  # else an earlier move was killed before it removed the original
        if (taken := target.read(run_id)) is not None:
            taken.close()
            raise RecoveryError(
                f"{target.address or 'the store'} has a run {run_id!r} already. Nothing was copied."
            )
        _copy_keys(source, target, run_id)
        target.adopt(run_id, logs)
    if dict(_logs(target, run_id)) != logs or _is_changed(source, run_id, logs):
        raise _differs(target, run_id)
    return logs


def _is_changed(source: RunStore, run_id: str, logs: dict[str, LogBytes]) -> bool:
    """Whether the run, or its inbox, is not what was copied any more."""
    try:
        return dict(_logs(source, run_id)) != logs
    except LogLockedError:  # resumed: what it does now is not in the copy
        return True


def _differs(target: RunStore, run_id: str) -> RecoveryError:
    return RecoveryError(
        f"the copy of run {run_id!r} in {target.address} differs from the original: the run "
        "was resumed meanwhile, or what was read there is not what was written. Remove the "
        f"copy, and copy again: recovery rm {run_id} --store {target.address}"
    )


def _size(logs: dict[str, LogBytes]) -> int:
    return sum(len(data) for log in logs.values() for data in log.segments.values())


def _copy_keys(source: RunStore, target: RunStore, run_id: str) -> None:
    """Copy the keys of the subjects in a run. A subject that was forgotten stays so."""
    wanted: set[bytes] = set()
    for reader in (source.read(run_id), source.inbox(run_id)):
        with reader or nullcontext():
            for record in reader.records(on_damage=lambda damage: None) if reader else ():
                wanted |= key_ids_in(record.packed)
                with suppress(ValueError):
                    wanted.update(keys_in(getattr(decode_shallow(record), "subject", None)))
    if wanted and (keys := getattr(source, "subject_keys", None)) is not None:
        keys_of(target).adopt(keys, wanted)


def _logs(store: RunStore, run_id: str) -> Iterator[tuple[str, LogBytes]]:
    for name, reader in (("", store.read(run_id)), (INBOX, store.inbox(run_id))):
        if reader is None:
            continue
        with reader:
            if not isinstance(reader, LogReader):
                raise RecoveryError(f"{store.address} does not keep its logs as frames")
            owner = reader.owner()
            if owner is not None and owner.alive:
                raise LogLockedError(reader.path, owner.pid, owner.host, owner.since)
            yield name, _bytes_of(reader, name)


def _bytes_of(reader: LogReader, name: str) -> LogBytes:
    tail = reader.tail()
    directory, numbers = reader._directory, reader.listing.numbers()
    headers = [header for number in numbers if (header := reader.listing.header(number))]
    label = None
    if not name:
        for record in reader.records(on_damage=lambda damage: None):
            label = label_of(record.kind, record.packed) or label
    return LogBytes(
        log_id=reader.listing.log_id() or bytes(16),
        epoch=max((header.epoch for header in headers), default=1),
        next_lsn=tail.next_lsn,
        oldest_lsn=reader.oldest_lsn,
        snapshot=tail.snapshot,
        snapshot_segment=_segment_of(reader, tail.snapshot, numbers),
        segments={number: read_segment(directory, number) for number in numbers},
        label=label or RunLabel(""),
    )


def _segment_of(reader: LogReader, lsn: int, numbers: list[int]) -> int:
    found = reader.listing.segments_with({lsn})[1] if lsn else []
    return found[0].number if found else (numbers[0] if numbers else 0)
