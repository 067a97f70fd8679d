"""Change the core at random, one small change at a time: the tests must notice.

    python -m tests.mutation [ROOMS...] [--count N] [--seed S] [--threshold PERCENT] [--map FILE]

``ROOMS``: folders or files. ``--count``: how many changes, drawn from all that these have; each is
as likely as any other. For each of them the tests run that execute the changed statement, until
one fails: first those that noticed other changes of the function, then the fastest. Which tests
these are is found out first, in some minutes, and kept in ``--map`` for the next time. What counts
is CPU time: another load of the machine makes no other verdict.

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
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

from tests.mutation._mutator import Change, changes_of
from tests.support.broken_tree import ROOT, SEED, Tree

ROOMS = [
    "eventlog/files",
    "eventlog/format",
    "eventlog/read",
    "eventlog/repair",
    "eventlog/write",
    "recovery/calls",
    "recovery/engine",
    "recovery/history",
    "recovery/journal",
    "recovery/replay",
]
EQUIVALENT = Path(__file__).with_name("equivalent.txt")
SUITE = [
    "unit/eventlog/**/test_*.py",
    "unit/recovery/**/test_*.py",
    "unit/integrations/otel/test_*.py",
    "unit/logdump/test_*.py",
    "unit/testing/test_replay.py",
    "contract/**/test_*.py",
    "cli/screens/test_golden.py",
    "cli/test_deciding.py",
    "cli/test_repair.py",
    "cli/test_verify.py",
    "property/*.py",
    "model/test_programs.py",
    "conformance/test_stores.py",
    "docs/test_guarantees.py",
    "fuzz/test_corpus.py",
]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("rooms", nargs="*", metavar="ROOMS", default=ROOMS)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="changes at a time")
    parser.add_argument("--limit", type=float, default=60, help="seconds of CPU for one change")
    parser.add_argument("--threshold", type=float, default=0.0)
    parser.add_argument("--map", type=Path, help="the map of the tests, written if it is not there")
    parser.add_argument("--again", type=Path, help="only what a former output says was not caught")
    args = parser.parse_args()
    chosen = [one for file in modules(args.rooms) for one in changes_of(ROOT, file)]
    if args.again is not None:
        missed = not_caught(args.again)
        chosen = [one for one in chosen if one.name in missed]
    chosen = random.Random(args.seed).sample(chosen, min(args.count, len(chosen)))
    known = equivalent()
    counted = [one for one in chosen if one.name not in known]
    print(
        f"{len(chosen)} changes, {len(chosen) - len(counted)} of them known to alter nothing; "
        f"seed {args.seed}",
        flush=True,
    )
    with tempfile.TemporaryDirectory(prefix="mutation-") as scratch:
        verdicts = _tried(counted, Path(scratch), args)
    print(table(verdicts))
    total = sum(verdicts.values(), Counter[str]())
    caught = 100 * total["caught"] / max(1, total.total())
    print(f"caught {caught:.1f} % (seed {args.seed})")
    return 1 if caught < args.threshold else 0


def modules(rooms: Iterable[str]) -> list[str]:
    """The files of these rooms; a room may be a file."""
    found = [path for room in rooms for path in sorted((ROOT / room).rglob("*.py"))]
    files = [room for room in rooms if room.endswith(".py")]
    return files + [str(path.relative_to(ROOT)) for path in found]


def equivalent() -> set[str]:
    """The names of changes that no test can notice."""
    lines = EQUIVALENT.read_text(encoding="utf-8").splitlines()
    return {line.rpartition("  # ")[0].strip() for line in lines if "  # " in line}


def not_caught(output: Path) -> set[str]:
    """The names of changes that the output of a former run says nobody noticed."""
    pattern = r"^(?:survived|hangs|unfinished) .* tests  line \d+ of (.*?)  .*$"
    return set(re.findall(pattern, output.read_text(encoding="utf-8"), re.M))


def table(verdicts: dict[str, Counter[str]]) -> str:
    """What came of the changes, by room."""
    heads = "caught", "survived", "hangs", "unfinished"
    lines = [f"| room | changes | {' | '.join(heads)} | share |", "|---" * 7 + "|"]
    for room, found in sorted(verdicts.items()):
        cells = [room, found.total(), *(found[head] for head in heads)]
        share = f"{100 * found['caught'] / max(1, found.total()):.0f}%"
        lines.append(f"| {' | '.join(map(str, cells))} | {share} |")
    return "\n".join(lines)


def _tried(
    changes: list[Change], scratch: Path, args: argparse.Namespace
) -> dict[str, Counter[str]]:
    tree = Tree(scratch / "tree")
    tree.copy(ROOT)
    plan, found = scratch / "plan.json", scratch / "found.json"
    plan.write_text(
        json.dumps(
            {
                "changes": [one.row for one in changes],
                "files": modules(dict.fromkeys([*ROOMS, *args.rooms])),
                "map_to": str((args.map or scratch / "map.json").resolve()),
                "found_to": str(found),
                "jobs": args.jobs,
                "limit_s": args.limit,
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
    verdicts = defaultdict[str, Counter[str]](Counter)
    for file, *_, verdict, _ in map(json.loads, found.read_text().splitlines()):
        verdicts[str(Path(file).parent)][verdict] += 1
    return verdicts


if __name__ == "__main__":
    sys.exit(main())
