"""``python -m tools.bench [NAME ...] [--out FILE]``."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from . import append, checkpoint, encryption, resume
from ._measure import environment, real_time, table

BENCHMARKS = {
    "append": append,
    "checkpoint": checkpoint,
    "encryption": encryption,
    "resume": resume,
}


def main(argv: list[str] | None = None) -> int:
    """Run what is named, or all; print tables, write JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench",
        description="Benchmarks, each in turns with a yardstick: look at the ratios.",
    )
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    add("--out", type=Path, metavar="FILE", help="write the figures as JSON")
    add("--dir", type=Path, default=Path.cwd(), help="on the disk to be measured (default: here)")
    add("--scale", type=float, default=1.0, help="so many times the repetitions, and steps")
    args = parser.parse_args(argv)
    unknown = [name for name in args.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"no benchmark {unknown[0]!r}; there are {', '.join(BENCHMARKS)}")
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=args.dir) as made:
        directory = Path(made).resolve()
        found: dict[str, Any] = {"environment": environment(directory, real_time())}
        for key, value in found["environment"].items():
            print(f"{key:12} {value}")
        for name in args.names or BENCHMARKS:
            module = BENCHMARKS[name]
            results = module.run(directory, args.scale)
            print()
            print(table(module.TITLE, module.YARDSTICK, results), end="", flush=True)
            found[name] = {
                "title": module.TITLE,
                "yardstick": module.YARDSTICK,
                "results": [one.as_json() for one in results],
            }
    if args.out:
        args.out.write_text(json.dumps(found, indent=2) + "\n")
        print(f"\nwritten to {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
