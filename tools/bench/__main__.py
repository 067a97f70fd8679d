"""``python -m tools.bench [NAME ...] [--out DIRECTORY]``."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from . import (
    append,
    checkpoint,
    concurrency,
    encryption,
    footprint,
    graphs,
    growth,
    imports,
    postgres,
    resume,
    scaling,
    scan,
    step,
    threads,
    toolcalls,
    unsynced,
)
from ._bench import Bench, Benchmark
from ._chart import draw
from ._environment import environment, journalled, mount_of
from ._result import table

BENCHMARKS: dict[str, Benchmark] = {
    "append": append,
    "unsynced": unsynced,
    "concurrency": concurrency,
    "postgres": postgres,
    "step": step,
    "resume": resume,
    "checkpoint": checkpoint,
    "graphs": graphs,
    "threads": threads,
    "toolcalls": toolcalls,
    "growth": growth,
    "scaling": scaling,
    "scan": scan,
    "memory": footprint,
    "import": imports,
    "encryption": encryption,
}


QUICK = 0.1


def main(argv: list[str] | None = None) -> int:
    """Run what is named, or all; print tables, and write JSON and charts."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench",
        description="Benchmarks, each in turns with its yardsticks: look at the ratios.",
    )
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    add("--out", type=Path, metavar="DIR", help="write figures as JSON, and charts, there")
    add("--dir", type=Path, default=Path.cwd(), help="on the disk to be measured (default: here)")
    add("--scale", type=float, default=1.0, help="so many times the repetitions, and steps")
    add("--quick", action="store_true", help="the same as --scale 0.1 --no-peers")
    add("--no-peers", action="store_true", help="leave out other packages (and install none)")
    add(
        "--sizes",
        type=_sizes,
        default=(),
        metavar="N,N",
        help="of graphs: so many nodes; of threads: steps",
    )
    args = parser.parse_args(argv)
    if args.quick:
        args.scale, args.no_peers = QUICK, True
    unknown = [name for name in args.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"no benchmark {unknown[0]!r}; there are {', '.join(BENCHMARKS)}")
    for name in args.names or BENCHMARKS:
        _run(name, args)
    return 0


def _sizes(text: str) -> list[int]:
    return [int(one) for one in text.split(",")]


def _run(name: str, args: argparse.Namespace) -> None:
    module = BENCHMARKS[name]
    with ExitStack() as held:
        made = held.enter_context(tempfile.TemporaryDirectory(prefix=".bench-", dir=args.dir))
        directory = Path(made).resolve()
        with_journal = held.enter_context(journalled(directory))
        bench = Bench(directory, with_journal, args.scale, not args.no_peers, args.sizes)
        found: dict[str, Any] = environment(directory)
        if with_journal is not None:
            found["file system with a journal"] = f"{mount_of(with_journal)}, on a loop device"
        results = module.run(bench)
    aims = module.aims(results)
    print(f"\n{module.TITLE}\n\n{table(module.UNIT, module.YARDSTICK, results)}\n")
    print("\n".join(map(str, aims)), flush=True)
    if args.out is None:
        return
    args.out.mkdir(parents=True, exist_ok=True)
    figures = {
        "scale": args.scale,
        "environment": found,
        "results": [one.as_json() for one in results],
        "aims": [one.as_json() for one in aims],
    }
    (args.out / f"{name}.json").write_text(json.dumps(figures, indent=1) + "\n")
    draw(args.out / f"{name}.svg", module.TITLE, module.UNIT, module.CHART, results)


if __name__ == "__main__":
    sys.exit(main())
