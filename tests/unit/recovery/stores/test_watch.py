"""What a process hears of the messages to its runs on PostgreSQL: here without a server."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest

from eventlog import LogLockedError
from eventlog.remote.log_server import Head, Loaded, Owner
from recovery.stores.postgres import PostgresStore
from recovery.stores.postgres.watch import Watch

RUN = "run_001"


def owner(token: str = "ours") -> Owner:
    return Owner(1, "here", "", token)


def inbox(next_lsn: int) -> dict[str, Loaded]:
    name, log_id = f"{RUN}/inbox", bytes(16)
    ends = (next_lsn, 1, 0, 1, 1, 0, 0, 0)
    return {name: Loaded(Head(7, name, log_id, 0, owner(""), 0, False, False, (), *ends), [])}


def watch(load: Any, monkeypatch: pytest.MonkeyPatch) -> Watch:
    monkeypatch.setattr(Watch, "_start", lambda self: None)
    made = Watch(Mock(load_many=load, address="postgresql://here"), 60, None)
    made.add(RUN, owner())
    return made


def test_an_older_answer_that_comes_later_takes_nothing_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, go_on = threading.Event(), threading.Event()

    def load(after: Any) -> dict[str, Loaded]:
        if threading.current_thread() is not slow:
            return inbox(3)
        asked.set()
        go_on.wait(30)
        return inbox(2)

    heard = watch(load, monkeypatch)
    slow = threading.Thread(target=heard.look)
    slow.start()
    assert asked.wait(30)
    heard.look()
    go_on.set()
    slow.join()
    found = heard.get(RUN)
    assert found is not None and found.directory is not None
    assert found.directory.head.next_lsn == 3


def test_who_claims_a_run_again_hears_of_it_when_the_former_claim_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard = watch(lambda after: inbox(2), monkeypatch)
    heard.add(RUN, owner("again"))
    heard.remove(RUN, owner())
    heard.look()
    found = heard.get(RUN)
    assert found is not None and found.directory is not None
    heard.remove(RUN, owner("again"))
    assert heard.get(RUN) is None


def test_a_thread_that_could_not_be_started_is_started_the_next_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, started = Watch(Mock(), 60, None), Mock()
    threads = Mock(side_effect=[Mock(start=Mock(side_effect=RuntimeError)), started])
    monkeypatch.setattr("recovery.stores.postgres.watch.threading", Mock(Thread=threads))
    with pytest.raises(RuntimeError):
        made.add(RUN, owner())
    assert made.get(RUN) is None
    made.add(RUN, owner())
    started.start.assert_called_once()


def test_a_change_that_is_heard_of_when_the_time_is_over_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = PostgresStore("postgresql://nowhere.invalid/none")
    heard = store._watch

    def wait(timeout_s: float, after: int) -> bool:
        heard.changes += 1
        return False

    monkeypatch.setattr(store.log_server, "rows", lambda statement: [(None,)])
    monkeypatch.setattr(heard, "wait", wait)
    assert store.wait(0.01)
    monkeypatch.setattr(heard, "wait", lambda timeout_s, after: False)
    assert not store.wait(0.01)


def test_a_run_that_could_not_be_opened_is_not_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    store = PostgresStore("postgresql://nowhere.invalid/none")
    monkeypatch.setattr(Watch, "_start", lambda self: None)
    (known,) = inbox(1).values()
    monkeypatch.setattr(store, "_claimed", lambda run_id, takeover: replace(known.head, name=RUN))
    monkeypatch.setattr(store, "_release", lambda head: None)
    monkeypatch.setattr(store.log_server, "load_many", lambda after: {})
    with pytest.raises(LogLockedError):
        store.claim(RUN)
    assert store._watch.get(RUN) is None
