"""Stores runs in memory: for tests, and for agents whose runs may end with the process."""

from __future__ import annotations

from eventlog.encryption import Encryption
from eventlog.files.memory import MemoryFiles
from recovery.stores.log_store import LogStore


class MemoryStore(LogStore):
    """Runs in this process' memory, in the same log format as on disk, ``encryption`` included.

    The methods are those of RunStore.
    """

    def __init__(self, encryption: Encryption | None = None) -> None:
        super().__init__("memory", MemoryFiles(), "power", encryption)
