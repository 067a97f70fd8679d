"""Programs of tests, in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}

Start = Callable[..., "subprocess.Popen[str]"]


@contextmanager
def started(code: str, *first: object) -> Iterator[Start]:
    """Starts this program with these arguments, its role, and options as JSON; at the end, all
    that are left are killed."""
    processes = []

    def start(role: str, **options: Any) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", code, *map(str, first), role, json.dumps(options)]
        process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        return process

    yield start
    for one in processes:
        one.kill()
        one.communicate()


def until(process: subprocess.Popen[str], line: str) -> subprocess.Popen[str]:
    """The process, when it has printed this line, and nothing before it."""
    assert process.stdout is not None
    assert process.stdout.readline() == f"{line}\n"
    return process


def said(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The JSON in the last line that the process printed before it ended."""
    out, _ = process.communicate(timeout=60)
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found
