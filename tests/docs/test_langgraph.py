"""The program of docs/langgraph.md runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.pages import blocks, run_page

PAGE = "langgraph.md"


def test_every_block_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    codes = blocks(PAGE)
    assert codes
    for _ in range(2):  # begun, and resumed
        made = run_page(PAGE, codes, {"__name__": "page"})
        said = [message.content for message in made["result"]["messages"]]
        assert said == ["hi", "hello"]
