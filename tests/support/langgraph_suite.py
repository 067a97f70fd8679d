"""A pytest plugin for LangGraph's own tests: where they take SqliteSaver, they get EventLogSaver.

See tests/versions.py, which sets ``SAVER`` (with SqliteSaver, all stays as it is) and ``FAILED``,
a file for the ids of the tests that fail. The plugin is of use in that environment alone.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from recovery.integrations.langgraph import EventLogSaver

FIXTURES = {"sync_checkpointer", "async_checkpointer"}
REPLACED = {"sqlite", "sqlite_aio", "sqlite_aes"}


def _saver(directory: str, name: str) -> EventLogSaver:
    # LangGraph gives the types of a graph to the checkpointer in its strict mode alone.
    serde = JsonPlusSerializer()
    if name == "sqlite_aes":
        encrypting = EncryptedSerializer.from_pycryptodome_aes(serde, key=b"1234567890123456")
        return EventLogSaver(directory, serde=encrypting)
    if os.environ.get("LANGGRAPH_STRICT_MSGPACK") == "true":
        return EventLogSaver(directory)
    return EventLogSaver(directory, serde=serde)


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any], request: Any) -> Any:
    """Make the checkpointer, in place of the fixture's own function."""
    param = getattr(request, "param", None)
    if os.environ["SAVER"] == "SqliteSaver":
        return None
    if fixturedef.argname not in FIXTURES or param not in REPLACED:
        return None
    stack = ExitStack()
    directory = stack.enter_context(tempfile.TemporaryDirectory())
    saver = stack.enter_context(_saver(directory, param))
    fixturedef.addfinalizer(stack.close)
    fixturedef.cached_result = (saver, fixturedef.cache_key(request), None)
    return saver


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write down a test that fails."""
    if report.failed:
        with Path(os.environ["FAILED"]).open("a") as file:
            file.write(report.nodeid + "\n")
