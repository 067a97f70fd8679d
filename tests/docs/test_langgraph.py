"""docs/langgraph.md: its program runs, and every public name is on the page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from recovery.integrations import langgraph
from tests.support.paths import ROOT

PAGE = (ROOT / "docs/langgraph.md").read_text(encoding="utf-8")


def test_every_block_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    assert blocks
    for _ in range(2):  # begun, and resumed
        made: dict[str, Any] = {"__name__": "page"}
        for block in blocks:
            exec(compile(block, "docs/langgraph.md", "exec", dont_inherit=True), made)  # noqa: S102
        said = [message.content for message in made["result"]["messages"]]
        assert said == ["hi", "hello"]


def test_every_public_name_is_told_of_and_has_a_docstring() -> None:
    for name in langgraph.__all__:
        assert name in PAGE, name
        assert getattr(langgraph, name).__doc__, name
