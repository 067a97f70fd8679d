"""A URL names a store, and what is in it; a password in it is not shown."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from recovery import CheckpointStore
from recovery.history.store_url import log_at, split_run, store_at, without_password


@pytest.mark.parametrize(
    ("url", "store", "name"),
    [
        ("postgresql://me@db:5432/agents", "postgresql://me@db:5432/agents", ""),
        ("postgresql://me@db/agents/run_1/", "postgresql://me@db/agents", "run_1"),
        (
            "postgresql://db/a/r/inbox?sslmode=require",
            "postgresql://db/a?sslmode=require",
            "r/inbox",
        ),
    ],
)
def test_a_url_names_a_store_and_what_is_in_it(url, store, name):
    assert split_run(url) == (store, name)


def test_a_password_is_not_shown():
    url = "postgresql://me:secret@db/agents?password=a&sslmode=require&sslpassword=b"
    assert without_password(url) == "postgresql://me@db/agents?sslmode=require"
    assert without_password("postgresql://db/agents?password=a") == "postgresql://db/agents"


def test_a_log_is_read_by_the_url_of_its_store(tmp_path: Path):
    with CheckpointStore(tmp_path / "a store") as store:
        store.submit("agent", "task", "run").signal("paid")
    url = f"file://{tmp_path}/a%20store"
    for name, kind in (("run", "submitted"), ("run/inbox", "signal")):
        with log_at(url, name, None) as reader:
            assert [one.kind for one in reader.records()] == [kind]
    for name in ("other", "other/inbox"):
        with pytest.raises(FileNotFoundError) as caught:
            log_at(url, name, None)
        assert caught.value.filename == f"{tmp_path}/a store/{name}"
    with pytest.raises(ValueError, match=r"is a store: add the run, as in .*/a store/RUN"):
        log_at(url, "", None)


def test_a_store_of_a_url_has_the_durability_that_is_asked_for(tmp_path: Path):
    assert store_at(f"file://{tmp_path}").durability == "power"
    assert store_at(f"file://localhost{tmp_path}", "none").durability == "none"
    with pytest.raises(ValueError, match="has durability=\"power\", not 'process'"):
        store_at("postgresql://db/agents", "process")


@pytest.mark.parametrize("url", ["file://runs", "file://host/runs", "file://localhost"])
def test_a_file_url_names_a_path_of_this_machine(url):
    with pytest.raises(ValueError, match="use file:///PATH"):
        store_at(url)


def test_without_psycopg_it_is_said_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "recovery.stores.postgres", None)
    with pytest.raises(ImportError, match=r"pip install 'agent-eventlog\[postgres\]'"):
        store_at("postgres://db/agents")
