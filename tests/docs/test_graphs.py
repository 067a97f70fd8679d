"""The code in docs/graphs.md runs, and prints what stands behind it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from recovery.graph.graph import NodeOptions
from tests.support.paths import ROOT

PAGE = ROOT / "docs/graphs.md"


def test_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    blocks = re.findall(r"```(\w+)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    wanted = [text for kind, text in blocks if kind == "text" and "diverged" not in text]
    printed = []
    for kind, text in blocks:
        if kind == "python":
            exec(compile(text, str(PAGE), "exec"), names)  # noqa: S102 - our own page
            printed.append(capsys.readouterr().out)
    assert [one for one in printed if one] == wanted
    assert names["asyncio"].run(names["go_on"]("runs")) == []


def test_each_option_of_a_node_is_told_of() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name in NodeOptions.__annotations__:
        assert f"`{name}=" in text or name == "approval_timeout_s", name
