"""Copies runs between stores, byte for byte."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from dataclasses import replace
from shlex import quote

from eventlog import LogError, LogOwner, LogReader, ReadableLog
from eventlog.errors import FencedError, UnreachableError
from eventlog.read.segment_files import read_segment
from eventlog.read.segments import retried
from recovery.errors import RecoveryError
from recovery.history.find_run import claim_existing, keys_of, reader_of
from recovery.history.subject_values import keys_in
from recovery.journal.encoding import decode_shallow
from recovery.journal.run_label import RunLabel, label_of
from recovery.stores.protocol import INBOX, AdoptsLogs, LogBytes, RunStore
from recovery.values.sealed import key_ids_in


def copy_run(source: RunStore, target: RunStore, run_id: str) -> int:
    """Copy a run and its inbox, with all segments as they are; returns the number of bytes.

    ``source`` holds the run until its copy is compared with it, so the run must not be live, and
    keeps it. A crash in between leaves no run in the target. Raises RecoveryError if ``source``
    lacks the run or ``target`` has one of its id; LogLockedError for a live run.
    """
    return _size(_copied(source, target, run_id, is_moved=False))


def move_run(source: RunStore, target: RunStore, run_id: str) -> int:
    """``copy_run``; then removes the run from ``source``, unless anything was added to it.

    A crash in between may leave the run in both: then repeat it. If only the copy has anything new
    since, the original is removed. If only the original has, it is copied again.
    """
    logs = _copied(source, target, run_id, is_moved=True)
    try:
        source.remove(run_id, *_ends(logs))
    except (LogError, OSError) as exc:
        is_used = isinstance(exc, LogError) and not isinstance(exc, UnreachableError)
        why = "was resumed or sent a message meanwhile" if is_used else f"was not removed: {exc}"
        raise RecoveryError(
            f"run {run_id!r} was copied to {_name(target)}, but its original in {_name(source)} "
            f"{why}. If both are resumed, side effects happen twice. So repeat the move"
        ) from exc
    return _size(logs)


def _copied(
    source: RunStore, target: RunStore, run_id: str, *, is_moved: bool
) -> dict[str, LogBytes]:
    """Have the run in the target; the logs that it has in ``source``."""
    try:
        return _held_and_copied(source, target, run_id, is_moved)
    except FencedError as exc:  # a person took it, with --takeover
        raise RecoveryError(
            f"{exc} A copy of it may be in {_name(target)}. If both are resumed, side effects "
            "happen twice"
        ) from exc


def _held_and_copied(
    source: RunStore, target: RunStore, run_id: str, is_moved: bool
) -> dict[str, LogBytes]:
    if not isinstance(target, AdoptsLogs):
        raise RecoveryError(f"{target.address or repr(target)} takes no copies of runs")
    before = _owner(target, run_id)
    with claim_existing(source, run_id):  # a torn tail, if there is one, is cut off
        logs, there = _logs(source, run_id), _logs(target, run_id)
        if there:
            # The same store under another address has the run under the claim that we have since.
            # Its only copy must not be removed.
            if not is_moved or before != _owner(target, run_id) == _owner(source, run_id):
                raise RecoveryError(
                    f"{_name(target)} has a run {run_id!r} already. Nothing was copied."
                )
            if _continues(logs, there) and not _continues(there, logs):
                target.remove(run_id, *_ends(there))  # nothing was done with this copy
                there = {}
        if not there:
            label = _label(source, run_id)
            _copy_keys(source, target, run_id)
            target.adopt(run_id, {**logs, "": replace(logs[""], label=label)})
            there = _logs(target, run_id)
        else:
            target.make_durable(run_id)
        if not _continues(there, logs):
            raise _differ(source, target, run_id)
    return logs


def _continues(logs: dict[str, LogBytes], others: dict[str, LogBytes]) -> bool:
    """Whether ``logs`` are the others, or begin with all that is in them."""
    return all(name in logs and _begins_with(logs[name], log) for name, log in others.items())


def _begins_with(log: LogBytes, other: LogBytes) -> bool:
    # Retention may have removed segments of it, but not the last one that is in both.
    kept = min(log.segments, default=0) if log.oldest_lsn > other.oldest_lsn else 0
    return (
        (log.log_id, log.next_lsn >= other.next_lsn) == (other.log_id, True)
        and max(other.segments, default=kept) >= kept
        and all(
            log.segments.get(number, b"").startswith(data)
            for number, data in other.segments.items()
            if number >= kept
        )
    )


def _ends(logs: dict[str, LogBytes]) -> tuple[int, int]:
    """The LSNs of the newest record and of the newest message; 0: there is none."""
    return logs[""].next_lsn - 1, logs[INBOX].next_lsn - 1 if INBOX in logs else 0


def _owner(store: RunStore, run_id: str) -> LogOwner | None:
    """Whose claim of the run is the newest, whether it lives or not: that may be unknown."""
    reader = store.read(run_id)
    with reader or nullcontext():
        owner = reader.owner() if reader else None
    return replace(owner, alive=True) if owner else None


def _differ(source: RunStore, target: RunStore, run_id: str) -> RecoveryError:
    shown = " and ".join(f"`{_command('show', one, run_id)}`" for one in (source, target))
    return RecoveryError(
        f"{_name(source)} and {_name(target)} both have run {run_id!r}, and neither continues the "
        "other: each has records or messages of its own, or what was read there is not what was "
        f"written. Nothing was removed. Look at both: {shown}. Then remove the one that has done "
        f"less: `{_command('rm', None, run_id)} --force`"
    )


def _command(verb: str, store: RunStore | None, run_id: str) -> str:
    return f"recovery {verb} {run_id} --store {quote(store.address) if store else 'STORE'}"


def _name(store: RunStore) -> str:
    return store.address or "the store"


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


def _logs(store: RunStore, run_id: str) -> dict[str, LogBytes]:
    """The logs of a run, whether it is live or not; empty if the store lacks it."""
    log = retried(lambda: _bytes_of(store, store.read(run_id)))
    inbox = retried(lambda: _bytes_of(store, store.inbox(run_id)))
    if log is None:
        return {}
    return {"": log, INBOX: inbox} if inbox and inbox.segments else {"": log}


def _bytes_of(store: RunStore, reader: ReadableLog | None) -> LogBytes | None:
    """A log up to its end as of now: a process may append to it. The label is left out."""
    if reader is None:
        return None
    with reader:
        if not isinstance(reader, LogReader):
            raise RecoveryError(f"{_name(store)} does not keep its logs as frames")
        tail = reader.tail()
        directory = reader._directory
        numbers = [number for number in reader.listing.numbers() if number <= tail.number]
        headers = [header for number in numbers if (header := reader.listing.header(number))]
        segments = {number: read_segment(directory, number) for number in numbers}
        if tail.offset and not tail.damaged:
            segments[tail.end_number] = segments[tail.end_number][: tail.offset]
        return LogBytes(
            log_id=reader.listing.log_id() or bytes(16),
            epoch=max((header.epoch for header in headers), default=1),
            next_lsn=tail.next_lsn,
            oldest_lsn=reader.oldest_lsn,
            snapshot=tail.snapshot,
            snapshot_segment=_segment_of(reader, tail.snapshot, numbers),
            segments=segments,
            label=RunLabel(""),
        )


def _label(store: RunStore, run_id: str) -> RunLabel:
    label = None
    with reader_of(store, run_id) as reader:
        for record in reader.records(on_damage=lambda damage: None):
            label = label_of(record.kind, record.packed) or label
    return label or RunLabel("")


def _segment_of(reader: LogReader, lsn: int, numbers: list[int]) -> int:
    found = reader.listing.segments_with({lsn})[1] if lsn else []
    return found[0].number if found else (numbers[0] if numbers else 0)
