"""An append-only, CRC-framed msgpack log that can be trusted after a crash.

>>> with EventLog.open("my-log") as log:          # doctest: +SKIP
...     log.append("greeting", {"text": "hello"})
...     log.commit()
"""

from eventlog._errors import (
    Damage,
    DamagedError,
    EncryptedLogError,
    FencedError,
    LogError,
    LogLockedError,
    NotEncryptedError,
    RefusedValueError,
    UnsupportedFormatError,
    WriterFailedError,
    WrongKeyError,
)
from eventlog._log import EventLog, OpenReport
from eventlog._owner import LogOwner
from eventlog._reader import LogReader
from eventlog._record import Packed, Record, Snapshot

__all__ = [
    "Damage",
    "DamagedError",
    "EncryptedLogError",
    "EventLog",
    "FencedError",
    "LogError",
    "LogLockedError",
    "LogOwner",
    "LogReader",
    "NotEncryptedError",
    "OpenReport",
    "Packed",
    "Record",
    "RefusedValueError",
    "Snapshot",
    "UnsupportedFormatError",
    "WriterFailedError",
    "WrongKeyError",
]
