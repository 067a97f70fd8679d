"""Runs as directories on disk: the default store."""

from __future__ import annotations

import os
from pathlib import Path

from eventlog._files import OSFiles
from eventlog._log import Durability
from eventlog.encryption import Encryption
from recovery._errors import RecoveryError
from recovery.stores.protocol import LogStore


def default_directory() -> str:
    """Where runs live unless told otherwise: ``$EVENTLOG_HOME``, else ``~/.eventlog``."""
    return str(Path(os.environ.get("EVENTLOG_HOME") or "~/.eventlog").expanduser())


class FileStore(LogStore):
    """Runs in directory ``path``, each a log in a directory of its own; made when first used.

    ``durability`` is that of the logs: "power", "process" or "none" (see EventLog.open).
    ``encryption``: all that runs record is encrypted. Their ids, which name directories, are not.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        durability: Durability = "power",
        encryption: Encryption | None = None,
    ) -> None:
        root = Path(default_directory() if path is None else path).expanduser()
        # Absolute, because agents change their working directory.
        super().__init__(str(root.absolute()), OSFiles(), durability, encryption)

    def _path(self, run_id: str) -> str:
        path = super()._path(run_id)
        if Path(path).is_symlink():
            raise RecoveryError(f"{path} is a symbolic link. A run is a directory in its store.")
        return path
