"""Cases as files: a program, a schedule, and which rule it broke."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.model.hunt import Case
from tests.model.language import from_json, to_json
from tests.model.rules import Finding

HERE = Path(__file__).parent / "corpus"


def save(path: Path, case: Case, finding: Finding, **more: Any) -> None:
    """Write a case that was found."""
    path.parent.mkdir(parents=True, exist_ok=True)
    found = {
        "rule": finding.rule,
        "found": finding.what,
        **more,
        "program": to_json(case.program),
        "schedule": to_json(case.schedule),
    }
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def read(path: Path) -> tuple[Case, dict[str, Any]]:
    """The case of a file, and what else the file says."""
    found = json.loads(path.read_text(encoding="utf-8"))
    return Case(from_json(found.pop("program")), from_json(found.pop("schedule"))), found
