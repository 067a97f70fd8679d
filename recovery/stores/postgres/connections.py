"""Keeps connections to a PostgreSQL server, and tells lost ones from refused statements."""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import psycopg

from eventlog.after_fork import in_forked_child
from eventlog.errors import LogError, UnreachableError
from eventlog.remote.log_server import LostConnectionError
from recovery.stores.postgres.binary import Prepared
from recovery.stores.postgres.schema import CREATE, VERSION

T = TypeVar("T")
_logger = logging.getLogger("recovery")

_OPTIONS: dict[str, Any] = {
    "autocommit": True,
    "prepare_threshold": None,  # see binary.Prepared
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "fallback_application_name": "agent-eventlog",
}
CONNECT_S = 5.0  # for a server that was never reached: more likely a wrong URL than an outage
ANSWER_S = 30.0  # after which a statement that has no answer has an unknown outcome
IDLE_MAX = 4  # connections kept open between statements
RETRY_MIN_S, RETRY_MAX_S = 0.05, 2.0
# Errors of a connection attempt that another attempt does not change.
_FINAL = ("28", "3D", "42", "0A")
_HINTS = ("password authentication failed", "does not exist", "no password supplied", "pg_hba.conf")


def split_url(url: str) -> tuple[str, str, str]:
    """The URL for the driver, the one to show (without password), and the schema in it."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    schema = options.pop("schema", "eventlog")
    if not schema.isidentifier() or not schema.isascii() or schema != schema.lower():
        raise ValueError(f"schema={schema}: use lower case letters, digits and underscores")
    secrets = {"password", "sslpassword"}
    shown = {key: value for key, value in options.items() if key not in secrets}
    if schema != "eventlog":
        shown["schema"] = schema
    user, at, host = parts.netloc.rpartition("@")
    user = user.partition(":")[0]
    query, asked = (urlencode(one, quote_via=quote, safe="/") for one in (shown, options))
    address = f"postgresql://{user}{at}{host}{parts.path.rstrip('/')}{query and '?'}{query}"
    driven = f"postgresql://{parts.netloc}{parts.path}{asked and '?'}{asked}"
    return driven, address, schema


class _Connection(psycopg.Connection[Any]):
    """A connection whose statements time out, so that a vanished server is noticed."""

    answer_s = ANSWER_S

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.prepared = Prepared()

    def wait(self, gen: Generator[Any, Any, T], *more: Any, **options: Any) -> T:
        until = time.monotonic() + self.answer_s
        return super().wait(_timed(gen, until), *more, **options)


def _timed(gen: Generator[Any, Any, T], until: float) -> Generator[Any, Any, T]:
    try:
        state = next(gen)
        while True:
            ready = yield state
            if not ready and time.monotonic() > until:
                raise psycopg.OperationalError("the server has not answered")
            state = gen.send(ready)
    except StopIteration as ended:
        result: T = ended.value
        return result


class Connections:
    """Connections to one server, each for one statement at a time. Thread-safe; fork-safe."""

    _sharing: threading.Lock
    _shared: weakref.WeakValueDictionary[tuple[str, float], Connections]

    def __init__(self, url: str, patience_s: float) -> None:
        self.url, self.address, self.schema = split_url(url)
        self._patience_s = patience_s
        self._is_checked = False
        self.outages, self._away_since = 0, 0.0
        self._begin()
        in_forked_child(self, Connections._begin)

    def _begin(self) -> None:
        """Have no connection; also in a forked child, for its parent's are still the parent's."""
        self._lock = threading.Lock()
        self._idle: list[_Connection] = []
        weakref.finalize(self, _close_all, self._idle, os.getpid())

    @classmethod
    def to(cls, url: str, patience_s: float) -> Connections:
        """Those of this process to this URL: its stores share them."""
        key = (url, patience_s)
        with cls._sharing:
            found = cls._shared.get(key)
            if found is None:
                found = cls._shared[key] = cls(url, patience_s)
            return found

    @classmethod
    def _share_none(cls) -> None:
        cls._sharing, cls._shared = threading.Lock(), weakref.WeakValueDictionary()

    def run(self, act: Callable[[_Connection], T]) -> T:
        """Call ``act`` once, with a connection. LostConnectionError if its outcome is unknown."""
        connection = self._taken()
        try:
            result = act(connection)
        except (psycopg.OperationalError, psycopg.errors.ReadOnlySqlTransaction) as exc:
            connection.close()  # the latter is of a standby, in whose place the primary may come
            self._close_idle()  # they lead to the same server
            raise LostConnectionError(_text(exc)) from exc
        except BaseException:
            connection.close()
            raise
        with self._lock:
            if len(self._idle) < IDLE_MAX:
                self._idle.append(connection)
                return result
        connection.close()
        return result

    def query(
        self, statement: bytes, values: Sequence[bytes], types: Sequence[int]
    ) -> bytes | None:
        """As ``run``, of a statement with parameters of these types that gives one value: all in
        binary. The server prepares it where it can."""

        return self.run(lambda one: one.prepared.query(one, statement, values, types))

    def ask(self, act: Callable[[_Connection], T]) -> T:
        """As ``run``, for what may be repeated: waits for a server that does not answer, for as
        long as it may take; then UnreachableError."""
        began, pause_s = time.monotonic(), RETRY_MIN_S
        while True:
            try:
                return self.run(act)
            except LostConnectionError as exc:
                patience_s = self._patience_s if self._is_checked else CONNECT_S
                waited_s, is_refused = time.monotonic() - began, is_final(exc)
                if waited_s > patience_s or is_refused:
                    raise UnreachableError(
                        self.address, waited_s, exc, is_refused=is_refused
                    ) from exc
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_MAX_S)

    def open_listener(self, url: str | None = None) -> psycopg.Connection[Any]:
        """A connection of the caller's own that waits for notifications, for any time."""
        return psycopg.connect(url or self.url, **_OPTIONS)

    def open(self) -> _Connection:
        """A connection of the caller's own."""
        connection = _Connection.connect(self.url, **_OPTIONS)
        if not self._is_checked:
            try:
                self._check(connection)
            except BaseException:
                connection.close()
                raise
            self._is_checked = True
        return connection

    def _taken(self) -> _Connection:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        try:
            opened = self.open()
            self._is_back()  # not by an older connection, which may answer while it ends
            return opened
        except psycopg.OperationalError as exc:
            if self._is_checked:
                self._is_away(exc)
            raise LostConnectionError(_text(exc)) from exc

    @property
    def away_s(self) -> float:
        """Since when the server takes no connection; 0.0: it does."""
        return time.monotonic() - self._away_since if self._away_since else 0.0

    def _is_away(self, exc: Exception) -> None:
        """Tell of an outage, once when it begins."""
        with self._lock:
            if self._away_since:
                return
            self._away_since, self.outages = time.monotonic(), self.outages + 1
        what = "%s takes no connection: %s. Commits wait for it, for up to %g s"
        _logger.warning(what, self.address, _text(exc).rstrip(".?"), self._patience_s)

    def _is_back(self) -> None:
        with self._lock:
            away_s, self._away_since = self.away_s, 0.0
        if away_s:
            _logger.warning("%s answers again, after %.0f s", self.address, away_s)

    def _close_idle(self) -> None:
        with self._lock:
            _close_all(self._idle, os.getpid())

    # -- what a server must be

    def _check(self, connection: _Connection) -> None:
        """Refuse a server that loses what it has acknowledged; make or migrate the schema."""
        row = connection.execute(
            "select current_setting('fsync'), current_setting('synchronous_commit'), "
            "pg_is_in_recovery(), to_regclass(%s) is not null",
            (f"{self.schema}.version",),
        ).fetchone()
        assert row is not None
        fsync, synchronous, is_standby, exists = row
        if is_standby:
            # A standby that is promoted meanwhile is found by the next attempt.
            raise psycopg.OperationalError("it is a standby, which takes no writes")
        if fsync == "off" or synchronous == "off":
            setting = "fsync" if fsync == "off" else "synchronous_commit"
            raise LogError(
                f"{self.address} has {setting}=off: it would acknowledge records that a crash "
                f"loses. Nothing was written. Set {setting}=on for this database, user and server."
            )
        version = 0
        if exists:
            found = connection.execute(f"select version from {self.schema}.version").fetchone()
            version = found[0] if found else 0
        if version > VERSION:
            raise LogError(
                f"{self.address} has schema version {version}; this library knows {VERSION}. "
                "Nothing was written. Use a newer library."
            )
        if version < VERSION:
            self._migrate(connection)

    def _migrate(self, connection: _Connection) -> None:
        with connection.transaction():
            # Of this transaction: a pooler keeps a transaction on one server process.
            connection.execute("select pg_advisory_xact_lock(hashtext(%s))", (self.schema,))
            # Not by to_regclass, which may answer from a cache that is older than the lock.
            if connection.execute(
                "select 1 from pg_class c join pg_namespace n on n.oid = c.relnamespace "
                "where n.nspname = %s and c.relname = 'version'",
                (self.schema,),
            ).fetchone():
                return  # by another process, just before
            connection.execute(f"create schema if not exists {self.schema}")
            connection.execute(CREATE.replace("{s}", self.schema).encode())


Connections._share_none()
in_forked_child(Connections, lambda shared: shared._share_none())


def _close_all(idle: list[_Connection], pid: int) -> None:
    while idle and pid == os.getpid():
        with suppress(psycopg.Error):
            idle.pop().close()


def is_final(exc: BaseException) -> bool:
    """Whether another attempt to connect would fail in the same way."""
    cause = exc.__cause__
    state = getattr(cause, "sqlstate", None) or ""
    return state.startswith(_FINAL) or any(hint in str(exc) for hint in _HINTS)


def _text(exc: BaseException) -> str:
    """The error in a line. The driver's messages name hosts and users, and no passwords."""
    return " ".join(str(exc).split()) or type(exc).__name__
