"""Whole processes that import something, and end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any


class Nothing:
    """The interpreter alone."""

    code = "pass"

    def __init__(self, directory: Path, case: dict[str, Any]) -> None:
        self._command = [sys.executable, "-c", self.code]

    def step(self, number: int) -> None:
        subprocess.run(self._command, check=True, cwd="/")

    def modules(self) -> int:
        """How many modules the import brings in that the interpreter has not."""
        count = "len(sys.modules)"
        code = f"import sys; before = {count}; {self.code}; print({count} - before)"
        return int(subprocess.check_output([sys.executable, "-c", code]))


class Asyncio(Nothing):
    code = "import asyncio"


class EventLog(Nothing):
    code = "import eventlog"


class Recovery(Nothing):
    code = "import recovery"
