"""What importing the library imports: little, and nothing heavy before it is needed."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePosixPath
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest

import recovery
from recovery import _rarely
from recovery._values import pack, unpack

ROOT = Path(__file__).parents[2]

# Modules that take a millisecond and more, are imported by neither asyncio nor msgpack, and of
# which a run that does not use them needs none.
HEAVY = set(
    """
    _decimal _pydecimal cryptography decimal email fractions h11 hashlib hmac http ipaddress numbers
    numpy pathlib platform pydantic pytest random rich sqlite3 statistics tempfile typer unittest
    urllib uuid xml zoneinfo
    recovery.cli recovery.testing recovery._compare recovery._fork recovery._following
    recovery._numpy recovery._register recovery._run_event recovery._stream recovery._undo
    eventlog._memory eventlog._xaes eventlog._examine eventlog.testing
    """.split()
)
MODULES_MAX = 150  # ours are small: what an import costs is what it brings from elsewhere

BEFORE = "import asyncio, sys, msgpack, xxhash\nbefore = set(sys.modules)\n"
AFTER = "\nimport json\nprint(json.dumps(sorted(set(sys.modules) - before)))"
AGENT = """
from recovery import CheckpointStore, RecoverableAgent, tool
@tool(after_crash="retry")
async def twice(n):
    return {"n": 2 * n}
async def agent(run):
    async for step in run.steps():
        run.state["n"] = step
        run.messages.append(await run.call(twice, step))
        if step == 4:
            return run.messages[-1]
store = CheckpointStore(sys.argv[1])
asyncio.run(RecoverableAgent(agent, store, 2).run_with_recovery("task", "run"))
"""


def run(code: str, *args: str) -> Any:
    """What a process of its own prints, as JSON."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code, *args], env=env, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize("what", ["import recovery", AGENT], ids=["import", "run"])
def test_nothing_heavy_is_imported(what: str, tmp_path: Path) -> None:
    imported = run(BEFORE + what + AFTER, str(tmp_path / "store"))
    assert "recovery._agent" in imported
    assert {name for name in imported if name in HEAVY or name.partition(".")[0] in HEAVY} == set()
    assert len(imported) <= MODULES_MAX, imported


def test_log_alone_does_not_import_the_runtime(tmp_path: Path) -> None:
    code = """
from eventlog import EventLog
with EventLog.open(sys.argv[1]) as log:
    log.append("greeting", {"text": "hello"})
    log.commit()
"""
    imported = run(BEFORE + code + AFTER, str(tmp_path / "log"))
    assert not [name for name in imported if name.startswith("recovery") or name in HEAVY]


def test_every_public_name_is_there_when_it_is_asked_for() -> None:
    assert {*recovery.__all__} <= {*dir(recovery)}
    assert all(getattr(recovery, name) is not None for name in recovery.__all__)
    assert {*_rarely.__all__} <= {*recovery.__all__}
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        recovery.nothing  # type: ignore[attr-defined]  # noqa: B018
    code = "import recovery, json\nfrom recovery import *\nprint(json.dumps([*globals()]))"
    assert {*recovery.__all__} <= {*run(code)}


def test_types_are_told_of_every_rare_name() -> None:
    tree = ast.parse((ROOT / "recovery" / "__init__.py").read_text())
    told = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
            and node.module == "recovery._rarely" for alias in node.names}  # fmt: skip
    assert told == {*_rarely.__all__}


VALUES = [
    Decimal("1.50"), Fraction(1, 3), UUID(int=7), PurePosixPath("a/b"), Path("c"), ZoneInfo("UTC"),
    datetime(2026, 1, 2, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=ZoneInfo("UTC")),
]  # fmt: skip


def test_values_are_read_where_nobody_has_imported_their_types() -> None:
    code = """
import sys, json
import recovery
from recovery._values import pack, unpack
assert not {"decimal", "fractions", "uuid", "pathlib", "zoneinfo"} & {*sys.modules}
values = [unpack(bytes.fromhex(packed))[0] for packed in sys.argv[1:]]
again = [bytes(pack([value], "")).hex() for value in values]
print(json.dumps([[type(value).__name__, str(value)] for value in values] + [again]))
"""
    packed = [pack([value], "").hex() for value in VALUES]
    *shown, again = run(code, *packed)
    assert shown == [[type(value).__name__, str(value)] for value in VALUES]
    assert again == packed
    assert [unpack(bytes.fromhex(one)) for one in packed] == [[value] for value in VALUES]


def test_values_are_packed_where_they_are_the_first_of_their_types() -> None:
    code = """
import sys, json
import recovery
from recovery._values import pack
import datetime, zoneinfo
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePosixPath
from uuid import UUID
ZoneInfo, UTC = zoneinfo.ZoneInfo, datetime.UTC
values = [
    Decimal("1.50"), Fraction(1, 3), UUID(int=7), PurePosixPath("a/b"), Path("c"), ZoneInfo("UTC"),
    datetime.datetime(2026, 1, 2, tzinfo=UTC),
    datetime.datetime(2026, 1, 2, tzinfo=ZoneInfo("UTC")),
]
print(json.dumps([bytes(pack([value], "")).hex() for value in values]))
"""
    assert run(code) == [pack([value], "").hex() for value in VALUES]
