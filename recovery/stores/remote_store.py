"""Stores runs as logs on a server: what stores of all servers have in common."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from eventlog import LogLockedError, RefusedValueError, WritableLog
from eventlog.encryption import Encryption
from eventlog.errors import UnreachableError
from eventlog.format.record import encode_payload
from eventlog.remote.appender import RemoteAppender
from eventlog.remote.directory import RemoteDirectory
from eventlog.remote.group_commit import RemoteCommitter
from eventlog.remote.log import RemoteLog, RemoteReader, ServerClock, append_in_turn
from eventlog.remote.log_server import (
    HEAD_ALONE,
    Head,
    Label,
    Loaded,
    LogServer,
    LostConnectionError,
)
from eventlog.remote.log_url import url_of
from eventlog.remote.owner_processes import is_dead, this_process
from recovery.errors import RecoveryError
from recovery.journal.inbox_messages import RUN_LSN
from recovery.journal.run_label import label_of
from recovery.journal.submission import Submission
from recovery.stores.protocol import INBOX, check_run_id, packed_message, posted_lsn
from recovery.stores.submitting import submit, submitted
from recovery.values.pack import pack, pack_map

POST_WAIT_S = 10.0  # for other senders, and for a server that does not answer


class RemoteStore:
    """The part of a RunStore that needs nothing but a LogServer."""

    is_remote = True
    durability = "power"

    def __init__(
        self,
        log_server: LogServer,
        clock: ServerClock,
        *,
        lease_s: float,
        patience_s: float,
        encryption: Encryption | None,
    ) -> None:
        if not lease_s >= 1:
            raise ValueError(f"lease_s is 1 or more, not {lease_s}")
        self.log_server, self.clock, self.lease_s = log_server, clock, lease_s
        self.address, self.encryption = log_server.address, encryption
        self._committer = RemoteCommitter(log_server, lease_s, patience_s)

    def use(self, log_server: LogServer) -> None:
        """For tests: use this server of logs, which may lose connections."""
        self.log_server = self._committer.log_server = log_server

    def claim(self, run_id: str, takeover: bool = False) -> WritableLog:
        """See ``RunStore.claim``."""
        head = self._claimed(check_run_id(run_id), takeover)
        try:
            loaded = self.loaded_run(head)
            if loaded is None or loaded.head.epoch != head.epoch:
                raise self._locked(loaded.head if loaded else head)
            log = RemoteLog(self._committer, self.clock, loaded, self.encryption, _label)
            log.on_close = lambda: self.closed_run(head)
        except BaseException:
            self.closed_run(head)
            with suppress(Exception):
                self._release(head)
            raise
        self._committer.opened(log.appender)
        return log

    def _claimed(self, run_id: str, takeover: bool) -> Head:
        ours = this_process()
        head = self.log_server.claim(run_id, os.urandom(16), ours, self.lease_s)
        if head.owner == ours:
            return head
        if takeover or is_dead(head.owner):
            claim = self.log_server.claim if takeover else self.log_server.claim_from_dead
            head = claim(run_id, os.urandom(16), ours, self.lease_s, head.epoch)
        if head.owner != ours:
            raise self._locked(head)
        return head

    def loaded_run(self, head: Head) -> Loaded | None:
        """A run that this process has just claimed; ``head``: as of then."""
        return self.log_server.load(head.name)

    def closed_run(self, head: Head) -> None:
        """This process has let go of a run that it had claimed. It may have it again."""

    def _locked(self, head: Head) -> LogLockedError:
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(head.since_ns / 1e9))
        return LogLockedError(
            url_of(self.address, head.name), head.owner.pid, head.owner.host, since
        )

    def _release(self, head: Head) -> None:
        """Let go of a log that could not be opened."""
        appender = RemoteAppender(
            self._committer,
            RemoteDirectory(self.log_server, Loaded(head, [])),
            head,
            None,
            os.urandom,
        )
        appender.close()

    def read(self, run_id: str) -> RemoteReader | None:
        """See ``RunStore.read``."""
        return self._reader(check_run_id(run_id))

    def inbox(self, run_id: str) -> RemoteReader | None:
        """See ``RunStore.inbox``."""
        return self._reader(f"{check_run_id(run_id)}/{INBOX}")

    def _reader(self, name: str) -> RemoteReader | None:
        return self.reader_of(self.log_server.load(name))

    def reader_of(self, loaded: Loaded | None, watched: bool = False) -> RemoteReader | None:
        """A reader of a log that was loaded; ``watched``: it looks for no more."""
        if loaded is None or not (loaded.head.epoch or loaded.head.number):
            return None
        if loaded.head.is_alive and is_dead(loaded.head.owner):
            loaded = loaded._replace(head=replace(loaded.head, is_alive=False))
        directory = RemoteDirectory(self.log_server, loaded)
        return RemoteReader(self.clock, directory, self.encryption, watched)

    def size(self, run_id: str) -> int:
        """See ``RunStore.size``."""
        names = (check_run_id(run_id), f"{run_id}/{INBOX}")
        found = [self.log_server.load(name, HEAD_ALONE) for name in names]
        return sum(one.head.size for one in found if one is not None)

    def submit(self, submission: Submission) -> bool:
        """See ``TakesSubmissions.submit``. ``submission``: the run."""
        return submit(self, submission)

    def submission(self, run_id: str) -> Submission | None:
        """See ``TakesSubmissions.submission``. ``run_id``: of the run."""
        return submitted(self, run_id)

    def sweep(self) -> int:
        """See ``RunStore.sweep``. A removal is one transaction: it leaves no remains."""
        return 0

    def post(
        self,
        run_id: str,
        kind: str,
        body: Mapping[str, Any],
        key: str = "",
        time_ns: int | None = None,
    ) -> int:
        """See ``RunStore.post``."""
        parts = packed_message(body, key)
        until = time.monotonic() + POST_WAIT_S
        while True:
            run_lsn, loaded = self.loaded_inbox(check_run_id(run_id))
            if run_lsn is None:
                raise RecoveryError(f"run {run_id!r} was removed meanwhile. Nothing was sent.")
            if key and loaded.head.next_lsn > 1:
                directory = RemoteDirectory(self.log_server, loaded)
                reader = RemoteReader(self.clock, directory, self.encryption)
                if lsn := posted_lsn(reader.records(), (kind, parts), key):
                    return lsn
            packed = pack_map({**parts, RUN_LSN: pack(run_lsn, RUN_LSN)})
            try:
                payload = encode_payload(time_ns or self.clock.time_ns(), ((kind, packed),))
            except RefusedValueError as exc:  # too large
                raise RefusedValueError(kind, exc.reason) from None
            appender, lsn = append_in_turn(
                self.log_server, self.clock, loaded, self.encryption, payload, wakes=run_id
            )
            if self._is_posted(appender, until):
                return lsn
            if time.monotonic() > until:  # other senders were before this one, each time
                raise self._locked(loaded.head)

    def _is_posted(self, appender: RemoteAppender, until: float) -> bool:
        """Send the message; False if another sender's came first."""
        batch = appender.take(renews=False)
        assert batch is not None
        try:
            return batch.key in self.log_server.append([batch], 0)
        except LostConnectionError as exc:
            why: BaseException = exc
        while time.monotonic() < until:
            time.sleep(0.1)
            try:
                end, is_there = self.log_server.resolve([batch]).get(batch.key, (0, False))
                if is_there or end != batch.expected:
                    return is_there
                if batch.key in self.log_server.append([batch], 0):
                    return True
                # The first statement may have been executed only now: look again.
            except LostConnectionError as exc:
                why = exc
        raise UnreachableError(self.address, POST_WAIT_S, why)

    def loaded_inbox(self, run_id: str) -> tuple[int | None, Loaded]:
        """The durable LSN of a run (None: there is none), and its inbox, made if it is missing."""
        raise NotImplementedError

    def time_ns(self) -> int:
        """The server's clock: ns since 1970."""
        return self.clock.time_ns()


def _label(kind: str, body: bytes) -> Label | None:
    found = label_of(kind, body)
    if found is None:
        return None
    due_ns = int((found.wake_at or 0) * 1e9)
    return Label(found.state, due_ns, *(found.queued or (None, 0, "")))
