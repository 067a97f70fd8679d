"""Fuzz all targets in turn, or those that are named: `python -m tests.fuzz [TARGET...]`.

Needs atheris (`pip install 'agent-eventlog[fuzz]'`). An input that breaks a promise is kept in
WORK/crashes/TARGET, the shortest for each place that raises, and fuzzing goes on. Inputs that reach
what no kept one does are added to tests/fuzz/corpus/TARGET at the end.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"
SIZE_MAX = 4096  # bytes of one input
FILES_MAX = 300  # of one target's corpus
TIMEOUT_S, MEMORY_MIB = 20, 2048  # of one input: more is a finding

_DONE = re.compile(r"#(\d+)\s+DONE\s+cov: (\d+) ft: (\d+) corp: (\d+)")


def main() -> int:
    """The exit code: 1 when anything was found."""
    args = _arguments()
    with tempfile.TemporaryDirectory() as scratch:
        work = args.work or Path(scratch)
        names, until = args.targets or list(TARGETS), time.monotonic() + args.seconds
        turn = min(args.turn, max(1, args.seconds // len(names)))
        while (left := until - time.monotonic()) >= 1:
            target = names[0]
            names = [*names[1:], target]
            seconds = min(turn, int(left))
            turned = _fuzz(target, seconds, work)
            print(f"{target}: {turned}", flush=True)
            if args.json and isinstance(turned, Turn):
                _add(args.json, target, seconds, turned)
        for target in sorted(names):
            print(f"{target}: {_merge(target, work)} inputs kept in {CORPUS / target}")
        found = sorted((work / "crashes").glob("*/*.txt"))
        for path in found:
            print(f"{path}\n{path.read_text()}\ninput: {path.with_suffix('').read_bytes()!r}")
    return 1 if found else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--seconds", type=int, default=60, help="for all together (default 60)")
    parser.add_argument("--turn", type=int, default=600, help="seconds at a time (default 600)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="add the figures to those there")
    parser.add_argument("--work", type=Path, help="keep what is found there, and go on from it")
    args = parser.parse_args()
    if unknown := set(args.targets) - set(TARGETS):
        parser.error(f"{', '.join(unknown)}: the targets are {', '.join(TARGETS)}")
    return args


@dataclass(frozen=True, slots=True)
class Turn:
    """What a turn of one target came to."""

    executions: int
    edges: int
    features: int
    inputs: int
    findings: int

    def __str__(self) -> str:
        return (
            f"{self.executions} executions, {self.edges} edges, {self.features} features, "
            f"{self.inputs} inputs, {self.findings} findings"
        )


def _add(file: Path, target: str, seconds: int, turn: Turn) -> None:
    figures = json.loads(file.read_text()) if file.exists() else {}
    one = figures.setdefault(target, {"seconds": 0, "executions": 0})
    one["seconds"] += seconds
    one["executions"] += turn.executions
    one |= {"edges": turn.edges, "inputs": turn.inputs}
    file.write_text(json.dumps(figures, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _fuzz(target: str, seconds: int, work: Path) -> Turn | str:
    """One turn, or how it ended early."""
    inputs, crashes = work / "inputs" / target, work / "crashes" / target
    for folder in (inputs, crashes, CORPUS / target):
        folder.mkdir(parents=True, exist_ok=True)
    said = _atheris(
        target,
        crashes,
        f"-max_total_time={seconds}",
        f"-max_len={SIZE_MAX}",
        f"-timeout={TIMEOUT_S}",
        f"-rss_limit_mb={MEMORY_MIB}",
        f"-artifact_prefix={crashes}/",
        str(inputs),
        str(CORPUS / target),
    )
    done = _DONE.search(said)
    if done is None:
        (crashes / f"ended-{int(time.time())}.txt").write_text(said[-20000:])
        return f"ENDED EARLY, see {crashes}\n{said[-2000:]}"
    executions, edges, features, kept = map(int, done.groups())
    return Turn(executions, edges, features, kept, said.count("\nFOUND "))


def _merge(target: str, work: Path) -> int:
    """Add to the corpus the inputs that reach more than it does; how many it has then."""
    corpus = CORPUS / target
    corpus.mkdir(parents=True, exist_ok=True)
    inputs = work / "inputs" / target
    if inputs.exists():
        _atheris(
            target, work / "merge", "-merge=1", f"-max_len={SIZE_MAX}", str(corpus), str(inputs)
        )
    kept = sorted(corpus.iterdir(), key=lambda path: path.stat().st_size)
    for i, path in enumerate(kept):
        if i >= FILES_MAX or _breaks(target, path.read_bytes()):  # then it is a finding
            path.unlink()
    return len(list(corpus.iterdir()))


def _breaks(target: str, data: bytes) -> bool:
    try:
        TARGETS[target](data)
    except Exception:
        return True
    return False


def _atheris(target: str, findings: Path, *options: str) -> str:
    """What atheris says on its standard error."""
    command = [sys.executable, "-m", "tests.fuzz._atheris", target, str(findings), *options]
    return subprocess.run(command, capture_output=True, check=False).stderr.decode(errors="replace")


if __name__ == "__main__":
    sys.exit(main())
