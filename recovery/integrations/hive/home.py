"""Where what is recorded of Hive's agents lives."""

from __future__ import annotations

import os
from pathlib import Path

from recovery import CheckpointStore

OURS = "eventlog"  # a name that Hive does not use in its home


def default_store() -> CheckpointStore:
    """Runs in ``$HIVE_HOME/eventlog`` (``~/.hive/eventlog``), beside Hive's own files."""
    home = os.environ.get("HIVE_HOME") or "~/.hive"
    return CheckpointStore(Path(home).expanduser() / OURS)
