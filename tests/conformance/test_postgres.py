"""What is PostgreSQL's own: statements, servers that die or must be refused, poolers, commands."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from eventlog import LogError, LogLockedError
from eventlog.errors import LostRecordsError, UnreachableError
from recovery import CheckpointStore, RecoverableAgent, tool
from recovery.cli.app import run as recovery
from recovery.errors import PermanentError, RecoveryError, WaitingError
from recovery.inspect.states import STATES
from recovery.ops.copy_run import copy_run, move_run
from recovery.stores import FileStore, Submission
from recovery.stores.postgres import PostgresStore
from recovery.stores.postgres.binary import Prepared
from recovery.stores.postgres.connections import Connections, split_url
from recovery.testing import crash_everywhere
from tests.support.lives import Died
from tests.support.postgres import Server

RUN = "run_001"
MESSAGE = {"uid": "u", "name": "go", "value": 1, "who": ""}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    one = Server()
    yield one
    one.remove()


@pytest.fixture
def url(server: Server) -> str:
    return server.url()


@tool
async def pay(step: int) -> int:
    PAID[step] += 1
    await asyncio.sleep(0.02)
    return step * 10


PAID: Counter[int] = Counter()


async def shop(run: Any) -> int:
    async for step in run.steps():
        run.messages.append(await run.call(pay, step))
        if step == 12:
            return sum(run.messages)
    raise AssertionError


# -- statements


class Counting(Connections):
    """Counts the statements, and runs each on a connection of its own, as a pooler may do."""

    def __init__(self, url: str, patience_s: float) -> None:
        super().__init__(url, patience_s)
        self.count = self.watching = 0

    def run(self, act: Callable[[Any], Any]) -> Any:
        if threading.current_thread().name == "eventlog-watch":
            self.watching += 1
        else:
            self.count += 1
        try:
            return super().run(act)
        finally:
            self._close_idle()


def counted(url: str) -> tuple[PostgresStore, Counting]:
    store = PostgresStore(url)
    connections = Counting(url, 60)
    store.log_server.connections = connections
    return store, connections


def test_statements_are_few(url: str) -> None:
    store, connections = counted(url)
    log = store.claim(RUN)
    connections.count = 0
    for i in range(5):
        log.append("value", i)
        log.commit()
    assert connections.count == 5, "one for each commit"
    log.close()
    connections.count = 0
    log = store.claim(RUN)
    assert store.inbox(RUN) is None and [one.body for one in log.records()] == [0, 1, 2, 3, 4]
    assert connections.count <= 3, "to open a run, with its inbox and its history"
    log.close()
    connections.count = 0
    CheckpointStore(store).run(RUN).status()
    assert connections.count <= 3
    connections.count = 0
    assert len(store.find(states=["", "running"])) == 1 and connections.count == 1


def test_a_pooler_may_change_the_server_process_below_a_connection(url: str) -> None:
    store = PostgresStore(url, lease_s=3600)  # else its renewal may come between, and connect anew
    log = store.claim(RUN)
    connections = store.log_server.connections

    def idle() -> Any:
        while not connections._idle:  # the link's thread gives it back after its answer
            time.sleep(0.01)
        return connections._idle[-1]

    def prepared_after(act: Callable[[Any], object], value: int) -> int:
        act(idle())
        log.append("value", value)
        log.commit()
        with idle().cursor() as cursor:
            return len(cursor.execute("select from pg_prepared_statements").fetchall())

    assert prepared_after(lambda _: None, 0) == prepared_after(lambda _: None, 1) == 1
    # One where another client has prepared the statement; then one where nobody has.
    assert prepared_after(lambda one: setattr(one, "prepared", Prepared()), 2) == 1
    assert prepared_after(lambda one: one.execute("deallocate all"), 3) == 0
    assert prepared_after(lambda _: None, 4) == 0, "sent whole from then on"
    assert [one.body for one in log.records()] == [0, 1, 2, 3, 4]
    assert log.durable_lsn == 5
    log.close()


def test_one_query_chooses_the_runs_of_a_state(url: str) -> None:
    store, connections = counted(url)
    made = RecoverableAgent(lambda run: run.task, CheckpointStore(store))
    for i in range(12):
        made.run_with_recovery_sync(i, f"run_{i}")
    store.claim("bare").close()
    store.submit(Submission("new", 1))
    connections.count = 0
    assert [one.run_id for one in CheckpointStore(store).runs(state="submitted")] == ["new"]
    assert connections.count <= 4, "one for what listings have kept; one reads; one keeps"
    connections.count = 0
    assert list(CheckpointStore(store).runs(state=["cancelled", "failed"])) == []
    assert connections.count == 1
    assert len(list(CheckpointStore(store).runs(state=["finished", "submitted"]))) == 13
    assert [one.run_id for one in CheckpointStore(store).runs(due=True)] == ["new"]
    found = CheckpointStore(store).runs(state="empty")
    assert [one.run_id for one in found] == ["bare"], "only its log says that"


def test_find_goes_through_the_runs_of_several_states_in_order(url: str) -> None:
    store = PostgresStore(url)
    for i in range(6):
        with store.claim(f"run_{i}") as log:
            log.append("run_finished" if i % 2 else "run_cancelled", {"result": None})
    held = store.claim("run_9")
    given: dict[str, Any] = {"states": ["cancelled", "finished", "running"], "limit": 3}
    found = store.find(**given)
    assert [one.run_id for one in found] == ["run_0", "run_1", "run_2"]
    found = store.find(after=found[-1].run_id, **given)
    assert [one.run_id for one in found] == ["run_3", "run_4", "run_5"]
    assert [one.run_id for one in store.find(after="run_5", **given)] == ["run_9"]
    held.append("run_parked", {"wake_at": 1.0, "why": "a while", "calls": []})
    held.commit()
    states = {state: [one.run_id for one in store.find(states=[state])] for state in STATES}
    assert states["running"] == ["run_9"] and not states["waiting"], "a process has it"
    held.close()
    assert [one.run_id for one in store.find(states=["waiting", "running"])] == ["run_9"]


def test_a_listing_reads_a_run_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And says of each run what its log says now."""
    backend, connections = counted(url)
    store = CheckpointStore(backend)

    @tool
    def fails(step: int) -> None:
        raise PermanentError("no")

    def agent(run: Any) -> Any:
        match run.task:
            case "waits":
                return run.wait_for("go", timeout=3600)
            case "fails":
                run.call(fails, 1)
            case "dies":
                raise Died
        return run.task

    made = RecoverableAgent(agent, store, park_after_s=0, max_recoveries=0)
    for task in ("ends", "waits", "fails", "dies"):
        with suppress(Exception, Died):
            made.run_with_recovery_sync(task, task)
    backend.submit(Submission("new", 1))
    base, _, schema = url.partition("?schema=")

    def lease(of: str, until: str) -> None:
        """As it ends, and as a process that was stopped renews it later."""
        with psycopg.connect(base) as connection:
            set_it = f"update {schema}.logs set lease_until = now() {until} where name = '{of}'"
            connection.execute(set_it.encode())

    def check(statements: int) -> None:
        for _ in range(2):
            connections.count = 0
            found = list(store.runs())
        assert connections.count == 2 + statements, "the ids, what was kept, and what may change"
        logs = [store.run(one).status() for one in backend.run_ids()]
        assert found == logs and [one.due for one in found] == [one.due for one in logs]

    check(0)
    for value in range(2):
        store.run("waits").signal("go", value)
        check(0)
    log = backend.claim("dies")
    check(1)
    monkeypatch.setattr("recovery.stores.remote_store.is_dead", lambda owner: False)
    lease("dies", "- interval '1 second'")
    check(0)
    lease("dies", "+ interval '1 hour'")
    check(1)
    log.append("run_resumed", {"recovery": 1, "from_step": 0})
    log.close()
    check(0)
    store.run("ends").remove()
    check(0)
    monkeypatch.setattr("recovery.inspect.listing.release", lambda: "another")
    connections.count = 0
    assert len(list(store.runs())) == 4 and connections.count == 4, "reads and keeps all again"
    now_ns = time.time_ns()
    monkeypatch.setattr(backend.clock, "time_ns", lambda: now_ns + 3600 * 10**9)
    assert {round(one.clock_ahead_s / 3600) for one in store.runs()} == {1}, "of those kept, too"


def test_a_waiting_run_asks_no_server(url: str) -> None:
    async def waits(run: Any) -> Any:
        return await run.wait_for("go")

    async def main() -> None:
        store, connections = counted(url)
        agent = RecoverableAgent(waits, CheckpointStore(store), park_after_s=None)
        task = asyncio.create_task(agent.run_with_recovery("task", RUN))
        await asyncio.sleep(3)
        assert store.find(states=["running"])
        connections.count = connections.watching = 0
        await asyncio.sleep(3)
        assert connections.count + connections.watching == 0
        await asyncio.to_thread(CheckpointStore(PostgresStore(url)).run(RUN).signal, "go", 7)
        assert (await task)["result"] == 7

    asyncio.run(main())


def test_the_clock_of_the_server_decides_leases_and_deadlines(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def waits(run: Any) -> Any:
        return run.wait_for("go", timeout=3600)

    def agent() -> RecoverableAgent[Any]:
        return RecoverableAgent(waits, CheckpointStore(PostgresStore(url)), park_after_s=0)

    with pytest.raises(WaitingError):
        agent().run_with_recovery_sync("task", RUN)
    held, time_ns = PostgresStore(url).claim("held"), time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: time_ns() + 7200 * 10**9)  # of another machine
    monkeypatch.setattr(time, "time", lambda: time.time_ns() / 1e9)
    store = PostgresStore(url)
    assert not store.find(due=True)
    with pytest.raises(LogLockedError):
        store.claim("held")
    with pytest.raises(WaitingError):
        agent().resume_sync(RUN)
    CheckpointStore(store).run(RUN).signal("go", 7)
    assert agent().resume_sync(RUN)["result"] == 7
    held.close()


def test_the_event_loop_makes_no_statement(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loop_thread = threading.get_ident()
    made: list[str] = []
    run = Connections.run

    def watched(self: Connections, act: Any) -> Any:
        made.append("on the loop" if threading.get_ident() == loop_thread else "in a thread")
        return run(self, act)

    async def main() -> None:
        agent = RecoverableAgent(shop, CheckpointStore(PostgresStore(url)), checkpoint_every_n=3)
        runs = (agent.run_with_recovery("task", f"run_{i}") for i in range(5))
        assert {one["result"] for one in await asyncio.gather(*runs)} == {780}
        await agent.run_with_recovery("task", "alone")

    monkeypatch.setattr(Connections, "run", watched)
    asyncio.run(main())
    assert set(made) == {"in a thread"}


# -- the server dies


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_restart_under_live_runs_is_not_noticed_by_them(how: str) -> None:
    server = Server()
    PAID.clear()
    try:
        agent = RecoverableAgent(shop, CheckpointStore(PostgresStore(server.url())))

        def restart() -> None:
            time.sleep(0.3)
            getattr(server, how)()
            time.sleep(0.5)
            server.start()

        async def main() -> list[Any]:
            runs = (agent.run_with_recovery("task", f"run_{i}") for i in range(6))
            return await asyncio.gather(asyncio.to_thread(restart), *runs)

        results = asyncio.run(main())[1:]
        assert [one["result"] for one in results] == [780] * 6
        assert all(one["recovery_count"] == 0 and not one["report"].in_doubt for one in results)
        assert dict.fromkeys(range(1, 13), 6) == PAID
    finally:
        server.remove()


def test_a_server_that_stays_away_ends_runs_with_an_error_of_ours() -> None:
    server = Server()
    try:
        url = server.url()
        store = PostgresStore(url, patience_s=0.5)

        killed: list[int] = []

        @tool(after_crash="retry")
        async def look(step: int) -> int:
            if step == 4 and not killed:
                killed.append(step)
                await asyncio.to_thread(server.kill)
            return step * 10

        async def agent(run: Any) -> int:
            return sum([await run.call(look, step) for step in range(1, 13)])

        made = RecoverableAgent(agent, CheckpointStore(store), max_recoveries=0)
        with pytest.raises(UnreachableError, match="resume the run"):
            asyncio.run(made.run_with_recovery("task", RUN))
        server.start()
        again = RecoverableAgent(agent, CheckpointStore(PostgresStore(url)))
        result = asyncio.run(again.run_with_recovery("task", RUN, takeover=True))
        assert result["result"] == 780
    finally:
        server.remove()


KILLED = """
import asyncio, sys
from recovery import CheckpointStore, RecoverableAgent, tool

@tool(after_crash="retry")
async def work(step):
    print(step, flush=True)
    await asyncio.sleep(0.03)
    return step

async def agent(run):
    async for step in run.steps():
        await run.call(work, step)
        if step == 20:
            return step

made = RecoverableAgent(agent, CheckpointStore(sys.argv[1]), checkpoint_every_n=5)
print(asyncio.run(made.run_with_recovery("task", "run_001"))["result"], "is the result")
"""


def test_a_killed_worker_is_resumed_at_once_on_its_machine(url: str) -> None:
    """Its lease lasts for half a minute, but a process of this machine that is gone is dead."""
    words = [sys.executable, "-c", KILLED, url]
    last = 0
    for kills in range(4):
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for line in process.stdout:
            if "result" in line:
                assert line.startswith("20 ") and kills == 3
                break
            last = int(line)
            if kills < 3 and last >= 5 * (kills + 1):
                process.kill()
                break
        process.wait()
        process.stdout.close()
        state = CheckpointStore(PostgresStore(url)).run(RUN).status().state
        assert state == ("finished" if kills == 3 else "interrupted")
    assert last == 20
    entry = PostgresStore(url).find()[0]
    assert entry.state == "finished" and entry.owner is not None and not entry.owner.alive


def test_records_that_the_server_has_lost_are_an_error(url: str) -> None:
    """As after the promotion of a standby that was behind."""
    log = PostgresStore(url).claim(RUN)
    for i in range(3):
        log.append("value", i)
        log.commit()
    base, _, schema = url.partition("?schema=")
    with psycopg.connect(base) as connection:
        connection.execute(f"update {schema}.logs set next_lsn = 2".encode())
    log.append("value", 3)
    with pytest.raises(LostRecordsError, match="2 records are lost"):
        log.commit()
    log.close()


# -- what is refused


@pytest.mark.parametrize("setting", ["fsync", "synchronous_commit"])
def test_a_server_that_loses_what_it_acknowledges_is_refused(setting: str) -> None:
    server = Server(None, **{setting: "off"})
    try:
        with pytest.raises(LogError, match=f"{setting}=off"):
            PostgresStore(server.url()).run_ids()
    finally:
        server.remove()


def test_a_role_without_durability_is_refused(server: Server, url: str) -> None:
    with psycopg.connect(server.root, autocommit=True) as connection:
        connection.execute("create role careless superuser login")
        connection.execute("alter role careless set synchronous_commit = off")
    with pytest.raises(LogError, match="synchronous_commit=off"):
        PostgresStore(url.replace("postgres@", "careless@")).run_ids()


def test_a_commit_is_durable_whatever_its_session_says(url: str) -> None:
    store = PostgresStore(url)
    base, _, schema = url.partition("?schema=")
    with store.claim(RUN) as log, psycopg.connect(base, autocommit=True) as connection:
        for statement in (
            "create function {s}.look() returns trigger language plpgsql as $$ begin "
            "if current_setting('synchronous_commit') = 'off' then raise 'not durable'; end if; "
            "return null; end $$",
            "create constraint trigger look after insert on {s}.pieces deferrable initially "
            "deferred for each row execute function {s}.look()",
        ):
            connection.execute(statement.replace("{s}", schema).encode())
        log.append("value", 1)
        log.commit()
        store.log_server.connections.run(lambda one: one.execute("set synchronous_commit = off"))
        log.append("value", 2)
        log.commit()
    reader = store.read(RUN)
    assert reader is not None and [one.body for one in reader.records()] == [1, 2]


def test_a_newer_schema_is_refused(url: str) -> None:
    PostgresStore(url).claim(RUN).close()
    base, _, schema = url.partition("?schema=")
    with psycopg.connect(base) as connection:
        connection.execute(f"update {schema}.version set version = 99".encode())
    store = PostgresStore(url, patience_s=61)  # connections of its own
    with pytest.raises(LogError, match="schema version 99"):
        store.run_ids()


def test_many_processes_make_the_schema_at_once(url: str) -> None:
    words = [
        sys.executable,
        "-c",
        "import sys; from recovery.stores.postgres import PostgresStore;"
        "PostgresStore(sys.argv[1]).run_ids()",
        url,
    ]
    made = [subprocess.Popen(words) for _ in range(4)]
    assert [one.wait() for one in made] == [0] * 4


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u:secret@h:1/d", "postgresql://u@h:1/d"),
        ("postgres://u:secret@h/d?schema=own&password=secret", "postgresql://u@h/d?schema=own"),
        ("postgresql:///d?host=/tmp&sslpassword=secret", "postgresql:///d?host=/tmp"),
    ],
)
def test_passwords_are_not_shown(url: str, shown: str, capsys: Any) -> None:
    assert split_url(url)[1] == shown
    assert recovery(["runs", "--store", url.replace("h:1", "127.0.0.1:1")]) != 0
    assert "secret" not in "".join(capsys.readouterr())


# -- copies, and commands


def test_a_run_comes_back_from_the_server_byte_for_byte(url: str, tmp_path: Path) -> None:
    files, store = FileStore(tmp_path / "a"), PostgresStore(url)
    asyncio.run(
        RecoverableAgent(shop, CheckpointStore(files), checkpoint_every_n=4).run_with_recovery(
            "task", RUN
        )
    )
    files.post(RUN, "signal", {"uid": "u", "name": "go", "value": 1, "who": ""})
    copy_run(files, store, RUN)
    with pytest.raises(RecoveryError, match="already"):
        copy_run(files, store, RUN)
    assert [one.state for one in store.find()] == ["finished"] and not store.find(due=True)
    assert store.post(RUN, "signal", {"uid": "u", "name": "go", "value": 2, "who": ""}) == 2
    copy_run(store, FileStore(tmp_path / "b"), RUN)
    first, second = tmp_path / "a" / RUN, tmp_path / "b" / RUN
    for path in first.glob("*.seg"):
        assert (second / path.name).read_bytes() == path.read_bytes()
    result = asyncio.run(
        RecoverableAgent(shop, CheckpointStore(tmp_path / "b")).run_with_recovery("task", RUN)
    )
    assert result["result"] == 780


def test_a_move_that_was_killed_before_it_removed_the_original_is_repeated(
    url: str, tmp_path: Path
) -> None:
    files, store = FileStore(tmp_path), PostgresStore(url)
    asyncio.run(RecoverableAgent(shop, CheckpointStore(files)).run_with_recovery("task", RUN))
    for source, target in ((files, store), (store, files)):
        copy_run(source, target, RUN)
        assert move_run(source, target, RUN) > 0
        assert (source.run_ids(), target.run_ids()) == ([], [RUN])


def test_a_move_is_repeated_after_the_copy_went_on(url: str, tmp_path: Path) -> None:
    files, store = FileStore(tmp_path), PostgresStore(url)
    asyncio.run(RecoverableAgent(shop, CheckpointStore(files)).run_with_recovery("task", RUN))
    for source, target in ((files, store), (store, files)):
        copy_run(source, target, RUN)
        with target.claim(RUN) as log:
            log.append("note", {})
        assert target.post(RUN, "signal", MESSAGE)
        with target.claim(RUN) if source is files else nullcontext():
            move_run(source, target, RUN)
        assert (source.run_ids(), target.run_ids()) == ([], [RUN])
    with files.claim(RUN) as log:
        assert [one.kind for one in log.records()][-2:] == ["note"] * 2
    inbox = files.inbox(RUN)
    assert inbox is not None
    with inbox:
        assert [one.lsn for one in inbox.records()] == [1, 2]


def test_a_message_that_comes_while_a_run_is_moved_is_in_the_copy(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, store = FileStore(tmp_path), PostgresStore(url)
    asyncio.run(RecoverableAgent(shop, CheckpointStore(files)).run_with_recovery("task", RUN))
    for source, target in ((files, store), (store, files)):
        with monkeypatch.context() as patch:
            remove = source.remove

            def late(*given: Any, source: Any = source, remove: Any = remove) -> None:
                source.post(RUN, "signal", MESSAGE)
                remove(*given)

            patch.setattr(source, "remove", late)
            with pytest.raises(RecoveryError, match="sent a message"):
                move_run(source, target, RUN)
        move_run(source, target, RUN)
        assert (source.run_ids(), target.run_ids()) == ([], [RUN])
    inbox = files.inbox(RUN)
    assert inbox is not None
    with inbox:
        assert [one.lsn for one in inbox.records()] == [1, 2]


def test_no_message_is_taken_for_a_run_that_is_being_removed(url: str) -> None:
    store = PostgresStore(url)
    store.claim(RUN).close()
    with (
        closing(store.log_server.connections.open()) as connection,
        ThreadPoolExecutor(1) as thread,
    ):
        with connection.transaction():
            connection.execute(store.log_server.sql("select {s}.remove(%s, null)"), (RUN,))
            sent = thread.submit(PostgresStore(url).post, RUN, "signal", MESSAGE)
            time.sleep(0.5)
        with pytest.raises(RecoveryError, match="was removed meanwhile"):
            sent.result(30)
    assert store.log_server.rows("select name from {s}.logs") == []


def test_a_message_keeps_the_run_or_is_refused(url: str) -> None:
    one, other = PostgresStore(url), PostgresStore(url)
    outcomes = Counter[tuple[bool, bool]]()
    with ThreadPoolExecutor(1) as thread:
        for n in range(60):
            run_id = f"r{n}"
            one.claim(run_id).close()
            known = n % 2  # whether there is an inbox
            if known:
                one.post(run_id, "signal", MESSAGE)
            sent = thread.submit(other.post, run_id, "signal", MESSAGE)
            time.sleep(n % 6 / 1000)
            with suppress(LogError):
                one.remove(run_id, 0, known)
            is_sent = sent.exception(30) is None
            outcomes[is_sent, run_id in one.run_ids()] += 1
    assert set(outcomes) <= {(True, True), (False, False)}, outcomes
    runs = one.log_server.rows("select name from {s}.logs where name not like '%%/inbox'")
    assert len(one.log_server.rows("select name from {s}.logs")) == 2 * len(runs)


@pytest.mark.parametrize("is_known", [True, False])
def test_a_store_is_not_moved_into_itself(
    url: str, is_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CheckpointStore(url)
    asyncio.run(RecoverableAgent(shop, store).run_with_recovery("task", RUN))
    if not is_known:  # that an owner lives
        monkeypatch.setattr("recovery.stores.remote_store.is_dead", lambda owner: True)
    with pytest.raises(RecoveryError, match="already"):
        move_run(store.backend, PostgresStore(url), RUN)
    with store.backend.claim(RUN), pytest.raises(LogLockedError):
        monkeypatch.undo()
        move_run(PostgresStore(url), store.backend, RUN)
    assert store.backend.run_ids() == [RUN]


def test_a_run_goes_on_in_the_other_store(url: str, tmp_path: Path) -> None:
    dies = [True]

    @tool
    def stop(step: int) -> int:
        return step

    def agent(run: Any) -> int:
        for step in run.steps():
            run.messages.append(run.call(stop, step))
            if step == 5 and dies:
                dies.clear()
                raise ValueError
            if step == 9:
                return len(run.messages)
        raise AssertionError

    files = FileStore(tmp_path)
    with pytest.raises(ValueError):
        RecoverableAgent(agent, CheckpointStore(files), max_recoveries=0).run_with_recovery_sync(
            "t", RUN
        )
    store = PostgresStore(url)
    copy_run(files, store, RUN)
    assert [one.run_id for one in store.find(due=True)] == [RUN]
    result = RecoverableAgent(agent, CheckpointStore(url)).run_with_recovery_sync("t", RUN)
    assert (result["result"], result["recovery_count"]) == (9, 1)


def test_commands_take_urls(url: str, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from logdump.app import run as logdump

    asyncio.run(RecoverableAgent(shop, CheckpointStore(url)).run_with_recovery("task", RUN))
    base, _, query = url.partition("?")
    log = f"{base}/{RUN}?{query}"
    for command in ("status", "dump", "verify", "stats"):
        assert logdump([command, log]) == 0, command
    assert logdump(["repair", log]) == 64 and "recovery copy" in capsys.readouterr().err
    assert logdump(["verify", url]) == 0 and logdump(["dump", f"{base}/nope?{query}"]) == 66
    monkeypatch.setenv("EVENTLOG_HOME", url)
    assert logdump(["dump", RUN]) == 0
    for words in (["runs"], ["show", RUN], ["status"], ["doctor"], ["rm", RUN, "--yes"]):
        assert recovery(words) == 0, words
    assert recovery(["show", RUN]) == 66
    assert "Traceback" not in "".join(capsys.readouterr())


def test_crash_everywhere_loses_what_was_not_committed() -> None:
    """Where a store is on a server, which need not be there."""

    @tool(after_crash="retry")
    def look(step: int) -> int:
        return step

    def agent(run: Any) -> Any:
        return [run.call(look, step) for step in (1, 2)]

    def possible(store: Any) -> int:
        report = crash_everywhere(lambda: RecoverableAgent(agent, store), points=20)
        assert report.ok, str(report)
        return report.possible

    assert possible(CheckpointStore("postgresql://db.invalid/agents")) > possible(None)


# -- notifications


def test_no_notification_is_sent_for_an_append(url: str) -> None:
    store = PostgresStore(url)
    log = store.claim(RUN)
    channel = url.partition("?schema=")[2]
    with psycopg.connect(url.partition("?")[0], autocommit=True) as connection:
        connection.execute(f'listen "{channel}"'.encode())
        for i in range(20):
            log.append("value", i)
            log.commit()
        log.append("run_finished", {"result": None})
        log.commit()
        store.submit(Submission("x", 1))
        notes = list(connection.notifies(timeout=2))
    assert 1 <= len(notes) <= 4  # of the end, the submission and its release, and the watch itself
    log.close()


def test_without_notifications_messages_are_found_by_looking(
    url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psycopg.Connection, "notifies", _silent)
    monkeypatch.setattr("recovery.stores.postgres.watch.ECHO_S", 0.2)
    store = PostgresStore(url, poll_s=0.3)

    def waits(run: Any) -> Any:
        return run.wait_for("go")

    agent = RecoverableAgent(waits, CheckpointStore(store), park_after_s=None)
    with caplog.at_level(logging.WARNING, "recovery"):
        thread = threading.Thread(target=agent.run_with_recovery_sync, args=("task", RUN))
        thread.start()
        other = CheckpointStore(PostgresStore(url))
        while not store.find(states=["running"]) or not other.run(RUN).status().last_lsn:
            time.sleep(0.05)  # a claimed run has no record yet: nothing can be sent to it
        other.run(RUN).signal("go", 1)
        thread.join(60)
    assert not thread.is_alive() and "no notifications arrive" in caplog.text


def _silent(self: Any, *, timeout: float | None = None, **_: Any) -> Iterator[Any]:
    time.sleep(timeout or 0)
    yield from ()
