"""Opens logs on a server: for its one writer, for readers, and for processes that take turns."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from eventlog.crypto.keys import Encryption
from eventlog.errors import Damage
from eventlog.files.api import Directory
from eventlog.format.frame import ENCRYPTED, RECORDS, decode_segment_header
from eventlog.format.names import segment_name
from eventlog.format.record import Packed, Record, encode_payload
from eventlog.format.record import pack as pack_body
from eventlog.read.reader import LogReader, Position
from eventlog.read.segment_files import read_first_frame
from eventlog.remote.appender import RemoteAppender
from eventlog.remote.directory import RemoteDirectory
from eventlog.remote.group_commit import RemoteCommitter
from eventlog.remote.log_server import Label, Loaded, LogServer
from eventlog.remote.owner_processes import former_owners
from eventlog.write.log import EventLog, open_report

LabelOf = Callable[[str, bytes], Label | None]


class ServerClock:
    """The clock of a server, as far as its answers have said; and randomness of this machine.

    Invariant: it never goes back, and does not follow the wall clock of this machine.
    """

    def __init__(self) -> None:
        self._offset_ns: int | None = None

    def learn(self, now_ns: int, asked_at_ns: int) -> None:
        """Note the server's time in an answer, asked for at this monotonic time."""
        middle = (asked_at_ns + time.monotonic_ns()) // 2
        offset = now_ns - middle
        if self._offset_ns is None or offset > self._offset_ns:
            self._offset_ns = offset

    def time_ns(self) -> int:
        """The server's time: ns since 1970. This machine's until the server has answered."""
        if self._offset_ns is None:
            return time.time_ns()
        return time.monotonic_ns() + self._offset_ns

    random_bytes = staticmethod(os.urandom)


class RemoteReader(LogReader):
    """A read-only view of a log on a server, as of when it was opened.

    ``records`` and ``arrivals`` look for more. The writer's records are seen once it has committed.
    ``watched``: a thread of this process keeps the directory up to date, so reading asks no server.
    """

    def __init__(
        self,
        clock: ServerClock,
        directory: RemoteDirectory,
        encryption: Encryption | None,
        watched: bool = False,
    ) -> None:
        super().__init__(clock, directory, encryption)  # type: ignore[arg-type] # reads no files
        self._remote, self._watched = directory, watched
        self.time_ns = clock.time_ns  # the server's clock

    def former_owner(self) -> str:
        """See ReadableLog.former_owner."""
        return former_owners(self._remote.head)

    def arrivals(
        self, start: int = 1, position: Position | None = None
    ) -> Iterator[Record | Damage | None]:
        """See ``LogReader.arrivals``."""
        if not self._remote.is_fresh and not self._watched:
            self._remote.refresh()
        self._remote.is_fresh = False
        return super().arrivals(start, position)

    def _grown(self, position: Position) -> bool:
        if not self._watched:
            self._remote.refresh()
        return super()._grown(position)


class RemoteLog(EventLog):
    """A log on a server that this process has claimed: see WritableLog.

    Appended records are in this process' memory until the next commit, which sends what all logs
    of the store have, in one statement. After a lost connection a commit waits until it knows what
    the server has: see ``eventlog.remote.group_commit``.
    """

    durability = "power"

    def __init__(
        self,
        committer: RemoteCommitter,
        clock: ServerClock,
        loaded: Loaded,
        encryption: Encryption | None,
        label_of: LabelOf,
    ) -> None:
        began, directory = time.perf_counter(), RemoteDirectory(committer.log_server, loaded)
        reader = RemoteReader(clock, directory, encryption, watched=True)
        encrypter = reader.decoder.encrypter(os.urandom)
        tail = reader.tail()
        self.appender = RemoteAppender(committer, directory, loaded.head, encrypter, os.urandom)
        super().__init__(self.appender, reader, directory)  # type: ignore[arg-type] # as a file's
        self._committer, self._label_of, self.group = committer, label_of, committer
        self.on_close: Callable[[], None] | None = None
        report = open_report(tail, time.perf_counter() - began)
        self.report = replace(report, clean=not loaded.head.lost, torn_size=0, torn_frames=0)

    def append(
        self, kind: str, body: Any, *, time_ns: int | None = None, hold: bool = False
    ) -> int:
        """Append one record; returns its LSN. It is in memory until the next commit."""
        stamp = self._files.time_ns() if time_ns is None else time_ns
        packed = Packed(body if type(body) is Packed else pack_body(body))
        payload = encode_payload(stamp, ((kind, packed),))
        lsn = self.appender.append(RECORDS, 1, payload, self._label_of(kind, packed))
        self.last_time_ns = stamp
        return lsn

    def append_batch(self, items: Iterable[tuple[str, Any]]) -> list[int]:
        """Append records as one atomic batch; see ``EventLog.append_batch``."""
        batch = [(kind, Packed(pack_body(body))) for kind, body in items]
        if not batch:
            return []
        stamp = self._files.time_ns()
        labels = [label for one in batch if (label := self._label_of(*one)) is not None]
        payload = encode_payload(stamp, batch)
        label = labels[-1] if labels else None
        first = self.appender.append(RECORDS, len(batch), payload, label)
        self.last_time_ns = stamp
        return list(range(first, first + len(batch)))

    def _release(self) -> None:
        super()._release()
        if self.on_close is not None:
            self.on_close()

    def commit_behind(self) -> None:
        """Have everything appended so far committed soon. Returns at once."""
        if self.durable_lsn < self.last_lsn:
            self._committer.commit_behind(self.appender)


def append_in_turn(
    log_server: LogServer,
    clock: ServerClock,
    loaded: Loaded,
    encryption: Encryption | None,
    payload: bytes,
    wakes: str = "",
) -> tuple[RemoteAppender, int]:
    """An appender with one frame of one record, for a log that many processes append to.

    Its batch is accepted if no other process has appended since ``loaded``. Returns its LSN too.
    """
    directory = RemoteDirectory(log_server, loaded)
    reader = RemoteReader(clock, directory, encryption, watched=True)
    encrypter = reader.decoder.encrypter(os.urandom)
    committer = RemoteCommitter(log_server, 0, 0)  # never started
    appender = RemoteAppender(committer, directory, loaded.head, encrypter, os.urandom)
    appender.wakes = wakes
    if loaded.head.number and _is_ours(directory, loaded.head.number, encrypter):
        header = decode_segment_header(
            directory.open(segment_name(loaded.head.number)).pread(64, 0)
        )
        if header is not None:
            appender.resume_segment(header)
    return appender, appender.append(RECORDS, 1, payload)


def _is_ours(directory: Directory, number: int, encrypter: Any) -> bool:
    """Whether the segment is encrypted under our key, or, without one, unencrypted."""
    frame, payload = read_first_frame(directory, number)
    if frame is None or encrypter is None:
        return frame is not None and not frame.flags & ENCRYPTED
    return bool(frame.flags & ENCRYPTED) and payload.startswith(encrypter.head)
