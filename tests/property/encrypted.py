"""Every log that a test opens or reads, encrypted, without the test's knowing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from eventlog import EventLog, LogReader
from eventlog.encryption import Encryption

KEYS = {"old": bytes(range(32)), "new": bytes(range(1, 33))}
KEY = Encryption(KEYS.get, "old")


@contextmanager
def encrypted(choose: Callable[[], Encryption | None] = lambda: KEY) -> Iterator[None]:
    """Inside, who says nothing of encryption gets what ``choose`` gives at that moment."""
    open_log, read_log = EventLog.open.__func__, EventLog.read  # type: ignore[attr-defined]

    def open_(cls: type[EventLog], *args: Any, **options: Any) -> EventLog:
        options["encryption"] = options.get("encryption") or choose()
        log: EventLog = open_log(cls, *args, **options)
        return log

    def read(*args: Any, **options: Any) -> LogReader:
        options["encryption"] = options.get("encryption") or choose()
        return read_log(*args, **options)

    with (
        mock.patch.object(EventLog, "open", classmethod(open_)),
        mock.patch.object(EventLog, "read", staticmethod(read)),
    ):
        yield
