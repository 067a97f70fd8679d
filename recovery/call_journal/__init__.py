"""Records the calls of a loop that has its own checkpoints, and serves them in any order."""

from recovery.call_journal.call_journal import CallJournal
from recovery.call_journal.finished_call import FinishedCall

__all__ = ["CallJournal", "FinishedCall"]
