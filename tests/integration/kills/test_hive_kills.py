"""Hive's loops, graphs and plans in processes that are killed: doubles of all three versions.

``make hive SRC=...`` sets HIVE_SRC: then the classes of that checkout, whatever its version.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.hive.kills import SUBJECTS
from tests.support.paths import ROOT

SRC = os.environ.get("HIVE_SRC", "")
CORE = Path(SRC or "nowhere").expanduser().resolve() / "core"
# What tells a checkout's version, the newest first.
MARKS = {
    "main": "framework/orchestrator/node_worker.py",
    "0.8.0": "framework/graph/event_loop_node.py",
    "137": "framework/graph/checkpoint_manager.py",
}
WHICH = [next((name for name, mark in MARKS.items() if (CORE / mark).exists()), "")]
VERSIONS = WHICH if SRC else list(MARKS)
CASES = [
    pytest.param(version, subject.__name__, id=f"{version}-{subject.__name__}")
    for version in VERSIONS
    for subject in SUBJECTS.get(version, [])
]


def python() -> str:
    """One that has what Hive needs."""
    given = os.environ.get("HIVE_PYTHON")
    if given or not SRC:
        return given or sys.executable
    found = [path / ".venv/bin/python" for path in (CORE, CORE.parent)]
    return str(next((path for path in found if path.exists()), sys.executable))


def killed(version: str, subject: str, base: Path, kills: int) -> dict[str, Any]:
    done = subprocess.run(
        [
            *(python(), "-m", "tests.support.hive.kills", version),
            *(str(CORE) if SRC else "doubles", subject, str(base), str(kills)),
        ],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
        if not SRC
        else os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(f"{version} {subject}: {json.dumps(found)}")
    return found


def check(version: str, subject: str, base: Path, kills: int) -> None:
    found = killed(version, subject, base, 0 if subject == "page" else kills)
    assert found["wrong"] == []
    assert found["killed"] or subject == "page"


@pytest.mark.skipif(bool(SRC) and not CASES, reason="no version of Hive that is known")
@pytest.mark.parametrize(("version", "subject"), CASES)
def test_nothing_is_done_twice_that_is_recorded(version, subject, tmp_path):
    check(version, subject, tmp_path, int(os.environ.get("HIVE_KILLS", "12")) if SRC else 2)


@pytest.mark.crash
@pytest.mark.parametrize(("version", "subject"), [] if SRC else CASES)
def test_nothing_is_done_twice_wherever_it_is_killed(version, subject, tmp_path):
    check(version, subject, tmp_path, 40)
