"""The example of a progress bar: killed, run again, and watched from another process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from recovery import CheckpointStore
from recovery.inspect.follow import events
from recovery.stores.file import FileStore

EXAMPLE = Path(__file__).parents[2] / "examples" / "progress.py"


@pytest.fixture
def start() -> Iterator[Callable[[str, Path], subprocess.Popen[str]]]:
    """Starts the example, and leaves no process behind."""
    started: list[subprocess.Popen[str]] = []

    def begin(kind: str, home: Path) -> subprocess.Popen[str]:
        started.append(begun(kind, home))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def begun(kind: str, home: Path) -> subprocess.Popen[str]:
    code = (
        "import runpy, sys; sys.argv = sys.argv[1:]; import asyncio; "
        "sleep = asyncio.sleep; asyncio.sleep = lambda s, *a: sleep(s / 20, *a); "
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    path = os.pathsep.join(part for part in sys.path if part)
    return subprocess.Popen(
        [sys.executable, "-c", code, str(EXAMPLE), kind],
        env=os.environ | {"EVENTLOG_HOME": str(home), "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("kind", ["tqdm", "rich"])
def test_the_bar_goes_on_where_the_run_does(start: Any, kind: str, tmp_path: Path) -> None:
    pytest.importorskip(kind)
    watcher = start("watch", tmp_path)  # before there is a run
    first = start(kind, tmp_path)
    for event in events(CheckpointStore(FileStore(tmp_path)), "otter-facts"):
        if event.kind == "step" and event.step == 4:
            first.send_signal(signal.SIGKILL)
            break
    first.communicate(timeout=60)
    out, err = start(kind, tmp_path).communicate(timeout=60)
    shown = err if kind == "tqdm" else out
    assert out.endswith("8 facts\n"), err
    assert "8/8" in shown and "152 tokens" in shown, shown
    assert not re.search("[12]/8", shown), shown  # it began where the run was
    lines, err = watcher.communicate(timeout=60)
    assert watcher.returncode == 0, err
    store = CheckpointStore(FileStore(tmp_path))
    assert len(lines.splitlines()) == len(list(events(store, "otter-facts"))) + 1
    assert "resumed, recovery 1" in lines and "finished: 8" in lines
    assert lines.splitlines()[-1].startswith("finished, 9 steps, ")


def test_how_it_is_used() -> None:
    done = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "python progress.py tqdm" in done.stdout
