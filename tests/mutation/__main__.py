"""Change the code at random, one small change at a time: the tests must notice.

    python -m tests.mutation [FILES...] [--count N] [--seed S] [--threshold PERCENT] [--map FILE]

``--count``: how many changes of each file. For each of them the tests run that execute the changed
statement, until one fails: first those that noticed other changes of the function, then the
fastest. Which tests these are is found out first, in some minutes, and kept in ``--map`` for the
next time. What counts is CPU time: another load of the machine makes no other verdict.

A change that makes the tests hang is no catch. Changes that alter nothing a user could see stand
in `tests/mutation/equivalent.txt`, each with the reason, and do not count. The exit code is 1 when
fewer than PERCENT of the others are caught.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.mutation._mutator import Change, changes_of
from tests.support.broken_tree import ROOT, SEED, Tree

FILES = [
    "recovery/replay/matching.py",
    "recovery/calls/call_steps.py",
    "recovery/calls/attempts.py",
    "recovery/engine/execution_base.py",
    "recovery/engine/execution.py",
    "recovery/agent/replay_order.py",
    "recovery/calls/child_runs.py",
    "recovery/graph/walk.py",
]
EQUIVALENT = Path(__file__).with_name("equivalent.txt")
SUITE = [
    "unit/recovery/**/test_*.py",
    "unit/integrations/**/test_*.py",
    "docs/test_guarantees.py",
    "contract/*.py",
    "model/test_programs.py",
    "property/test_repaired_runs.py",
]
LIMIT_S = 60.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("files", nargs="*", metavar="FILES", default=FILES)
    parser.add_argument("--count", type=int, default=15)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    parser.add_argument(
        "--limit", type=float, default=LIMIT_S, help="seconds of CPU for one change"
    )
    parser.add_argument("--threshold", type=float, default=0.0)
    parser.add_argument("--map", type=Path, help="the map of the tests, written if it is not there")
    parser.add_argument("--again", type=Path, help="only what a former output says was not caught")
    args = parser.parse_args()
    known = equivalent()
    chosen: list[Change] = []
    missed = None if args.again is None else not_caught(args.again)
    for file in args.files:
        every = [one for one in changes_of(ROOT, file) if missed is None or one.name in missed]
        count = min(args.count, len(every))
        chosen += random.Random(f"{args.seed} {file}").sample(every, count)
    counted = [one for one in chosen if one.name not in known]
    print(
        f"{len(chosen)} changes, {len(chosen) - len(counted)} of them known to alter nothing; "
        f"seed {args.seed}",
        flush=True,
    )
    with tempfile.TemporaryDirectory(prefix="mutation-") as scratch:
        verdicts = _tried(counted, Path(scratch), args.map, args.limit)
    print(table(verdicts))
    total = sum(verdicts.values(), Counter[str]())
    caught = 100 * total["caught"] / max(1, total.total())
    print(f"caught {caught:.1f} % (seed {args.seed})")
    return 1 if caught < args.threshold else 0


def equivalent() -> set[str]:
    """The names of changes that no test can notice."""
    lines = EQUIVALENT.read_text(encoding="utf-8").splitlines()
    return {line.rpartition("  # ")[0].strip() for line in lines if "  # " in line}


def not_caught(output: Path) -> set[str]:
    """The names of changes that the output of a former run says nobody noticed."""
    pattern = r"^(?:survived|hangs|unfinished) .* tests  line \d+ of (.*?)  .*$"
    return set(re.findall(pattern, output.read_text(encoding="utf-8"), re.M))


def table(verdicts: dict[str, Counter[str]]) -> str:
    """What came of the changes, by file."""
    heads = "caught", "survived", "hangs", "unfinished"
    lines = [f"| file | changes | {' | '.join(heads)} | share |", "|---" * 7 + "|"]
    for file, found in verdicts.items():
        cells = [file, found.total(), *(found[head] for head in heads)]
        share = f"{100 * found['caught'] / max(1, found.total()):.0f}%"
        lines.append(f"| {' | '.join(map(str, cells))} | {share} |")
    return "\n".join(lines)


def _tried(
    changes: list[Change], scratch: Path, kept: Path | None, limit_s: float
) -> dict[str, Counter[str]]:
    tree = Tree(scratch / "tree")
    tree.copy(ROOT)
    plan, found = scratch / "plan.json", scratch / "found.json"
    plan.write_text(
        json.dumps(
            {
                "changes": [one.row for one in changes],
                "files": FILES,
                "map_to": str((kept or scratch / "map.json").resolve()),
                "found_to": str(found),
                "limit_s": limit_s,
            }
        )
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-s",
        "-p",
        "no:cacheprovider",
        "-p",
        "tests.mutation._loop",
        f"--basetemp={scratch / 'tmp'}",
        f"--hypothesis-seed={SEED}",
        "-m",
        "not crash and not slow",
        *(f"tests/{test}" for test in tree.files(SUITE)),
    ]
    paths = f"{tree.root}{os.pathsep}{tree.root / 'tools'}"
    more = {"PYTHONPATH": paths, "PYTHONHASHSEED": "0", "MUTATION_PLAN": str(plan)}
    subprocess.run(command, cwd=tree.root, env=os.environ | more, check=True)
    verdicts = {one.file: Counter[str]() for one in changes}
    for file, *_, verdict, _ in json.loads(found.read_text()):
        verdicts[file][verdict] += 1
    return verdicts


if __name__ == "__main__":
    sys.exit(main())
