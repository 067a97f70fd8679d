"""Output that the documentation shows is what the command prints on the golden runs."""

from __future__ import annotations

import re

import pytest

from tests.cli.harness import RUNS, call
from tests.support.paths import ROOT

DOCS = ROOT / "docs"
SHOWN = [
    (path.name, *found)
    for path in sorted(DOCS.glob("*.md"))
    for found in re.findall(r"```console\n\$ (logdump [^\n]*)\n(.*?)```", path.read_text(), re.S)
]


@pytest.mark.parametrize(("page", "command", "shown"), SHOWN, ids=[one[1] for one in SHOWN])
def test_output_in_the_documentation_is_real(page: str, command: str, shown: str) -> None:
    tool, *args = command.split()
    lines = [line.rstrip() for line in call(tool, *args, cwd=RUNS).out.splitlines()]
    assert [line.rstrip() for line in shown.splitlines()] == lines, page


def test_there_is_such_output() -> None:
    assert "logdump verify damaged_payload" in {command for _, command, _ in SHOWN}
