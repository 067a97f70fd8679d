"""The connection to PostgreSQL ends at each request of a run's life; and the server is killed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from recovery.stores.postgres import PostgresStore
from recovery.testing.store_conformance import FaultConformance
from tests.support.postgres import Server
from tests.support.tcp_proxy import Proxy


class _OnPostgres(FaultConformance):
    @pytest.fixture
    def open_cut(self, postgres: object) -> Iterator[Callable[[int, str], Any]]:
        server = Server()  # of its own: it is killed
        url, proxies = server.url(), list[Proxy]()

        def restart() -> None:
            server.kill()
            server.start()

        def opened(at: int, fault: str) -> Any:
            for one in proxies:
                one.close()
            proxies[:] = [proxy := Proxy("127.0.0.1", server.port)]  # so no connection is shared
            store = PostgresStore(url.replace(f":{server.port}/", f":{proxy.port}/"))
            is_kill = "killed" in fault
            if is_kill:
                store.run_ids()  # a server that was never reached gets little time
            proxy.fault_at(at, after="after" in fault, act=restart if is_kill else None)
            return store, lambda: not proxy.is_due

        yield opened
        proxies[0].close()
        server.remove()


class TestSomeFaults(_OnPostgres):
    every = 9


class TestSomeKills(_OnPostgres):
    faults = ("killed before", "killed after")
    every = 30


@pytest.mark.crash
class TestEachFault(_OnPostgres):
    faults = ("before", "after", "killed before", "killed after")
