"""Stores runs: one protocol, one module for each kind of store."""

from recovery.journal.submission import Submission
from recovery.stores.file import FileStore
from recovery.stores.memory import MemoryStore
from recovery.stores.protocol import RunEntry, RunQueue, RunStore
from recovery.stores.subject_keys import KeyDocument, SubjectKeys

__all__ = [
    "FileStore",
    "KeyDocument",
    "MemoryStore",
    "RunEntry",
    "RunQueue",
    "RunStore",
    "SubjectKeys",
    "Submission",
]
