"""Runs a script in a forked process, which has imported already what is imported here."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import IO


def forked(
    script: Path | Callable[[], int], *args: str, place: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    """As ``python SCRIPT ARG...`` would end in this directory, or a command with this ``main``."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        pid = os.fork()
        if not pid:
            code = 1
            try:
                os.chdir(place)
                os.environ.update(environment)
                sys.argv, sys.path[:0] = [str(script), *args], [str(place)]
                code = _ended(script, out, err)
            finally:
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess([str(script), *args], code, out.read(), err.read())


def _ended(script: Path | Callable[[], int], out: IO[str], err: IO[str]) -> int:
    """The exit code with which it ends; what it prints is in the files."""
    os.dup2(out.fileno(), 1)
    os.dup2(err.fileno(), 2)
    with open(1, "w", closefd=False) as sys.stdout, open(2, "w", closefd=False) as sys.stderr:
        try:
            if not isinstance(script, Path):
                return script()
            runpy.run_path(str(script), run_name="__main__")
        except SystemExit as exc:
            return exc.code if isinstance(exc.code, int) else int(exc.code is not None)
        except BaseException:
            traceback.print_exc()
            return 1
    return 0
