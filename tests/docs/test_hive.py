"""The examples of docs/hive.md run, against doubles of Hive."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from recovery.integrations import hive
from tests.support.hive_graphs import GraphExecutor, LLMProvider
from tests.support.hive_loop import AgentContext, AgentLoop, FileConversationStore
from tests.support.paths import ROOT
from tests.unit.integrations.hive.test_hive_graph import Node, adds_up, chain
from tests.unit.integrations.hive.test_hive_loop import World

PAGE = ROOT / "docs/hive.md"


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIVE_HOME", str(tmp_path))
    world = World(tmp_path, 3)
    names: dict[str, Any] = {
        "AgentLoop": AgentLoop,
        "FileConversationStore": FileConversationStore,
        "GraphExecutor": GraphExecutor,
        "runtime": None,
        "llm": LLMProvider(),
        "nodes": {f"n{i}": Node(adds_up) for i in range(3)},
        "graph": chain(3),
        "goal": "goal",
        "tool_executor": world.send,
        "ctx": AgentContext(world.llm),
        "event_bus": None,
        "session_dir": tmp_path / "session",
        "mailbox_has": lambda key: False,
        "config": None,
    }
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)  # noqa: S102 - our own page
    assert names["result"] == "all done"
    assert names["done"]["result"]["output"]["count"] == 3
    assert sorted(path.name for path in (tmp_path / "eventlog").iterdir()) == [
        "queen-otters",
        "session_20260820_101112_0a1b2c3d",
    ]


def test_every_public_name_is_told_of_and_has_a_docstring() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name in hive.__all__:
        assert name in text, name
        assert getattr(hive, name).__doc__, name
