"""The README's example is run as it stands, and killed on the way."""

from __future__ import annotations

import os
import random
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

import recovery
from recovery.declare.tool import ToolOptions
from tests.support import outside
from tests.support.kill_sweep import RUNS, sweep
from tests.support.pages import blocks, run_page
from tests.support.paths import ROOT
from tests.support.scale import scaled


def example() -> str:
    code, _ = blocks("README.md")  # the other one is a test of users
    return code


def live(place: Path) -> str:
    """One life of the example, as it stands. A mail is an effect in the outside world."""
    os.environ["EVENTLOG_HOME"] = str(place / RUNS)
    said: list[str] = []

    def prints(text: str) -> None:
        if text.startswith("mail to "):
            outside.did(text, gives="sent")
        said.append(text)

    run_page("README.md", [example()], {"print": prints, "__name__": "__main__"})
    return said[-1]


def test_the_example_is_killed_anywhere_and_sends_one_mail(
    tmp_path: Path, rng: random.Random
) -> None:
    found = sweep(live, tmp_path, rng, points=scaled(8, 1000))
    assert found.bad == [] and found.appends > 5
    assert outside.counted() == {"mail to ann@example.org: Hi!": 1}


def test_the_example_prints_the_mail_and_the_recorded_result(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for _ in range(2):
        run_page("README.md", [example()], {"__name__": "__main__"})
    assert capsys.readouterr().out == (
        "mail to ann@example.org: Hi!\nAnn has her mail.\nAnn has her mail.\n"
    )


def test_the_commands_of_the_readme_are_targets() -> None:
    text = (ROOT / "README.md").read_text()
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"(?:^|`)make ([a-z]+)", text, re.M)):
        assert re.search(rf"^{target}:", makefile, re.M), target


def test_the_links_of_the_readme_lead_somewhere() -> None:
    text = (ROOT / "README.md").read_text()
    links = set(re.findall(r"\]\(([^)#]+)\)", text))
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_what_the_readme_names_is_there() -> None:
    text = (ROOT / "README.md").read_text()
    names = set(re.findall(r"`(?:@?recovery\.)(\w+)[(.`]", text))
    assert "current_call" in names
    missing = [name for name in names if not hasattr(recovery, name)]
    assert [name for name in missing if find_spec(f"recovery.{name}") is None] == []
    methods = set(re.findall(r"\b(?:store|agent)\.run\([^`]*?\)\.(\w+)\(", text))
    assert {"fork", "signal", "resolve", "events"} <= methods
    assert [name for name in methods if not hasattr(recovery.RunHandle, name)] == []
    for method in re.findall(r"`run\.(\w+)\(", text):
        assert hasattr(recovery.Run, method), method
    for options in re.findall(r"`@tool\(([^`]*)\)`", text):
        for option in re.findall(r"(\w+)=", re.sub(r"\([^)]*\)", "", options)):
            assert option in ToolOptions.__annotations__, option
