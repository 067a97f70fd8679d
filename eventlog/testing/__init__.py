"""Simulates a disk that forgets unflushed writes, tears writes, and fails when told to.

    disk = SimulatedDisk(seed=7)
    log = EventLog.open("log", files=disk)
    ...
    disk.crash_at(13)          # the 13th call from now raises Crash, its write torn
    ...
    for after in disk.power_losses():      # every disk that a power loss now may leave
        EventLog.open("log", files=after)  # must find what was committed

A power loss keeps everything flushed. Of unflushed writes it keeps any subset, in any order, torn
in any way that ``model`` knows. It may keep names that no directory sync made durable. A
flush that fails drops the writes it was to flush: the process still reads them, later flushes
report success, and the disk may or may not have them. ``after_process_death`` keeps all writes.
"""

from eventlog.testing.disk import Crash, SimulatedDisk
from eventlog.testing.model import SECTOR

__all__ = ["SECTOR", "Crash", "SimulatedDisk"]
