"""The library broken on purpose, for each rule: ``python -m tests.model.breaks [NAME ...]``.

What random programs cannot find, though a rule is broken, is a hole in their language. A finding
counts where the same program with the same faults is sound without the break.

No program of this language can see the rules for threads that read a log, for mistakes in the use
of the interface, and for the interface of the task: it has no second thread, and no mistakes.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.model.corpus_files import read
from tests.model.rules import judged
from tests.support.broken_tree import ROOT, Edit, Tree

SECONDS, SEED = 200, 1  # of the processor, for each, at most
BREAKS: dict[str, tuple[Edit, ...]] = {
    "what is open inside a call is forgotten": (
        Edit(
            "recovery/calls/attempt_end.py",
            "    lsn = scope.calls[-1]\n    cut = isinstance(",
            "    return\n    lsn = scope.calls[-1]\n    cut = isinstance(",
        ),
        Edit(
            "recovery/replay/matching.py",
            "            if call.is_open_effect\n            or not replay._covered(",
            "            if not replay._covered(",
        ),
    ),
    "a stop cuts what is inside a side effect": (
        Edit(
            "recovery/agent/executions.py",
            "in interruptible if busy.isdisjoint(calls)}",
            "in interruptible if calls[-1] not in busy}",
        ),
    ),
    "a further attempt makes the calls of the last one again": (
        Edit(
            "recovery/calls/attempt_end.py",
            "    if scope.used or run.replay.earlier.has_calls_inside(lsn):\n",
            "    if False:\n",
        ),
    ),
    "the code before the loop sets the state anew": (
        Edit(
            "recovery/history/run_state.py",
            "        self._restored = frozenset(values)\n",
            "        self._restored = None\n",
        ),
    ),
    "nobody is told of locals that are lost": (
        Edit(
            "recovery/agent/recoverable.py",
            "                warn_of_lost_locals(self.agent_fn)\n",
            "                pass\n",
        ),
    ),
    "captured variables are not compared": (
        Edit("recovery/calls/carry_out_call.py", "    if why is not None:\n", "    if False:\n"),
    ),
    "what a partial binds tells no calls apart": (
        Edit(
            "recovery/calls/identity.py",
            "    if spec.owner or isinstance(spec.function, partial):\n",
            "    if spec.owner:\n",
        ),
    ),
    "a result that cannot be recorded is a failure": (
        Edit(
            "recovery/calls/attempts.py",
            "    except RefusedValueError as exc:\n"
            "        refuse_result(run, spec, call, exc, marked or value)\n",
            "    except RefusedValueError:\n        raise\n",
        ),
    ),
    "an error of the agent is not recorded": (
        Edit(
            "recovery/agent/agent_errors.py",
            "        record(log, history, event)\n        log.commit_behind()\n",
            "        return\n",
        ),
    ),
    "outcomes are served in any order": (
        Edit(
            "recovery/calls/carry_out_call.py",
            "lambda: replay.is_next(outcome), turn=outcome",
            "lambda: True, turn=0",
        ),
    ),
    "a signal is spent before the agent has it": (
        Edit(
            "recovery/calls/waiting.py",
            "        )\n    return CallOutcome(run.record(event), event)\n",
            "        )\n    settled = CallOutcome(run.record(event), event)\n"
            "    yield Sleep(5)\n    return settled\n",
        ),
    ),
    "a yes that comes too late counts": (
        Edit(
            "recovery/control/send.py",
            "        if now <= call.asks_until\n",
            "",
        ),
        Edit(
            "recovery/control/send.py",
            "    if time_ns_of(backend_of(store)) / 1e9 > until:\n",
            "    if False:\n",
        ),
        Edit(
            "recovery/control/send.py",
            "    if _sent_at(store, run_id, lsn) > until:",
            "    if False:",
        ),
        Edit(
            "recovery/calls/approval.py",
            "made.is_after(self.last_decision) and made.time_ns / 1e9 <= self.until",
            "made.is_after(self.last_decision)",
        ),
    ),
    "a fork gives calls in doubt keys of their own": (
        Edit(
            "recovery/ops/record_copy.py", 'body["key"] = event.idempotency_key(self._uid)', "pass"
        ),
    ),
    "a budget is exceeded by one call": (
        Edit("recovery/declare/budget.py", "spent >= limit", "spent > limit"),
    ),
    "recoveries are counted anew behind a checkpoint": (
        Edit("recovery/history/load.py", "(restored.recoveries if restored else 0)", "0"),
    ),
    "a checkpoint forgets the calls before the loop": (
        Edit("recovery/engine/execution.py", "prologue=tuple(self._prologue),", "prologue=(),"),
    ),
    "a call of plain code begins before it is durably known": (
        Edit(
            "recovery/agent/drivers.py",
            "            case Commit():\n                return self.commit()\n",
            "            case Commit():\n                return None\n",
        ),
    ),
}


OFTEN = {  # what a break is about, where few programs have it
    "a stop cuts what is inside a side effect": "calls in a side effect",
    "outcomes are served in any order": "order",
    "a signal is spent before the agent has it": "wait_for",
    "a yes that comes too late counts": "approval",
    "nobody is told of locals that are lost": "locals",
    "captured variables are not compared": "nameless",
    "what a partial binds tells no calls apart": "methods",
    "a result that cannot be recorded is a failure": "unrecordable",
}


def hunt(name: str, tree: Tree, seconds: float) -> str:
    """Which program finds it; "" when none does."""
    edits = BREAKS[name]
    end, false = time.monotonic() + 20 * seconds, ""
    (tree.root / "kept").unlink(missing_ok=True)
    with tree.changed(*{edit.file for edit in edits}):
        for edit in edits:
            edit.apply(tree.root)
        while seconds > 0 and time.monotonic() < end:
            number, spent = broken(tree, seconds, OFTEN.get(name, ""))
            if number is None:
                break
            seconds -= spent
            (path,) = (tree.root / "found").glob("*.json")
            case, said = read(path)
            path.unlink()
            without = judged(case.program, case.schedule).findings
            if not without:
                return f"program {number + 1}{false}: {said['rule']}: {said['found']:.100}"
            false = f"{false}, not {number + 1} (without the break: {without})"
    return ""


def broken(tree: Tree, seconds: float, often: str) -> tuple[int | None, float]:
    """The next program that fails in the broken tree, and the time that it took."""
    command = [
        sys.executable,
        "-m",
        "tests.model",
        "--programs",
        "5000",
        "--seed",
        str(SEED),
        "--kept",
        str(tree.root / "kept"),
        "--minutes",
        str(seconds / 60),
        "--stop",
        "--save",
        str(tree.root / "found"),
        *(("--often", often) if often else ()),
    ]
    environment = os.environ | {
        "PYTHONPATH": f"{tree.root}{os.pathsep}{tree.root / 'tools'}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run(
        command,
        check=False,
        cwd=tree.root,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert str(tree.root / "recovery") in done.stdout, done.stdout
    spent = re.search(r" in ([0-9.]+) s; found", done.stdout)
    assert spent, done.stdout
    found = re.search(r"^program (\d+) of seed \d+: (\w+: .*)$", done.stdout, re.M)
    return int(found[1]) if found else None, float(spent[1])


def main() -> int:
    """Try each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BREAKS))
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of the processor, for each")
    given = parser.parse_args()
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Tree(Path(folder) / "broken")
        tree.copy(ROOT)
        for name in given.names or BREAKS:
            found = hunt(name, tree, given.seconds)
            missed += not found
            print(f"{name}: {found or 'MISSED'}", flush=True)
    return missed


if __name__ == "__main__":
    sys.exit(main())
