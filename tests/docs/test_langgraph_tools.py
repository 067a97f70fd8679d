"""The code in docs/langgraph-tools.md runs, and prints what stands behind it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT

pytest.importorskip("langchain", reason="LangChain comes with the extra [test]")

PAGE = ROOT / "docs/langgraph-tools.md"


def test_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.unit.integrations.langgraph.test_tools import Model

    monkeypatch.chdir(tmp_path)
    asked = [("send_mail", {"to": "ada"}), ("search", {"query": "otters"})]
    names: dict[str, Any] = {"model": Model(turns=[asked])}
    blocks = re.findall(r"```(\w+)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    for kind, text in blocks:
        if kind == "python":
            exec(compile(text, str(PAGE), "exec"), names)  # noqa: S102 - our own page
    wanted = "".join(text for kind, text in blocks if kind == "text")
    assert capsys.readouterr().out == wanted
