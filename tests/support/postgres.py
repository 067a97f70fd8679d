"""A private PostgreSQL server for tests: Debian's where it is installed, else that of a wheel."""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import psycopg

from tests.support.tcp_proxy import free_port

_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "max_connections": "200",
    "shared_buffers": "32MB",
    "log_min_messages": "fatal",
    "autovacuum": "off",
    "restart_after_crash": "on",
}


def binaries() -> Path | None:
    """Where initdb and postgres are: of the newest version from 15 to 17; None if nowhere."""
    debian = sorted(Path("/usr/lib/postgresql").glob("1[567]/bin/postgres"))
    if debian:
        return debian[-1].parent
    with contextlib.suppress(ImportError):
        import pgserver

        return Path(pgserver.__file__).parent / "pginstall" / "bin"
    return None


def _user() -> str | None:
    """PostgreSQL refuses to run as root: whose name it gets then."""
    if os.geteuid():
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    return None


class Server:
    """One server in a directory of its own. ``url`` gives a new store each time.

    ``primary``: the one that it is a standby of.
    """

    def __init__(self, primary: Server | None = None, **settings: str) -> None:
        found = binaries()
        assert found is not None
        self._bin, self._user = found, _user()
        self.directory = Path(tempfile.mkdtemp(prefix="evpg", dir="/tmp"))
        if self._user:
            shutil.chown(self.directory, self._user)
        self._settings = _SETTINGS | settings
        self._schemas = itertools.count(1)
        self._process: subprocess.Popen[bytes] | None = None
        data = str(self.directory / "data")
        words = ["initdb", "-D", data, "-U", "postgres", "-A", "trust", "-N", "-E", "UTF8"]
        words += ["--locale=C"]
        if primary is not None:
            words = ["pg_basebackup", "-D", data, "-d", primary.root, "-R", "-X", "stream"]
            words += ["--checkpoint=fast"]
        subprocess.run(
            [self._bin / words[0], *words[1:]],
            check=True,
            capture_output=True,
            user=self._user,
            cwd="/tmp",
        )
        self.port = free_port()  # just before it is taken: others look for one, too
        self.start()

    @property
    def root(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        """Start it, or start it again; ready when this returns."""
        until = time.monotonic() + 60
        while True:
            # It ends if processes that were killed still have the memory that they share.
            if self._process is None or self._process.poll() is not None:
                self._launch()
            try:
                psycopg.connect(self.root, connect_timeout=2).close()
                return
            except psycopg.OperationalError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.05)

    def _launch(self) -> None:
        words = [f"-c{key}={value}" for key, value in self._settings.items()]
        with (self.directory / "data.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    self._bin / "postgres",
                    *("-D", str(self.directory / "data"), "-p", str(self.port)),
                    *("-k", str(self.directory), *words),
                ],
                stdout=log,
                stderr=log,
                user=self._user,
                cwd="/tmp",
                start_new_session=True,
            )

    def kill(self) -> None:
        """kill -9 of all its processes, as a crash of the server."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        (self.directory / "data" / "postmaster.pid").unlink(missing_ok=True)

    def stop(self) -> None:
        """An immediate shutdown: sessions are told, and cut."""
        assert self._process is not None
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait()

    def promote(self) -> None:
        """Make a standby a primary."""
        with psycopg.connect(self.root) as connection:
            connection.execute("select pg_promote()")

    def url(self) -> str:
        """The URL of a new, empty store."""
        return f"{self.root}?schema=t{next(self._schemas)}_{os.getpid()}"

    def remove(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)
