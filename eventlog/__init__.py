"""An append-only, CRC-framed msgpack log that can be trusted after a crash.

>>> with EventLog.open("my-log") as log:          # doctest: +SKIP
...     log.append("greeting", {"text": "hello"})
...     log.commit()
"""

from eventlog.errors import Damage, DamagedError, LogError, LogLockedError, RefusedValueError
from eventlog.files.lock import LogOwner
from eventlog.format.record import Packed, Record, Snapshot
from eventlog.protocols import LogRecords, OpenReport, ReadableLog, WritableLog
from eventlog.read.reader import LogReader
from eventlog.write.log import EventLog

__all__ = [
    "Damage",
    "DamagedError",
    "EventLog",
    "LogError",
    "LogLockedError",
    "LogOwner",
    "LogReader",
    "LogRecords",
    "OpenReport",
    "Packed",
    "ReadableLog",
    "Record",
    "RefusedValueError",
    "Snapshot",
    "WritableLog",
]
