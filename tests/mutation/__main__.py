"""Change the code at random, one small change at a time: the tests must notice.

    python -m tests.mutation [FILES...] [--count N] [--seed S] [-j N] [--threshold PERCENT]

A change that makes the tests hang is no catch. Changes that alter nothing a user could see stand
in `tests/mutation/equivalent.txt`, each with the reason, and do not count. The exit code is 1 when
fewer than PERCENT of the others are caught.
"""

from __future__ import annotations

import argparse
import os
import queue
import random
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mutants._tree import ROOT, Tree
from tests.mutation._mutator import Change, changes_of

FILES = [
    "recovery/_replay.py", "recovery/_call.py", "recovery/_attempts.py", "recovery/_core.py",
    "recovery/_turns.py", "recovery/_children.py", "recovery/graph/_walk.py",
]  # fmt: skip
EQUIVALENT = Path(__file__).with_name("equivalent.txt")
# What kills most, and fastest, comes first: a run ends with the first test that fails.
SUITE = [
    "unit/test_recovery_replay.py", "unit/test_recovery_agent.py", "unit/test_recovery_attempts.py",
    "unit/test_recovery_earlier.py", "unit/test_recovery_turns.py", "contract/*.py", "model/*.py",
    "unit/test_graph*.py", "unit/test_recovery*.py", "unit/test_seeded_bugs.py", "property/*.py",
]  # fmt: skip
LIMIT_S = 420.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("files", nargs="*", metavar="FILES", default=FILES)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    parser.add_argument("-j", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds for one change")
    parser.add_argument("--threshold", type=float, default=0.0)
    args = parser.parse_args()
    known = equivalent()
    every = [one for file in args.files for one in changes_of(ROOT, file) if one.name not in known]
    chosen = random.Random(args.seed).sample(every, min(args.count, len(every)))
    print(f"{len(chosen)} of {len(every)} changes, seed {args.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="mutation-") as scratch:
        verdicts = _try_all(chosen, Path(scratch), args.j, args.limit)
    caught = 100 * verdicts["failed"] / max(1, len(chosen))
    print(f"{dict(verdicts)}; caught {caught:.1f} % (seed {args.seed})")
    return 1 if caught < args.threshold else 0


def equivalent() -> set[str]:
    """The names of changes that no test can notice."""
    lines = EQUIVALENT.read_text(encoding="utf-8").splitlines()
    return {line.rpartition("  # ")[0].strip() for line in lines if "  # " in line}


def _try_all(chosen: list[Change], scratch: Path, workers: int, limit_s: float) -> Counter[str]:
    free: queue.SimpleQueue[Tree] = queue.SimpleQueue()
    for number in range(workers):
        tree = Tree(scratch / str(number))
        tree.copy(ROOT)
        free.put(tree)

    def attempt(change: Change) -> str:
        tree = free.get()
        began = time.monotonic()
        try:
            with tree.changed(change.file):
                change.apply(tree.root)
                verdict, by = tree.run(tree.files(SUITE), limit_s)
        finally:
            free.put(tree)
        shown = by.splitlines()[-1] if by else ""
        print(f"{verdict:8} {time.monotonic() - began:6.1f} s  {change}  {shown[:90]}", flush=True)
        return verdict

    with ThreadPoolExecutor(workers) as pool:
        return Counter(pool.map(attempt, chosen))


if __name__ == "__main__":
    sys.exit(main())
