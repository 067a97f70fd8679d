"""Begins submitted runs, and resumes the runs of dead processes, in as many processes as you like.

``Worker`` does it in a program, ``recovery worker`` on the command line. ``CheckpointStore.submit``
and ``recovery submit`` hand in runs. The metrics need the extra: ``pip install
'agent-eventlog[worker]'``.
"""

from recovery.worker.worker import Worker, WorkerStats

__all__ = ["Worker", "WorkerStats"]
