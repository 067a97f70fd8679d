"""The code in docs/call-journal.md runs, prints what stands behind it, and does nothing twice."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT

PAGE = ROOT / "docs/call-journal.md"


def test_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```(\w+)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    wanted = "".join(text for kind, text in blocks if kind == "text")
    names: dict[str, Any] = {}
    for kind, text in blocks:
        if kind == "python":
            exec(compile(text, str(PAGE), "exec"), names)  # noqa: S102 - our own page
    assert capsys.readouterr().out == wanted

    class Died(BaseException):
        pass

    def dies(messages: Any) -> None:
        raise Died

    (tmp_path / "chat.json").unlink()
    saves, names["save"] = names["save"], dies
    with pytest.raises(Died):
        names["loop"]("once more")
    names["save"] = saves
    names["loop"]("once more")
    with names["CallJournal"]("runs", "chat-1") as journal:
        names["finish"](journal, names)
    assert capsys.readouterr().out == "sends a mail to ada\n"
