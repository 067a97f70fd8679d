"""Is this checkout slower than another one? Both in turns, in one run:

    python -m tools.bench.against CHECKOUT [--dir DIR] [--scale SCALE]

Prints, for each case, this checkout's time (or CPU) as a ratio to the other's: the median of the
ratios of turns that followed one another. Above 1 is slower.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from ._result import median
from ._worker import Subject, Worker

SIZE, TURN, ROUNDS = 2 << 10, 50, 20
STEPS = {1: 300, 100: 30}  # of each run, by how many run at once
_Workers = tuple[Worker, Worker]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.bench.against", description=__doc__)
    parser.add_argument("other", type=Path, metavar="CHECKOUT")
    parser.add_argument("--dir", type=Path, default=Path.cwd(), help="on the disk to be measured")
    parser.add_argument("--scale", type=float, default=1.0)
    args = parser.parse_args(argv)
    rounds = max(2, round(ROUNDS * args.scale))
    roots = (Path(__file__).parents[2], args.other.resolve())
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=args.dir) as place:
        for name, read, clock in (
            ("read-only step, CPU", True, "cpu"),
            ("read-only step", True, "steps"),
            ("side-effect step, CPU", False, "cpu"),
            ("side-effect step", False, "steps"),
        ):
            case = {"size": SIZE, "read": read, "real_time": True}
            with ExitStack() as held:
                pair = _pair("agents:Async", roots, Path(place) / name, case, held)
                _say(name, _turns(pair, clock, rounds))
        for runs, steps in STEPS.items():
            with ExitStack() as held:
                where = Path(place) / str(runs)
                pair = _pair("agents:Together", roots, where, {"size": SIZE}, held)
                _say(f"{runs} runs at once", _together(pair, runs, steps, max(2, rounds // 2)))


def _pair(
    kind: str, roots: tuple[Path, Path], place: Path, case: Mapping[str, object], held: ExitStack
) -> _Workers:
    made = [
        held.enter_context(Worker(Subject(str(root), kind, root=root), place / str(i), case))
        for i, root in enumerate(roots)
    ]
    return made[0], made[1]


def _turns(pair: _Workers, clock: str, rounds: int) -> list[tuple[float, float]]:
    found = []
    for number in range(rounds + 2):
        both = [
            median(one.ask(clock, first=number * TURN + 1, count=TURN))
            for one in (pair if number % 2 else pair[::-1])
        ]
        found.append((both[0], both[1]) if number % 2 else (both[1], both[0]))
    return found[2:]  # the first two warm up


def _together(pair: _Workers, runs: int, steps: int, rounds: int) -> list[tuple[float, float]]:
    found = []
    for number in range(rounds + 1):
        both = []
        for one in pair if number % 2 else pair[::-1]:
            took = one.ask("together", runs=runs, steps=steps)
            both.append(took["seconds"] / took["steps"])
        found.append((both[0], both[1]) if number % 2 else (both[1], both[0]))
    return found[1:]


def _say(name: str, turns: list[tuple[float, float]]) -> None:
    ours, theirs = (median([turn[side] for turn in turns]) * 1e6 for side in (0, 1))
    slower = median([here / there for here, there in turns])
    print(f"{name:22} {ours:8.1f} us, was {theirs:8.1f} us: {slower:.3f}x", flush=True)


if __name__ == "__main__":
    main()
