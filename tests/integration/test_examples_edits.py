"""examples/edits.py: run as users run it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "edits.py"


def test_a_mistaken_edit_is_told_and_a_harmless_one_finishes_the_run(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.splitlines() == [
        "refunding 1000 cents for order-1",
        "refunding 2500 cents for order-2",
        "the process dies here",
        "stopped: args[1]: 2500 -> 250000",
        "refunding 4000 cents for order-3",
        "['refunded order-2', 'refunded order-1', 'refunded order-3']",
    ]
