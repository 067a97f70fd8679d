"""docs/langgraph.md: its program runs, and every public name is on the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery.integrations import langgraph
from tests.support.pages import blocks, page_text, run_page

PAGE = "langgraph.md"


def test_every_block_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    codes = blocks(PAGE)
    assert codes
    for _ in range(2):  # begun, and resumed
        made = run_page(PAGE, codes, {"__name__": "page"})
        said = [message.content for message in made["result"]["messages"]]
        assert said == ["hi", "hello"]


def test_every_public_name_is_told_of_and_has_a_docstring() -> None:
    for name in langgraph.__all__:
        assert name in page_text(PAGE), name
        assert getattr(langgraph, name).__doc__, name
