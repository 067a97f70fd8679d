"""An append-only, CRC-framed msgpack log that can be trusted after a crash.

>>> with EventLog.open("my-log") as log:          # doctest: +SKIP
...     log.append("greeting", {"text": "hello"})
...     log.commit()
"""

from eventlog._errors import (
    Damage,
    DamagedError,
    FencedError,
    LogError,
    LogLockedError,
    RefusedValueError,
    UnsupportedFormatError,
    WriterFailedError,
)
from eventlog._log import EventLog, OpenReport
from eventlog._reader import LogReader
from eventlog._record import Packed, Record, Snapshot

__all__ = [
    "Damage",
    "DamagedError",
    "EventLog",
    "FencedError",
    "LogError",
    "LogLockedError",
    "LogReader",
    "OpenReport",
    "Packed",
    "Record",
    "RefusedValueError",
    "Snapshot",
    "UnsupportedFormatError",
    "WriterFailedError",
]
