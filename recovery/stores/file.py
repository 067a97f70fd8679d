"""Stores runs as directories on disk: the default store."""

from __future__ import annotations

import os
from contextlib import suppress

from eventlog.encryption import Encryption
from eventlog.files.posix import OSFiles
from eventlog.write.log import Durability
from recovery.option_checks import check_one_of
from recovery.stores.log_store import LogStore

# A file with what listings have read of each run, and its name while it is written.
LISTING, NEW_LISTING = ".listing", ".listing.new"


def default_directory() -> str:
    """The default directory of runs: ``$EVENTLOG_HOME``, else ``~/.eventlog``."""
    return _expanded(os.environ.get("EVENTLOG_HOME") or "~/.eventlog")


def _expanded(path: str) -> str:
    expanded = os.path.expanduser(path)
    if expanded.startswith("~"):
        raise RuntimeError(
            f"{path}: nothing says where the home directory is. Say where runs are: by the "
            "environment variable EVENTLOG_HOME, a path such as CheckpointStore('/var/lib/agents'),"
            " or --store of the commands"
        )
    return expanded


def delete_listing(root: str) -> None:
    """Delete what listings have kept of the runs of a store."""
    for name in (LISTING, NEW_LISTING):
        with suppress(FileNotFoundError):
            os.unlink(f"{root}/{name}")


class FileStore(LogStore):
    """Runs in a directory, each a log in a directory of its own. The methods are those of RunStore.

    Args:
        path: The directory, made when first used. None (the default) is ``$EVENTLOG_HOME``, else
            ``~/.eventlog``.
        durability: That of the logs: "power" (the default), "process" or "none". Without "power", a
            crash of the system may lose the last records: see EventLog.open.
        encryption: Encrypts everything that runs record (None), except their ids, which name
            directories.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        durability: Durability = "power",
        encryption: Encryption | None = None,
    ) -> None:
        check_one_of("durability", durability, ("power", "process", "none"))
        root = default_directory() if path is None else _expanded(os.fspath(path))
        # Absolute, because agents change their working directory.
        root = os.path.join(os.getcwd(), root)
        if ".." not in root.split(os.sep):  # after a link it may lead elsewhere
            root = os.path.normpath(root)
        if os.path.isfile(root):
            raise NotADirectoryError(
                f"{root} is a file. A store is a directory, in which each run has a directory of "
                "its own. Give the path of a directory; it is made when it is first used"
            )
        super().__init__(root, OSFiles(beneath=root), durability, encryption)
        self.address = root

    def remove(self, run_id: str, at: int | None = None, inbox: int | None = None) -> None:
        """See ``RunStore.remove``."""
        delete_listing(self.root)  # durably gone when the run is
        super().remove(run_id, at, inbox)
        delete_listing(self.root)  # of a listing that had read the run just before
