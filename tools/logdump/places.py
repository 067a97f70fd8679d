"""Names the places of logs: directories, and URLs of runs in a store on a server."""

from __future__ import annotations

from pathlib import Path

from eventlog import LogReader
from eventlog.format.names import segment_name
from recovery.history.store_url import is_url, split_run
from recovery.stores.protocol import INBOX

SEGMENT = "[0-9]*.seg"


def name_of(path: str) -> str:
    """The name of the log at a path or URL: its run's id, or that of its inbox."""
    return split_run(path)[1].rpartition("/")[2] if is_url(path) else Path(path).resolve().name


def beside(path: str, run_id: str) -> str:
    """The place of another run of the same store."""
    if is_url(path):
        store, _ = split_run(path)
        return inside(store, run_id)
    here = Path(path)
    parent = here.resolve().parent if here.name in ("", "..") else here.parent
    return str(parent / run_id)


def inside(path: str, name: str) -> str:
    """The place of a log inside another's, or of a run in a store."""
    if not is_url(path):
        return f"{path}/{name}"
    base, mark, query = path.partition("?")
    return f"{base.rstrip('/')}/{name}{mark}{query}"


def may_have_inbox(path: str) -> bool:
    """Whether a log may have an inbox beside it; a server has to be asked."""
    if is_url(path):
        return name_of(path) != INBOX
    return next(Path(path, INBOX).glob(SEGMENT), None) is not None


def segment_sizes(reader: LogReader) -> list[int]:
    """Bytes of each segment."""
    sizes = []
    for number in reader.listing.numbers():
        file = reader._directory.open(segment_name(number))
        sizes.append(file.size())
        file.close()
    return sizes
