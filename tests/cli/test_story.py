"""What docs/recovery-command.md tells, done: an agent is killed in a side effect, and somebody who
is called at night brings its run to its end. What is printed is what the documentation has."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.harness import RUNS, call

ROOT = Path(__file__).parents[2]
DOC = (ROOT / "docs/recovery-command.md").read_text("utf-8")
SHOP = re.findall(r"```python title=\"shop.py\"\n(.*?)```", DOC, re.S)
BLOCK = re.compile(r"```console\n(.*?)```", re.S)

# What is otherwise each time.
VARYING = [
    (re.compile(pattern), to)
    for pattern, to in (
        (r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\dZ", "DATE"),
        (r"\d\d:\d\d:\d\dZ", "TIME"),
        (r"\b([0-9a-f]{32}|[0-9a-f]{16})\b", "KEY"),
        (r"\bprocess \d+ on [\w.-]+", "PROCESS"),
        (r"\b\d+(\.\d+)? (ms|s|min)\b", "DURATION"),
        (r"^.*Killed$", ""),
        (r"[ ─]+", " "),
        (r" $", ""),
    )
]


def neutral(text: str) -> str:
    """Without what is otherwise each time, and without how it is laid out."""
    lines = []
    for found in text.strip().splitlines():
        line = found
        for pattern, to in VARYING:
            line = pattern.sub(to, line)
        lines.append(line.strip())
    return " ".join(line for line in lines if line)


def told() -> Iterator[tuple[str, str]]:
    """The commands of the story, and what each prints."""
    story = DOC[DOC.index("## A call at night") : DOC.index("## runs")]
    for block in BLOCK.findall(story):
        for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
            command, _, output = part.partition("\n")
            yield command, output


def test_the_story_is_true(tmp_path: Path) -> None:
    (shop,) = SHOP
    (tmp_path / "shop.py").write_text(shop)
    path = f"{ROOT}{os.pathsep}{ROOT / 'tools'}"
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "PYTHONPATH": path,
        "COLUMNS": "80",
        "LANG": "C.UTF-8",
        "LOGNAME": "ann",
    }
    commands = list(told())
    assert len(commands) >= 6
    for command, output in commands:
        words = shlex.split(command)
        given = env | {"DIE": "1"} if words[0] == "DIE=1" else env
        words = [word for word in words if word != "DIE=1"]
        tool = {"python": [sys.executable], "recovery": [sys.executable, "-m", "recovery.cli"]}
        words = [*tool.get(words[0], [words[0]]), *words[1:]]
        done = subprocess.run(
            words, cwd=tmp_path, env=given, capture_output=True, text=True, timeout=120, check=False
        )
        printed = (done.stdout + done.stderr).replace(str(tmp_path), "/home/ann")
        assert neutral(printed) == neutral(output), command
    # Every effect once.
    assert (tmp_path / "bank.txt").read_text() == "charged 124900\n"
    assert (tmp_path / "mails.txt").read_text() == "ann@example.com: R-17\n"


def test_what_differs_is_noticed() -> None:
    assert neutral("last  LSN 7, 2026-11-21 21:52:08Z, 3 s ago") == "last LSN 7, DATE, DURATION ago"
    assert neutral("LSN 7") != neutral("LSN 8")


@pytest.mark.parametrize("name", re.findall(r"^## `?(\w+)", DOC, re.M))
def test_each_section_is_about_a_command_that_is_there(name: str) -> None:
    from recovery.cli.app import app

    names = {command.name for command in app.registered_commands}
    assert name in {*names, "A"}


def test_what_status_says_as_json_is_what_show_says() -> None:
    for run in ("parked", "damaged_payload"):
        told = call("recovery", "show", run, "--store", ".", "--json", cwd=RUNS).out
        shown = json.loads(told.replace(f"{RUNS}/", ""))  # in the commands
        done = call("logdump", "status", run, "--json", cwd=RUNS)
        status = json.loads(done.out)
        segments = list((RUNS / run).glob("*.seg"))
        assert (status.pop("segments"), status.pop("on_disk")) == (
            len(segments),
            sum(path.stat().st_size for path in segments),
        )
        assert shown | status == shown and done.code == 2 * bool(shown["damage"])
        assert set(shown) - set(status) == {*"said resumed recent children harmless_damage".split()}


def test_the_fields_of_show_are_those_of_the_documentation(tmp_path: Path) -> None:
    shutil.copytree(RUNS / "parked", tmp_path / "parked")
    found = json.loads(
        call("recovery", "show", "parked", "--store", ".", "--json", cwd=tmp_path).out
    )
    section = DOC[DOC.index("## show") : DOC.index("## resume")]
    rows = re.findall(r"^\| (`.*?) \|", section, re.M)
    names = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert len(names) > 15 and set(names) <= found.keys()
    (line,) = [line for line in section.splitlines() if line.startswith("| `open_calls`")]
    assert set(re.findall(r"`(\w+)`", line)) - {"open_calls"} <= found["open_calls"][0].keys()
