"""The library broken on purpose, once for each rule: ``python -m tests.model.breaks [NAME ...]``.

What random programs cannot find, though a rule is broken, is a hole in their language.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.mutants._mutant import Edit
from tests.mutants._tree import ROOT, Tree

SECONDS = 200  # of the processor, for each
BREAKS = {
    "what is open inside a call is forgotten": Edit(
        "recovery/_inside.py",
        "    lsn = scope.calls[-1]\n    cut = isinstance(",
        "    return\n    lsn = scope.calls[-1]\n    cut = isinstance(",
    ),
    "a further attempt makes the calls of the last one again": Edit(
        "recovery/_inside.py",
        "    if scope.used or run.replay.earlier.knows(lsn):\n",
        "    if False:\n",
    ),
    "the code before the loop sets the state anew": Edit(
        "recovery/_run_state.py",
        "        self._restored = frozenset(values)\n",
        "        self._restored = None\n",
    ),
    "captured variables are not compared": Edit(
        "recovery/_call.py", "    if why is not None:\n", "    if False:\n"
    ),
    "what a partial binds tells no calls apart": Edit(
        "recovery/_identity.py",
        "    if spec.owner or isinstance(spec.function, partial):\n",
        "    if spec.owner:\n",
    ),
    "a result that cannot be recorded is a failure": Edit(
        "recovery/_attempts.py",
        "    except RefusedValueError as exc:\n"
        "        refuse_result(run, spec, call, exc, value)\n",
        "    except RefusedValueError:\n        raise\n",
    ),
    "outcomes are served in any order": Edit(
        "recovery/_call.py",
        "        yield Wait("
        "lambda: run.ends(scope) or run.replay.is_next(outcome), turn=outcome)\n",
        "        yield Wait(lambda: True, turn=0)\n",
    ),
    "a signal is spent before the agent has it": Edit(
        "recovery/_waiting.py",
        "        )  # fmt: skip\n    return Settled(run.emit(event), event)\n",
        "        )  # fmt: skip\n    settled = Settled(run.emit(event), event)\n"
        "    yield Nap(0.5)\n    return settled\n",
    ),
    "a stop cuts what is inside a side effect": Edit(
        "recovery/_run.py",
        "self.interruptible.items() if busy.isdisjoint(calls)}",
        "self.interruptible.items() if calls[-1] not in busy}",
    ),
}


def hunt(name: str, folder: Path) -> str:
    """Which program finds it; "" when none does."""
    tree = Tree(folder / "broken")
    if not tree.root.exists():
        tree.copy(ROOT)
    edit = BREAKS[name]
    with tree.changed(edit.file):
        edit.apply(tree.root)
        command = [sys.executable, "-m", "tests.model", "--programs", "5000", "--seed", "1",
                   "--seconds", str(SECONDS), "--stop"]  # fmt: skip
        environment = os.environ | {
            "PYTHONPATH": f"{tree.root}{os.pathsep}{tree.root / 'tools'}",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        done = subprocess.run(command, check=False, cwd=tree.root, env=environment, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
    assert str(tree.root / "recovery") in done.stdout, done.stdout
    found = re.search(r"^program (\d+) of seed \d+: (\w+: .*)$", done.stdout, re.M)
    return f"program {found[1]}, {found[2]:.120}" if found else ""


def main() -> int:
    """Try each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BREAKS))
    given = parser.parse_args()
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in given.names or BREAKS:
            found = hunt(name, Path(folder))
            missed += not found
            print(f"{name}: {found or 'MISSED'}", flush=True)
    return missed


if __name__ == "__main__":
    sys.exit(main())
