"""Opens stores by URL."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from eventlog.encryption import Encryption
from recovery.stores.file import FileStore

if TYPE_CHECKING:
    from eventlog.write.log import Durability
    from recovery.stores.protocol import RunStore

POSTGRES = ("postgresql", "postgres")


def is_url(where: str) -> bool:
    """Whether it is a URL, and no path."""
    return "://" in where


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
