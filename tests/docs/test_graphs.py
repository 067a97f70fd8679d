"""The code in docs/graphs.md runs, and prints what stands behind it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from recovery.graph.graph import NodeOptions
from tests.support.pages import blocks, page_text, run_page

PAGE = "graphs.md"


def test_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    wanted = [text for text in blocks(PAGE, "text") if "diverged" not in text]
    printed = []
    for code in blocks(PAGE):
        run_page(PAGE, [code], names)
        printed.append(capsys.readouterr().out)
    assert [one for one in printed if one] == wanted
    assert names["asyncio"].run(names["go_on"]("runs")) == []


def test_each_option_of_a_node_is_told_of() -> None:
    text = page_text(PAGE)
    for name in NodeOptions.__annotations__:
        assert f"`{name}=" in text or name == "approval_timeout_s", name
