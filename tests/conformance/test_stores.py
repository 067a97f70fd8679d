"""Each store keeps what RunStore promises: in memory, in files, in PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from recovery.stores import FileStore, MemoryStore
from recovery.stores.postgres import PostgresStore
from recovery.testing.store_conformance import ServerConformance, StoreConformance
from tests.support.postgres import Server


class TestMemoryStore(StoreConformance):
    @pytest.fixture
    def open_store(self) -> Callable[[], MemoryStore]:
        store = MemoryStore()
        return lambda: store


class TestFileStore(StoreConformance):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> Callable[[], FileStore]:
        return lambda: FileStore(tmp_path / "runs")

    @pytest.fixture
    def damage(self, tmp_path: Path) -> Callable[[str], None]:
        def damage(run_id: str) -> None:
            segment = min((tmp_path / "runs" / run_id).glob("*.seg"))
            content = bytearray(segment.read_bytes())
            content[1000] ^= 1
            segment.write_bytes(content)

        return damage


class TestPostgresStore(ServerConformance):
    @pytest.fixture
    def url(self, postgres: Server) -> str:
        return postgres.url()

    @pytest.fixture
    def open_store(self, url: str) -> Callable[[], PostgresStore]:
        return lambda: PostgresStore(url)

    @pytest.fixture
    def open_faulty(self, url: str) -> Callable[..., PostgresStore]:
        def opened(
            wrap: Callable[[Any], Any] = lambda log_server: log_server, **options: Any
        ) -> Any:
            store = PostgresStore(url, **options)
            store.use(wrap(store.log_server))
            return store

        return opened

    @pytest.fixture
    def damage(self, url: str) -> Callable[[str], None]:
        def damage(run_id: str) -> None:
            url_of_server, _, schema = url.partition("?schema=")
            with psycopg.connect(url_of_server, options=f"-csearch_path={schema}") as connection:
                connection.execute(
                    "update pieces p set data = set_byte(data, 70, get_byte(data, 70) # 1) "
                    "from logs l where l.id = p.log and l.name = %s and p.at = "
                    "(select at from pieces q where q.log = l.id order by at offset 6 limit 1)",
                    (run_id,),
                )

        return damage
