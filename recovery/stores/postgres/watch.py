"""Watches the inboxes of this process' runs, so that none of them asks the server by itself.

One thread has a connection that listens. A notification names a run that was sent something; then
one statement loads what is new. Besides, and where no notification arrives, one statement for all
runs looks every ``poll_s``.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from typing import Any

import psycopg

from eventlog.after_fork import in_forked_child
from eventlog.errors import LogError
from eventlog.remote.directory import RemoteDirectory
from eventlog.remote.log_server import Loaded, Owner
from recovery.stores.postgres.log_server import PostgresLogServer
from recovery.stores.protocol import INBOX

_logger = logging.getLogger("recovery")

ECHO_S = 3.0  # within which a listener hears of itself, if notifications arrive at all
IDLE_S = 5.0  # after which a thread that watches nothing ends
TURN_S = 10.0  # how long the thread listens before it looks whether it is to end
RETRY_S = 1.0  # after a lost connection


class Watched:
    """The inbox of one run of this process. ``owner``: of the claim by which it has the run.
    ``directory``: None while there is none."""

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.directory: RemoteDirectory | None = None


class Watch:
    """The watched inboxes of one store. Thread-safe."""

    def __init__(
        self, log_server: PostgresLogServer, poll_s: float, listen_url: str | None
    ) -> None:
        self._log_server, self._poll_s, self._listen_url = log_server, poll_s, listen_url
        self._begin()
        in_forked_child(self, Watch._begin)

    def _begin(self) -> None:
        """Watch nothing; also in a forked child, which does not have its parent's runs."""
        self._lock = threading.Lock()
        self._changed = threading.Condition()
        self.changes = 0  # how often runs have changed, as far as this thread has heard
        self._watched: dict[str, Watched] = {}
        self._thread: threading.Thread | None = None
        self._needed_until = 0.0
        self._has_warned = False

    def add(self, run_id: str, owner: Owner) -> None:
        """Watch the inbox of a run from now on; ``put`` says what it has now."""
        with self._lock:
            self._start()
            self._watched[run_id] = Watched(owner)

    def put(self, run_id: str, loaded: Loaded | None) -> None:
        """What the inbox has, read after ``add``."""
        with self._lock:
            watched = self._watched.get(run_id)
            if watched is None or loaded is None:
                return
            if watched.directory is None:
                watched.directory = RemoteDirectory(self._log_server, loaded)
                return
            head = watched.directory.head
            # An answer that another thread has asked for may be older, and come later.
            if loaded.head.key == head.key and loaded.head.next_lsn >= head.next_lsn:
                watched.directory.apply(loaded)

    def remove(self, run_id: str, owner: Owner) -> None:
        """Watch it no more, unless this process has claimed it again since."""
        with self._lock:
            watched = self._watched.get(run_id)
            if watched is not None and watched.owner == owner:
                del self._watched[run_id]

    def get(self, run_id: str) -> Watched | None:
        """The inbox as it was last heard of; None if it is not watched."""
        return self._watched.get(run_id)

    def look(self, run_ids: list[str] | None = None) -> None:
        """Load what is new in these inboxes (all), in one statement."""
        with self._lock:
            names = self._watched if run_ids is None else self._watched.keys() & set(run_ids)
            after = {f"{run_id}/{INBOX}": _end(self._watched[run_id]) for run_id in names}
        if after:
            for name, loaded in self._log_server.load_many(after).items():
                self.put(name.removesuffix(f"/{INBOX}"), loaded)

    def wait(self, timeout_s: float, after: int) -> bool:
        """Wait until more than ``after`` changes were heard of; whether that is so."""
        with self._lock:
            self._needed_until = max(self._needed_until, time.monotonic() + timeout_s)
            self._start()
        with self._changed:
            return self._changed.wait_for(lambda: self.changes > after, timeout_s)

    # -- the thread

    def _start(self) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="eventlog-watch", daemon=True)
            thread.start()  # raises where no more can be started
            self._thread = thread

    def _is_over(self) -> bool:
        with self._lock:
            if self._watched or time.monotonic() < self._needed_until + IDLE_S:
                return False
            self._thread = None
            return True

    def _run(self) -> None:
        while not self._is_over():
            try:
                with self._log_server.connections.open_listener(self._listen_url) as connection:
                    self._listen(connection)
            except (psycopg.Error, LogError, OSError) as exc:
                _logger.debug("%s: listening again: %s", self._log_server.address, exc)
                time.sleep(RETRY_S)
            except BaseException:
                with self._lock:
                    self._thread = None
                raise

    def _listen(self, connection: psycopg.Connection[Any]) -> None:
        channel, echo = self._log_server.connections.schema, secrets.token_hex(8)
        connection.execute(f'listen "{channel}"'.encode())
        connection.execute("select pg_notify(%s, %s)", (channel, f"?{echo}"))
        self.look()  # what came before
        self._tell()
        heard_at, polled_at, hears = time.monotonic(), time.monotonic(), False
        while not self._is_over():
            turn_s = TURN_S if hears else ECHO_S
            notes = [note.payload for note in connection.notifies(timeout=turn_s, stop_after=1)]
            hears = hears or f"?{echo}" in notes
            runs = [note for note in notes if note and note[0] != "?"]
            if runs:
                self.look(runs)
            if any(note[:1] != "?" for note in notes):
                self._tell()
            now = time.monotonic()
            if not hears and now > heard_at + ECHO_S:
                self._warn()
            if now > polled_at + self._poll_s:
                polled_at = now
                self.look()
                self._tell()

    def _tell(self) -> None:
        with self._changed:
            self.changes += 1
            self._changed.notify_all()

    def _warn(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            _logger.warning(
                "%s: no notifications arrive, as through a connection pooler in transaction mode. "
                "Messages to runs are found within %g s. Give listen_url= a URL without the pooler",
                self._log_server.address,
                self._poll_s,
            )


def _end(watched: Watched) -> tuple[int, int]:
    return (0, 0) if watched.directory is None else watched.directory.end()
