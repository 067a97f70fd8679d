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
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.mutants import LAYERS, Mutant
from tests.mutants._tree import ROOT, Tree

LIMIT_S, SUITE_LIMIT_S = 300, 900

_LOG_SUITE = ["unit/test_[!r]*.py", "unit/test_re[!c]*.py", "unit/test_record.py",
              "property/test_log*.py", "property/test_repair.py", "crash/*.py"]  # fmt: skip
_RUN_SUITE = ["unit/test_recovery*.py", "unit/test_seeded_bugs.py", "model/test_*.py"]
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
    pristine = Tree(scratch / "0")
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
        trees.append(Tree(scratch / str(number)))
        trees[-1].copy(pristine.root)
    free: queue.SimpleQueue[Tree] = queue.SimpleQueue()
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


def _attempt(tree: Tree, layer: str, mutant: Mutant) -> Outcome:
    began = time.monotonic()
    with tree.changed(*{edit.file for edit in mutant.edits}):
        for edit in mutant.edits:
            edit.apply(tree.root)
        status, failed = tree.run(mutant.tests, LIMIT_S)
        if status == "passed":
            status, failed = tree.run(tree.files(SUITES[layer]), SUITE_LIMIT_S)
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


if __name__ == "__main__":
    sys.exit(main())
