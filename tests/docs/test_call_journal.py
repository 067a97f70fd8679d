"""The code in docs/call-journal.md runs, prints what stands behind it, and does nothing twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.pages import blocks, run_page

PAGE = "call-journal.md"


def test_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names = run_page(PAGE, blocks(PAGE), {})
    assert capsys.readouterr().out == "".join(blocks(PAGE, "text"))

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
