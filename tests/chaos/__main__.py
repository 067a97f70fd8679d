"""`python -m tests.chaos [STORE]`: workers that are killed, stopped and cut off finish their runs.

STORE is a path or a URL, or "postgres": a private server, which is killed too.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path
from tempfile import mkdtemp

from tests.chaos.chaos import Plan, chaos
from tests.support.postgres import Server


def main() -> int:
    """0 if nothing is bad."""
    parser = argparse.ArgumentParser(prog="tests.chaos", description=__doc__)
    parser.add_argument("store", nargs="?", default="postgres")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--minutes", type=float, default=6.0, help="of faults")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    given = parser.parse_args()
    place = Path(mkdtemp(prefix="chaos-"))
    print(f"seed {given.seed}; notes of the workers in {place}", flush=True)
    plan = Plan(given.seed, given.workers, given.runs, given.steps, given.minutes * 60)
    server = Server() if given.store == "postgres" else None
    try:
        found = chaos(server.url() if server else given.store, place, plan, server)
    finally:
        if server:
            server.remove()
    print(found)
    return int(bool(found.bad))


if __name__ == "__main__":
    sys.exit(main())
