"""Checks the models of ownership with Debian's `spin`: all behaviours within the stated bounds.

`python -m tests.ownership` checks the larger bounds, in some minutes.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

MODELS = Path(__file__).parent
# Three owners without faults of the network; and two with an append whose answer does not come, and
# a restart of the server. Together, 3 owners with both take a minute.
OWNERS, FAULTS = ("UNKNOWNS=0", "RESTARTS=0"), ("LIVES=1",)

# What is printed when a property fails, by its name in the model.
PROPERTIES = {
    "STALE": "who>=epoch|me>=epoch",
    "TWICE": r"kind\[n\]!=",
    "LOST": r"acknowledged<=length|over\[me\]",
    "INTENT": "at<flushed",
    "FENCE": "me>=highest",
    "ONCE": "effects==1",
    "FINISHED": r"invalid end state|rescues",
    "UNIQUE": r"used\[me\]",
    "CLAIMABLE": r"!\(last\)",
}


@dataclass(frozen=True)
class Found:
    """What the checker found: a name of PROPERTIES, "" if all hold; in how many states."""

    failed: str
    states: int
    said: str


def missing() -> str:
    """What is not installed; "" if the models can be checked."""
    return ", ".join(name for name in ("spin", "gcc") if shutil.which(name) is None)


def check(model: str, place: Path, *switches: str, optimize: str = "-O0") -> Found:
    """Check a model, compiled with these switches (names of -D). Compiling takes longer than small
    bounds do."""
    shutil.copy(MODELS / f"{model}.pml", place / "model.pml")
    flags = [f"-D{switch}" for switch in switches]
    _run(place, "spin", *flags, "-a", "model.pml")
    options = ("-w", optimize, "-DSAFETY", "-DCOLLAPSE", "-DMEMLIM=4000")
    _run(place, "gcc", *options, "-o", "pan", "pan.c")
    said = _run(place, "./pan", "-m200000", "-n")
    states = re.search(r"(\S+) states, stored", said)
    if "depth limit reached" in said or "max search depth too small" in said or states is None:
        raise AssertionError(f"the search is not complete:\n{said}")
    error = re.search(r"pan:1: (.*)", said)
    text = error.group(1).replace(" ", "") if error else ""
    found = [name for name, of in PROPERTIES.items() if re.search(of.replace(" ", ""), text)]
    assert len(found) == bool(error), said
    return Found(found[0] if found else "", int(float(states.group(1))), said)


def _run(place: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout
