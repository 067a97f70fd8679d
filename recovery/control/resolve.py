"""Resolves a call from any process, by what a person or a program knows about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from eventlog import WritableLog
from recovery.control.named_call import AnyCall, key_or_lsn
from recovery.errors import RecoveryError
from recovery.history.find_run import Store, approvers_of, backend_of, claim_existing
from recovery.history.load import Entry
from recovery.history.load_shallow import ShallowHistory, load_shallow
from recovery.history.run_records import keys_of
from recovery.history.signed_resolutions import Attribution, append_resolution
from recovery.history.subject_values import keys_in, sealed, values_of
from recovery.inspect.inbox_view import is_inbox_lost
from recovery.journal.call import Resolution
from recovery.journal.encoding import decode_shallow, encode
from recovery.journal.events import (
    CallFailed,
    CallResolved,
    CallReturned,
    DivergenceAccepted,
    RunFailed,
    RunParked,
)
from recovery.option_checks import check_names
from recovery.replay.recorded_call import RecordedCall
from recovery.replay.run_owners import Owners
from recovery.values.pack import pack
from recovery.values.sealed import KeyIds, Personal, all_keys

if TYPE_CHECKING:
    from recovery.approvers import Approvers, Sign


def resolve(
    store: Store,
    run_id: str,
    call: AnyCall,
    resolution: Resolution,
    **saying: Unpack[Attribution],
) -> None:
    """See RunHandle.resolve."""
    check_names("resolve", saying, Attribution.__annotations__)
    who, why, sign = saying.get("who", ""), saying.get("why", ""), saying.get("sign")
    if not isinstance(resolution, Resolution):
        raise TypeError(
            "the resolution is Resolution.outcome(value), Resolution.retry() or "
            f"Resolution.fail(reason), not {resolution!r:.80}"
        )
    which = key_or_lsn(call)
    if resolution.how == "unknown":
        raise ValueError("Resolution.unknown() settles nothing: the call stays in doubt")
    given = resolution.value
    marked = given if type(given) is Personal else None
    value = pack(given if marked is None else marked.value, "resolution")
    with claim_existing(store, run_id) as log:
        history = _checked(log, run_id, approvers_of(store))
        for_undo = _for_undo(history.entries)
        failed = {failed_call(history.ended)} - {0} | _failed_for_good(history.entries)
        keys = history.keys() | keys_of(log, for_undo | failed, history.uid)
        lsn = next((lsn for lsn, key in keys.items() if key == which), which)
        unfinished = {one.lsn: one for one in history.open_calls()}
        for_undo -= unfinished.keys()
        in_doubt = unfinished.keys() | for_undo
        if not isinstance(lsn, int) or lsn not in in_doubt | failed:
            state = "has an outcome" if lsn in keys else "is no open call of this run"
            named = f"LSN {lsn}" if isinstance(lsn, int) else f"call {lsn!r}"
            raise RecoveryError(
                f"{named} of run {run_id!r} {state}; in doubt: {sorted(in_doubt) or 'none'}. "
                "Nothing was written."
            )
        if resolution.how == "retry" and not saying.get("force"):
            if found := unfinished.get(lsn):
                _refuse_second(history, found)
            if lsn in in_doubt:
                begun = found.again_lsn if found else 0
                _refuse_elsewhere(history, log, lsn, begun or lsn)
        subject = _subject_of(history.entries, log, lsn)
        if marked is not None:
            own = values_of(run_id, backend_of(store)).ids_of(marked.subject)
            subject = all_keys(subject, own)
        if subject:
            value = sealed(backend_of(store), run_id, value, subject)
        event = CallResolved(lsn, resolution.how, value, who, why, lsn in for_undo)
        run = history.started, approvers_of(store)
        append_resolution(log, run, event, keys.get(lsn, ""), sign)


def _subject_of(entries: list[Entry], log: WritableLog, call: int) -> KeyIds:
    """The keys of the subject that a call (LSN) belongs to."""
    found = next((event for lsn, _, event in entries if lsn == call), None)
    if found is None and (record := log.fetch({call}).get(call)) is not None:
        found = decode_shallow(record)
    return keys_in(getattr(found, "subject", None))


def _refuse_second(history: ShallowHistory, call: RecordedCall) -> None:
    """Raise RecoveryError if the log has outcomes of lost calls, and one may be this call's."""
    if call.unclaimed_outcomes:
        outcomes = " and ".join(f"LSN {one}" for one in call.unclaimed_outcomes)
        raise RecoveryError(
            f"run {history.run_id!r}: the log has the outcome of a lost call ({outcomes}), which "
            f"may be call {call.lsn}. Then the call took effect, and a retry would repeat it. "
            "Nothing was written. Read the outcome with logdump dump, and resolve the call with "
            "it. If it is another call's, say --retry --force, or force=True."
        )


def _refuse_elsewhere(history: ShallowHistory, log: WritableLog, lsn: int, begun: int) -> None:
    """Raise RecoveryError if a process that had the run before may still execute the call, whose
    attempt was ``begun`` by that record."""
    owners = history.tallied(Owners())
    owners.reads(log.last_lsn + 1, log.former_owner())
    if there := owners.executing_since(begun):
        raise RecoveryError(
            f"run {history.run_id!r}: call {lsn} is in doubt, and {there}. A retry could make it "
            "a second time. Nothing was written. End that process, and look again whether the call "
            "took effect. If the process has ended, say --retry --force, or force=True."
        )


def accept(store: Store, run_id: str, *, who: str = "", why: str = "") -> None:
    """See RunHandle.accept."""
    with claim_existing(store, run_id) as log:
        run = _checked(log, run_id, approvers_of(store))
        if run.ended is not None:
            raise RecoveryError(
                f"run {run_id!r} has ended: nothing can diverge. Nothing was written."
            )
        lost = run.started is not None and is_inbox_lost(backend_of(store).inbox, run)
        log.append(*encode(DivergenceAccepted(who, why, lost or None)))
        log.commit()


def retry(
    store: Store, run_id: str, *, who: str = "", why: str = "", sign: Sign | None = None
) -> int:
    """See RunHandle.retry."""
    with claim_existing(store, run_id) as log:
        run = _checked(log, run_id, approvers_of(store))
        call = failed_call(run.ended)
        if not call:
            raise RecoveryError(
                f"run {run_id!r} has not ended by the failure of a call, so there is none to make "
                "again. Nothing was written."
            )
        event, key = CallResolved(call, "retry", None, who, why), keys_of(log, {call}, run.uid)
        append_resolution(log, (run.started, approvers_of(store)), event, key.get(call, ""), sign)
    return call


def failed_call(ended: object) -> int:
    """The call (LSN) whose failure ended a run; 0 if it has not ended like that."""
    return ended.call if isinstance(ended, RunFailed) else 0


def _checked(log: WritableLog, run_id: str, approvers: Approvers | None) -> ShallowHistory:
    """The run, opened without the types of its values."""
    found = load_shallow(log, run_id, approvers)
    found.check()
    return found


def _failed_for_good(entries: list[Entry]) -> set[int]:
    """The failed calls for which a graph is parked."""
    calls: set[int] = set()
    for _, _, event in entries:
        match event:
            case RunParked():
                calls = {*(event.stays or ())}
            case CallReturned() | CallFailed():
                calls.discard(event.call)
    return calls


def _for_undo(entries: list[Entry]) -> set[int]:
    """The calls in doubt for which an undo parked last. It includes calls that were cancelled, or
    are before a checkpoint, so that no process makes them again."""
    calls: set[int] = set()
    for _, _, event in entries:
        match event:
            case RunParked():
                calls = set(event.calls) if event.undo else set()
            case CallReturned() | CallFailed() | CallResolved():
                calls.discard(event.call)
    return calls
