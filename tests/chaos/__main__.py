"""`python -m tests.chaos [STORE] --runs 200 --minutes 5`: workers under SIGKILL and SIGSTOP."""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.chaos.chaos import chaos


def main() -> int:
    """0 if nothing is bad."""
    parser = argparse.ArgumentParser(prog="tests.chaos", description=__doc__)
    parser.add_argument("store", nargs="?", help="a path or a URL; a new directory if not given")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--minutes", type=float, default=6.0, help="until all must have finished")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    given = parser.parse_args()
    print(f"seed {given.seed}")
    with TemporaryDirectory() as place:
        size = given.workers, given.runs, given.steps
        where = given.store or f"{place}/store"
        found = chaos(where, Path(place), random.Random(given.seed), size, given.minutes * 60)
    print(found)
    return int(bool(found.bad))


if __name__ == "__main__":
    sys.exit(main())
