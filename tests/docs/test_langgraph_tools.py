"""The code in docs/langgraph-tools.md runs, and prints what stands behind it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.pages import blocks, run_page

pytest.importorskip("langchain", reason="LangChain comes with the extra [test]")

PAGE = "langgraph-tools.md"


def test_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.unit.integrations.langgraph.test_tools import Model

    monkeypatch.chdir(tmp_path)
    asked = [("send_mail", {"to": "ada"}), ("search", {"query": "otters"})]
    run_page(PAGE, blocks(PAGE), {"model": Model(turns=[asked]), "__name__": "__main__"})
    assert capsys.readouterr().out == "".join(blocks(PAGE, "text"))
