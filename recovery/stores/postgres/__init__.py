"""Stores runs in PostgreSQL. Needs the extra: ``pip install 'agent-eventlog[postgres]'``."""

from recovery.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
