"""Output that the documentation shows is what the command prints on the golden runs."""

from __future__ import annotations

import json
import re
from hashlib import sha256

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


def test_what_the_queries_of_an_export_ask_for_is_there() -> None:
    page = (DOCS / "logdump.md").read_text()
    assert ".body.usage // empty | .[0]" in page and "head -n -1 run_001.jsonl | sha256sum" in page
    text = call("logdump", "export", "finished", cwd=RUNS).out
    *body, last = text.splitlines(keepends=True)
    assert json.loads(last)["sha256"] == sha256("".join(body).encode()).hexdigest()
    outcomes = [line["body"] for line in map(json.loads, body) if line.get("kind") == "outcome"]
    run = json.loads(call("logdump", "stats", "finished", "--json", cwd=RUNS).out)["run"]
    assert sum(one["usage"][0] for one in outcomes if one.get("usage")) == run["input_tokens"] > 0
    assert all("value" in one for one in outcomes)


def test_there_is_such_output() -> None:
    assert "logdump stats finished --by tool" in {command for _, command, _ in SHOWN}
