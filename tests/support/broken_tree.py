"""A copy of the project to be broken, and its tests run in it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
COPIED = (
    "eventlog",
    "recovery",
    "tools",
    "tests",
    "examples",
    "docs",
    "pyproject.toml",
    "README.md",
    "CHANGELOG.md",
    "Makefile",
    "mkdocs.yml",
)
SEED = "3"


@dataclass(frozen=True, slots=True)
class Edit:
    """``old``, which stands in ``file`` exactly once, becomes ``new``."""

    file: str
    old: str
    new: str

    def apply(self, root: Path) -> None:
        """Edit the file in the tree at ``root``; ValueError when ``old`` is not there once."""
        path = root / self.file
        text = path.read_text()
        if text.count(self.old) != 1:
            raise ValueError(f"{self.file} has {text.count(self.old)} times: {self.old!r}")
        path.write_text(text.replace(self.old, self.new))


class Tree:
    """A copy of the project to be broken."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def copy(self, source: Path) -> None:
        """Byte code comes along from a copy: it fits the sources, whose times are kept."""
        ours = source == ROOT
        skipped = shutil.ignore_patterns("__pycache__", ".*") if ours else None
        self.root.mkdir()
        for name in COPIED:
            if (source / name).is_dir():
                shutil.copytree(source / name, self.root / name, ignore=skipped)
            elif (source / name).exists():
                shutil.copy2(source / name, self.root / name)

    def files(self, patterns: Iterable[str]) -> list[str]:
        """The test files of these patterns below tests/, each once, in the order given."""
        tests = self.root / "tests"
        found = [
            path
            for one in patterns
            for path in sorted(tests.glob(one))
            if path.name.startswith("test_")
        ]
        return list(dict.fromkeys(str(path.relative_to(tests)) for path in found))

    @contextmanager
    def changed(self, *files: str) -> Iterator[None]:
        """In this context these files may be changed; afterwards they are as before."""
        before = {self.root / file: (self.root / file).read_bytes() for file in files}
        try:
            for file in before:
                for stale in (file.parent / "__pycache__").glob(f"{file.stem}.*"):
                    stale.unlink()
            yield
        finally:
            for file, content in before.items():
                file.write_bytes(content)

    def run(self, tests: Iterable[str], limit_s: float, keep: bool = False) -> tuple[str, str]:
        """("passed", ""), or "failed" and the first test that did, or what else came of it.

        ``keep`` has Python keep the byte code: only of code that is as it should be.
        """
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "--tb=no",
            "-rfE",
            "--color=no",
            "-p",
            "no:cacheprovider",
            f"--basetemp={self.root / 'tmp'}",
            f"--hypothesis-seed={SEED}",
            "-m",
            "not crash and not slow",
            *(f"tests/{test}" for test in tests),
        ]
        environment = os.environ | {
            "PYTHONPATH": f"{self.root}{os.pathsep}{self.root / 'tools'}",
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "" if keep else "1",
        }
        process = subprocess.Popen(
            command,
            cwd=self.root,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return "timeout", f"no end after {limit_s} s"
        if process.returncode == 0:
            return "passed", ""
        # A file that cannot be collected is no catch: then the line names no test in it.
        failed = re.findall(r"^(?:FAILED|ERROR) (\S+?::.*?)(?: - .*)?$", output, re.M)
        if process.returncode == 1 and failed:
            return "failed", failed[0]
        return "broken", output[-2000:]
