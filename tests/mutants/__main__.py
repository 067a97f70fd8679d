"""Try the seeded bugs: each is applied to a copy of the tree, and a test must fail.

    python -m tests.mutants [NAMES...] [--list] [-j N] [--json FILE]

The unpatched code must pass the same tests first. A bug that its own tests let pass meets the
suite of its layer. One line for each; the exit code is 1 when any survives. A run that takes too
long is no catch: a hang counts only when a test reports it.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.mutants import LAYERS, Mutant

ROOT = Path(__file__).parents[2]
COPIED = (
    "eventlog", "recovery", "tools", "tests", "examples", "docs",
    "pyproject.toml", "README.md", "CHANGELOG.md", "Makefile", "mkdocs.yml",
)  # fmt: skip
LIMIT_S, SUITE_LIMIT_S = 300, 900
SEED = "3"

_LOG_SUITE = ["unit/test_[!r]*.py", "unit/test_re[!c]*.py", "unit/test_record.py",
              "property/test_log*.py", "property/test_repair.py", "crash/*.py"]  # fmt: skip
_RUN_SUITE = ["unit/test_recovery*.py", "unit/test_seeded_bugs.py", "property/test_agent*.py"]
_LOG_LAYERS = ("frames", "segments", "writer", "files", "repair", "encryption")
SUITES = {layer: _LOG_SUITE if layer in _LOG_LAYERS else _RUN_SUITE for layer in LAYERS}
SUITES["graphs"] = ["unit/test_graph*.py", "unit/test_checkpoint_manager.py"]
SUITES["hive"] = ["unit/test_hive*.py"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a mutant. ``caught_by`` is the test that failed, "" for a survivor."""

    name: str
    layer: str
    what: str
    caught_by: str
    seconds: float
    verdict: str


def main() -> int:
    args = _arguments()
    chosen = [(layer, mutant) for layer, mutants in LAYERS.items() for mutant in mutants
              if not args.names or mutant.name in args.names]  # fmt: skip
    unknown = {*args.names} - {mutant.name for _, mutant in chosen}
    if unknown:
        print(f"no such mutant: {', '.join(sorted(unknown))} (see --list)", file=sys.stderr)
        return 2
    if args.list:
        for layer, mutant in chosen:
            print(f"{layer:9} {mutant.name:45} {mutant.what}")
        return 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        return _try_all(chosen, Path(scratch), args)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAMES", help="only these")
    parser.add_argument("--list", action="store_true", help="show the catalogue")
    parser.add_argument("-j", type=int, default=os.cpu_count() or 1, metavar="N",
                        help="so many at once (default: one for each core)")  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    return parser.parse_args()


def _try_all(chosen: list[tuple[str, Mutant]], scratch: Path, args: argparse.Namespace) -> int:
    began = time.monotonic()
    pristine = _Tree(scratch / "0")
    pristine.copy(ROOT)
    named = sorted({test for _, mutant in chosen for test in mutant.tests})
    print(f"{len(chosen)} seeded bugs; the unpatched code passes {len(named)} tests: ", end="")
    sys.stdout.flush()
    status, failed = pristine.run(named, SUITE_LIMIT_S, keep=True)
    if status != "passed":
        print(f"NO ({status}: {failed})")
        return 1
    print(f"yes, in {time.monotonic() - began:.0f} s", flush=True)
    trees = [pristine]
    for number in range(1, min(args.j, len(chosen))):
        trees.append(_Tree(scratch / str(number)))
        trees[-1].copy(pristine.root)
    free: queue.SimpleQueue[_Tree] = queue.SimpleQueue()
    for tree in trees:
        free.put(tree)

    def attempt(item: tuple[str, Mutant]) -> Outcome:
        tree = free.get()
        try:
            return _attempt(tree, *item)
        finally:
            free.put(tree)

    with ThreadPoolExecutor(len(trees)) as pool:
        outcomes = [_shown(outcome) for outcome in pool.map(attempt, chosen)]
    return _summary(outcomes, time.monotonic() - began, args.json)


def _attempt(tree: _Tree, layer: str, mutant: Mutant) -> Outcome:
    began = time.monotonic()
    with tree.patched(mutant):
        status, failed = tree.run(mutant.tests, LIMIT_S)
        if status == "passed":
            status, failed = tree.run(tree.suite(layer), SUITE_LIMIT_S)
    verdict = {"failed": "caught", "passed": "SURVIVED"}.get(status, status)
    caught_by = failed if status == "failed" else ""
    return Outcome(mutant.name, layer, mutant.what, caught_by, time.monotonic() - began, verdict)


def _shown(outcome: Outcome) -> Outcome:
    by = outcome.caught_by.removeprefix("tests/") or outcome.what
    print(f"{outcome.verdict:9} {outcome.seconds:6.1f} s  {outcome.name:50} {by}", flush=True)
    return outcome


def _summary(outcomes: list[Outcome], seconds: float, file: Path | None) -> int:
    survivors = [outcome.name for outcome in outcomes if not outcome.caught_by]
    caught = len(outcomes) - len(survivors)
    print(f"{caught} of {len(outcomes)} seeded bugs caught, in {seconds:.0f} s")
    if survivors:
        print(f"NOT CAUGHT: {', '.join(survivors)}")
    if file is not None:
        figures = {
            "total": len(outcomes), "caught": caught, "survivors": survivors,
            "seconds": round(seconds, 1),
            "mutants": [asdict(one) | {"seconds": round(one.seconds, 1)} for one in outcomes],
        }  # fmt: skip
        file.write_text(json.dumps(figures, indent=1) + "\n")
    return 1 if survivors else 0


class _Tree:
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

    def suite(self, layer: str) -> list[str]:
        tests = self.root / "tests"
        found = {path for pattern in SUITES[layer] for path in tests.glob(pattern)}
        return [str(path.relative_to(tests)) for path in sorted(found)]

    @contextmanager
    def patched(self, mutant: Mutant) -> Iterator[None]:
        """The tree with the bug in it; afterwards without."""
        files = {self.root / edit.file for edit in mutant.edits}
        before = {file: file.read_bytes() for file in files}
        try:
            for edit in mutant.edits:
                edit.apply(self.root)
            for file in files:
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
            sys.executable, "-m", "pytest", "-x", "-q", "--tb=no", "-rfE", "--color=no",
            "-p", "no:cacheprovider", f"--basetemp={self.root / 'tmp'}",
            f"--hypothesis-seed={SEED}", "-m", "not crash and not slow",
            *(f"tests/{test}" for test in tests),
        ]  # fmt: skip
        environment = os.environ | {
            "PYTHONPATH": f"{self.root}{os.pathsep}{self.root / 'tools'}",
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "" if keep else "1",
        }
        process = subprocess.Popen(command, cwd=self.root, env=environment, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   start_new_session=True)  # fmt: skip
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


if __name__ == "__main__":
    sys.exit(main())
