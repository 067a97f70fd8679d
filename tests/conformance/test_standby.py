"""A standby is refused until it is promoted; then live runs go on. PgBouncer carries runs."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from eventlog.errors import UnreachableError
from recovery import CheckpointStore, RecoverableAgent, tool
from recovery.stores.postgres import PostgresStore
from tests.support.postgres import Server
from tests.support.tcp_proxy import free_port

PAID: Counter[int] = Counter()


@tool
async def pay(step: int) -> int:
    PAID[step] += 1
    await asyncio.sleep(0.02)
    return step


async def shop(run: Any) -> int:
    async for step in run.steps():
        await run.call(pay, step)
        if step == 10:
            total: int = step + await run.wait_for("tip")
            return total
    raise AssertionError


def executed(store: PostgresStore, meanwhile: Callable[[], object]) -> list[Any]:
    """Six runs, and what happens while they are executed; all are sent something in the end."""
    PAID.clear()
    agent = RecoverableAgent(shop, CheckpointStore(store), checkpoint_every_n=4, park_after_s=None)

    def act() -> None:
        until(lambda: PAID[3])
        meanwhile()
        until(lambda: PAID[10] == 6)
        for i in range(6):
            CheckpointStore(store).run(f"run_{i}").signal("tip", 5)

    async def main() -> list[Any]:
        runs = [agent.run_with_recovery("task", f"run_{i}") for i in range(6)]
        return (await asyncio.gather(asyncio.to_thread(act), *runs))[1:]

    return asyncio.run(main())


def until(holds: Callable[[], object]) -> None:
    """Wait until it holds, for longer than a run waits for its server."""
    end = time.monotonic() + 90
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def check(results: list[Any]) -> None:
    assert [one["result"] for one in results] == [15] * 6
    assert all(one["recovery_count"] == 0 and not one["report"].in_doubt for one in results)
    assert dict.fromkeys(range(1, 11), 6) == PAID


@pytest.fixture
def primary(postgres: object) -> Iterator[Server]:
    one = Server()
    yield one
    one.remove()


@pytest.fixture
def standby(primary: Server) -> Iterator[Server]:
    one = Server(primary)
    yield one
    one.remove()


def test_a_standby_is_refused(standby: Server) -> None:
    with pytest.raises(UnreachableError, match="it is a standby"):
        PostgresStore(standby.url()).run_ids()


@pytest.mark.crash
def test_live_runs_go_on_with_a_promoted_standby(primary: Server, standby: Server) -> None:
    """The primary waits for the standby, as where no failover may lose a record."""
    with psycopg.connect(primary.root, autocommit=True) as connection:
        connection.execute("alter system set synchronous_standby_names = '*'")
        connection.execute("select pg_reload_conf()")
        waits = "select count(*) from pg_stat_replication where sync_state = 'sync'"
        until(lambda: connection.execute(waits).fetchone() == (1,))

    def fail_over() -> None:
        primary.kill()
        standby.promote()

    one, other = f"127.0.0.1:{primary.port}", f"127.0.0.1:{standby.port}"
    url = primary.url().replace(one, f"{one},{other}")
    check(executed(PostgresStore(f"{url}&target_session_attrs=read-write"), fail_over))


@pytest.fixture
def pooler(primary: Server) -> Iterator[int]:
    """The port of a PgBouncer in transaction mode, with two connections to the server."""
    found = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if found is None:
        pytest.skip("PgBouncer is not installed")
    port, place = free_port(), primary.directory / "pooler"
    place.mkdir()
    settings = place / "pgbouncer.ini"
    settings.write_text(
        f"[databases]\npostgres = host=127.0.0.1 port={primary.port} user=postgres\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
        "auth_type = any\npool_mode = transaction\ndefault_pool_size = 2\nlogfile =\n"
        "server_login_retry = 1\n"  # seconds: 15 by default
    )
    words = [found, str(settings)]
    if os.geteuid() == 0:
        words[1:1] = ["-u", _unprivileged(place)]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    yield port
    process.kill()
    process.wait()


def _unprivileged(place: Path) -> str:
    """PgBouncer refuses to run as root: the user that it becomes, who may read ``place``."""
    user = pwd.getpwuid(place.parent.stat().st_uid).pw_name
    shutil.chown(place, user)
    return user


def test_pgbouncer_in_transaction_mode_carries_runs(primary: Server, pooler: int) -> None:
    direct = primary.url()
    pooled = direct.replace(f":{primary.port}/", f":{pooler}/")
    store = PostgresStore(pooled, listen_url=direct.partition("?")[0])

    def restart() -> None:
        primary.kill()
        primary.start()

    check(executed(store, restart))
