"""``python -m tools.bench.soak``: starts the processes, kills one of them, and judges."""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from .._environment import environment
from .._worker import ROOT
from ._judge import Verdict, judge, pictures, unsettled
from ._vitals import EVERY_S, lines

KILL_EVERY_S = (5.0, 60.0)
SETTLE_S = 3.0


def main(argv: list[str] | None = None) -> int:
    """Soak, write figures and charts, and say whether anything was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.soak", description=__doc__)
    add = parser.add_argument
    add("--minutes", type=float, default=60.0)
    add("--agents", type=int, default=200)
    add("--seed", type=int, default=random.randrange(1 << 32))
    add("--dir", type=Path, default=Path.cwd(), help="on the disk to be used (default: here)")
    add("--out", type=Path, metavar="DIR", help="write figures as JSON, and charts, there")
    args = parser.parse_args(argv)
    print(f"{args.agents} agents, {args.minutes:g} minutes, seed {args.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix=".soak-", dir=args.dir) as made:
        soak = Soak(Path(made).resolve(), args.agents, args.seed)
        soak.run(args.minutes * 60)
        verdict = soak.verdict()
        where = environment(args.dir)
    for line in verdict.lines:
        print(line)
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
        figures = {
            "minutes": args.minutes,
            "agents": args.agents,
            "seed": args.seed,
            "environment": where,
            **verdict.as_json(),
        }
        (args.out / "soak.json").write_text(json.dumps(figures, indent=1) + "\n")
        pictures(args.out / "soak.svg", verdict)
    return 0 if verdict.sound else 1


class Soak:
    """The processes, and what is seen of them from outside."""

    def __init__(self, directory: Path, agents: int, seed: int) -> None:
        self._directory, self._agents, self._seed = directory, agents, seed
        for name in ("runs", "effects", "journal"):
            (directory / name).mkdir()
        self._choose = random.Random(seed)
        self._outside: list[dict[str, Any]] = []
        self._kills = 0

    def run(self, seconds: float) -> None:
        """For so long."""
        lasting, killed = self._start_agents("lasting"), self._start_agents("killed")
        reader = self._start("_reader", str(self._directory))
        end, look, kill = time.monotonic() + seconds, 0.0, self._next_kill()
        try:
            while time.monotonic() < end:
                time.sleep(0.05)
                if time.monotonic() >= kill:
                    killed.kill()
                    killed.wait()
                    killed = self._start_agents("killed")
                    self._kills, kill = self._kills + 1, self._next_kill()
                if time.monotonic() >= look:
                    self._look()
                    look = time.monotonic() + EVERY_S
                for process in (lasting, reader):
                    if process.poll() is not None:
                        raise RuntimeError(f"{process.args!r} ended: see above")
        finally:
            for process in (lasting, killed, reader):
                if process is reader:
                    time.sleep(SETTLE_S)  # it gets to the end of what there is
                process.kill()
                process.wait()

    def verdict(self) -> Verdict:
        """What came of it."""
        names = ("lasting", "killed", "reader")
        vitals = {name: lines(self._directory / f"{name}.vitals") for name in names}
        wrong = self._directory / "wrong"
        found = wrong.read_text().splitlines() if wrong.exists() else []
        for log in sorted((self._directory / "runs").iterdir()):
            found += unsettled(log, self._directory / "effects" / log.name)
        return judge(vitals, self._outside, found, self._kills)

    def _start(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", f"tools.bench.soak.{program}", *arguments]
        return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)})

    def _start_agents(self, name: str) -> subprocess.Popen[bytes]:
        seed = self._choose.randrange(1 << 32)
        half = str(self._agents // 2)
        return self._start("_agents", name, str(self._directory), half, str(seed))

    def _next_kill(self) -> float:
        return time.monotonic() + self._choose.uniform(*KILL_EVERY_S)

    def _look(self) -> None:
        """Runs, segments and bytes on disk; what is being removed meanwhile is passed over."""
        runs = segments = size = journal = 0
        for where in ("runs", "journal"):
            for log in os.scandir(self._directory / where):
                runs += where == "runs"
                try:
                    files = [entry for entry in os.scandir(log) if entry.is_file()]
                    size += sum(entry.stat().st_blocks * 512 for entry in files)
                except FileNotFoundError:
                    continue
                found = sum(entry.name.endswith(".seg") for entry in files)
                segments += found
                journal += found if where == "journal" else 0
        self._outside.append(
            {
                "at": time.time(),
                "runs": runs,
                "segments": segments,
                "journal_segments": journal,
                "mb": size / 1e6,
            }
        )


if __name__ == "__main__":
    sys.exit(main())
