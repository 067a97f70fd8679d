"""Lists the runs of a store, and reads only those that have changed since the last listing."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from eventlog import LogOwner, Packed
from recovery.history.find_run import Store, approvers_of, backend_of
from recovery.inspect.calls_without_outcome import OpenCall
from recovery.inspect.inbox_view import PendingMessage
from recovery.inspect.listing_file import ENTRY_MAX, ListingFile, files_of, release
from recovery.inspect.status import RunStatus, StatusRead, read_status
from recovery.journal.forked_from import ForkedFrom
from recovery.journal.related_runs import ParentRun
from recovery.journal.usage import Usage
from recovery.replay.error_counts import RunError
from recovery.replay.progress import Progress
from recovery.stores.file import FileStore
from recovery.stores.protocol import (
    ReadsManyRuns,
    RunQueue,
    RunStore,
    clock_ahead_s,
    in_pages,
)

if TYPE_CHECKING:
    from recovery.approvers import Approvers

# States that a RunQueue and a RunStatus say of the same runs.
_SAME = {"finished", "failed", "cancelled"}
# Of a run in another state, a RunQueue has one of these; of those below, only its log says it.
_NOT_ENDED = {"", "submitted", "running", "interrupted", "in doubt", "waiting", "parked", "undone"}
_DUE = {"failed", "waiting"}
_READ = {"damaged", "unreadable", "empty", "saved"}
_PAGE = 10_000


def listed(
    store: Store, states: Collection[str] | None = None, due: bool = False
) -> Iterator[RunStatus]:
    """The status of each run of a store, to be shown: at least of those in these ``states``, or
    that are ``due``. What deletes or decides uses ``runs``: a listing does not notice damage that
    leaves a file's size and times as they were."""
    backend, approvers = backend_of(store), approvers_of(store)
    run_ids = _run_ids(backend, _DUE if due and states is None else states)
    if isinstance(backend, ReadsManyRuns):
        keeps = approvers is None and backend.encryption is None
        for page in in_pages(run_ids):
            yield from _page(backend, page, approvers, keeps)
        return
    known = None
    if isinstance(backend, FileStore) and approvers is None:
        known = ListingFile.of(backend)
    for run_id in run_ids:
        kept = None if known is None else known.get(run_id)
        if kept is not None:
            yield _decoded(run_id, kept)
            continue
        files = files_of(backend.root, run_id) if isinstance(backend, FileStore) else None
        found = read_status(backend, run_id, approvers)
        if found is None:
            continue
        if known is not None and files is not None and (content := _lasting(found)):
            known.add(run_id, files, content)
        yield found.status
    if known is not None:
        known.save({*run_ids})


def _page(
    backend: ReadsManyRuns, run_ids: Sequence[str], approvers: Approvers | None, keeps: bool
) -> Iterator[RunStatus]:
    """Runs of a server: one query for what listings have kept, and one for the others."""
    kept = backend.kept(run_ids) if keeps else {}
    # Another version of the library may find another status in the same log.
    ours = release()
    now = {run_id: f"{ours} {one.version}" for run_id, one in kept.items()}
    known = {run_id: one.content for run_id, one in kept.items() if one.kept_version == now[run_id]}
    left = [run_id for run_id in run_ids if run_id not in known]
    source = backend.loaded(left) if left else None
    ahead_s = clock_ahead_s(backend)
    new: dict[str, tuple[str, str]] = {}
    for run_id in run_ids:
        if run_id in known:
            yield _decoded(run_id, json.loads(known[run_id]) | {"clock_ahead_s": ahead_s})
            continue
        assert source is not None
        found = read_status(source, run_id, approvers)
        if found is None:
            continue
        if run_id in now and (content := _lasting(found)) and len(content) <= ENTRY_MAX:
            new[run_id] = now[run_id], content
        yield found.status
    if new:
        backend.keep(new)


def _lasting(found: StatusRead) -> str:
    """The status as JSON, if it lasts for as long as the run is the same; else ""."""
    if not found.lasts:
        return ""
    content = _encoded(found.status)
    return content if _decoded(found.status.run_id, json.loads(content)) == found.status else ""


def _run_ids(backend: RunStore, states: Collection[str] | None) -> list[str]:
    """The runs that may be in these states: those that a store lists by state, with a query."""
    if states is None or not isinstance(backend, RunQueue) or _READ & {*states}:
        return backend.run_ids()
    asked = {*states} & _SAME | (_NOT_ENDED if {*states} - _SAME else set())
    found: list[str] = []
    while True:
        after = found[-1] if found else ""
        page = backend.find(states=asked, after=after, limit=_PAGE)
        found += [one.run_id for one in page]
        if len(page) < _PAGE:
            return found


def _encoded(one: RunStatus) -> str:
    """The fields that are not as by default, as JSON."""
    content = {}
    for each in fields(one):
        value = getattr(one, each.name)
        if each.name != "run_id" and each.compare and value != each.default:
            content[each.name] = _plain(value)
    return json.dumps(content, separators=(",", ":"))


def _plain(value: Any) -> Any:
    if type(value) is Packed:
        return b64encode(value).decode()
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if is_dataclass(value):
        return [_plain(getattr(value, each.name)) for each in fields(value)]
    return value


def _decoded(run_id: str, content: dict[str, Any]) -> RunStatus:
    """The status again. A kind of value that is not known here is left as it is, so that the status
    is not equal to the one that was encoded."""
    return RunStatus(run_id, **{name: _revived(name, value) for name, value in content.items()})


def _revived(name: str, value: Any) -> Any:
    revive = _REVIVERS.get(name)
    return value if revive is None else revive(value)


def _packed(text: str | None) -> Packed | None:
    return None if text is None else Packed(b64decode(text))


def _progress(row: list[Any]) -> Progress:
    status, step, usage, *rest = row
    return Progress(status, step, Usage(*usage), *rest)


def _call(row: list[Any]) -> OpenCall:
    for i, revive in ((12, tuple), (14, tuple), (15, _packed)):
        row[i] = revive(row[i])
    return OpenCall(*row)


def _message(row: list[Any]) -> PendingMessage:
    row[7] = _packed(row[7])
    return PendingMessage(*row)


_REVIVERS: dict[str, Callable[[Any], Any]] = {
    "progress": _progress,
    "calls": lambda rows: tuple(map(_call, rows)),
    "owner": lambda row: LogOwner(*row),
    "parent": lambda row: ParentRun(*row),
    "forked_from": lambda row: ForkedFrom(*row),
    "unread": lambda rows: tuple(map(_message, rows)),
    "error": lambda row: RunError(*row),
    "signed": tuple,
    "unclaimed_outcomes": tuple,
    "packed_task": _packed,
}
