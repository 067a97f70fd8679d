"""Begins submitted runs and resumes abandoned ones, within limits, in any number of processes.

``Worker`` does it in a program, ``recovery worker`` on the command line. ``CheckpointStore.submit``
and ``recovery submit`` hand in runs. The metrics need the extra: ``pip install
'agent-eventlog[worker]'``.
"""

from recovery.worker.worker import Worker, WorkerStats

__all__ = ["Worker", "WorkerStats"]
