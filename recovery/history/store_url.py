"""Opens stores by URL."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from eventlog import ReadableLog
from eventlog.encryption import Encryption
from eventlog.remote.log_url import url_of
from recovery.stores.file import FileStore

if TYPE_CHECKING:
    from eventlog.write.log import Durability
    from recovery.stores.protocol import RunStore

POSTGRES = ("postgresql", "postgres")


def is_url(where: str) -> bool:
    """Whether it is a URL, and no path."""
    return "://" in where


def split_run(url: str) -> tuple[str, str]:
    """The URL of the store, and what it names there: a run, ``RUN/inbox``, or "".

    In ``postgresql://HOST/DATABASE/RUN`` the store is ``postgresql://HOST/DATABASE``.
    """
    parts = urlsplit(url)
    database, _, name = parts.path.strip("/").partition("/")
    query = parts.query and f"?{parts.query}"
    return f"{parts.scheme}://{parts.netloc}/{database}{query}", name


def without_password(url: str) -> str:
    """The URL, to be shown."""
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    query = [one for one in parts.query.split("&") if not one.startswith(("password=", "sslpass"))]
    rest = parts.path + "?" * bool(query) + "&".join(query)
    return f"{parts.scheme}://{user.partition(':')[0]}{at}{host}{rest}"


def log_at(url: str, name: str, encryption: Encryption | None) -> ReadableLog:
    """A reader of a log in the store at a URL: that of run ``name``, or of ``RUN/inbox``.

    FileNotFoundError if there is none.
    """
    store = store_at(url, encryption=encryption)
    if not name:
        raise ValueError(f"{store.address} is a store: add the run, as in {store.address}/RUN")
    run_id, _, inbox = name.partition("/")
    reader = store.inbox(run_id) if inbox else store.read(run_id)
    if reader is None:
        raise FileNotFoundError(
            errno.ENOENT, os.strerror(errno.ENOENT), url_of(store.address, name)
        )
    return reader


def store_at(
    url: str, durability: Durability | None = None, encryption: Encryption | None = None
) -> RunStore:
    """The store at a URL: ``postgresql://...``, ``file:///PATH``. ValueError for any other."""
    scheme = url.partition("://")[0]
    if scheme == "file":
        parts = urlsplit(url)
        if parts.netloc not in ("", "localhost") or not parts.path:
            raise ValueError(f"{url}: use file:///PATH (with three slashes)")
        return FileStore(unquote(parts.path), durability or "power", encryption)
    if scheme not in POSTGRES:
        raise ValueError(
            f"stores of kind {scheme}:// are not known; use a path, file:///PATH or postgresql://"
        )
    if durability not in (None, "power"):
        raise ValueError(f'a PostgreSQL store has durability="power", not {durability!r}')
    try:
        from recovery.stores.postgres import PostgresStore  # noqa: PLC0415 - an extra
    except ImportError as exc:
        raise ImportError(
            f"{scheme}:// needs psycopg: pip install 'agent-eventlog[postgres]' ({exc})"
        ) from None
    return PostgresStore(url, encryption=encryption)
