"""A simulated disk: forgets what was not flushed, tears writes, fails when told to.

    disk = SimulatedDisk(seed=7)
    log = EventLog.open("log", files=disk)
    ...
    disk.crash_at(13)          # the 13th call from now raises Crash, its write torn
    ...
    for after in disk.power_losses():      # every disk that a power loss now may leave
        EventLog.open("log", files=after)  # must find what was committed

What the model keeps: everything flushed; of what was not, any subset, in any order, torn in any
way that ``model`` knows; names that no directory sync made durable, or not. A flush that fails
drops what it was to write: the process still reads it, later flushes report success, and the disk
may have got it or not. ``after_process_death`` keeps all writes.
"""

from eventlog.testing.disk import Crash, SimulatedDisk
from eventlog.testing.model import SECTOR

__all__ = ["SECTOR", "Crash", "SimulatedDisk"]
