"""Finds the default store for runs of Hive's agents."""

from __future__ import annotations

import os
from pathlib import Path

from recovery import CheckpointStore

OURS = "eventlog"  # a name that Hive does not use in its home


def default_store() -> CheckpointStore:
    """Runs in ``$HIVE_HOME/eventlog`` (``~/.hive/eventlog``), beside Hive's own files."""
    home = os.environ.get("HIVE_HOME") or "~/.hive"
    return CheckpointStore(Path(home).expanduser() / OURS)
