"""examples/pydantic_ai_shop.py: run as users run it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.installed import skip_without
from tests.support.paths import ROOT

skip_without("pydantic_ai")


def test_the_shop_dies_while_it_pays_and_pays_once(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples/pydantic_ai_shop.py"), str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert ended.stdout.splitlines() == [
        "in doubt: pay; the bank says: paid",
        "approved: refund.approval {'cents': 100}",
        "Tea is paid, and a part is refunded.",
        "payments: 1",
    ]
