"""What the pages say of removal and of the doctor is what the code does."""

from __future__ import annotations

import re
from typing import Any

import pytest

from eventlog.files.file_systems import (
    KNOWN,
    MEMORY,
    NETWORK,
    SHARED,
    SIMPLE,
    UNSAFE_OPTIONS,
    Mount,
    judge,
)
from recovery import CheckpointStore, RecoverableAgent
from recovery.cli import doctor_checks
from recovery.stores.file import default_directory
from tests.support.lives import send
from tests.support.paths import ROOT, TESTS

DOCS = ROOT / "docs"


def test_the_example_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", default_directory())  # a directory of this test

    async def agent(run: Any) -> Any:
        async for _ in run.steps():
            return await run.call(send, "mail")

    store = CheckpointStore("~/.eventlog")
    import asyncio

    asyncio.run(RecoverableAgent(agent, store).run_with_recovery("task", "run_001"))
    page = (DOCS / "removing-runs.md").read_text()
    code = page.split("```python\n")[1].split("```")[0]
    exec(code, {})  # noqa: S102 - the example of the page
    assert store.backend.run_ids() == []


def rows(page: str, heading: str) -> list[list[str]]:
    """The rows of the table whose first line is this."""
    lines = (DOCS / page).read_text().splitlines()
    found = []
    for line in lines[lines.index(heading) + 2 :]:
        if not line.startswith("|"):
            break
        found.append([cell.strip() for cell in line.strip("|").split("|")])
    return found


SYSTEMS = rows(
    "recovery-command.md", '| file system | `durability="power"` | `"process"`, `"none"` |'
)


def test_every_file_system_that_is_known_is_in_the_table() -> None:
    named = {word for row in SYSTEMS for word in re.findall(r"[a-z0-9_]+", row[0])}
    spelled = {"smb3": "smb", "smbfs": "smb", "nfs4": "nfs", "fuse.sshfs": "sshfs"}
    # Of these there is nothing to say that anybody would look for.
    for kind in (KNOWN | MEMORY | NETWORK | SHARED | SIMPLE) - {"hugetlbfs", "hfs"}:
        assert spelled.get(kind, kind) in named, kind
    options = {word for row in SYSTEMS for cell in row for word in re.findall(r"`([^`]+)`", cell)}
    assert set(UNSAFE_OPTIONS) - {"fsync=volatile"} <= options


@pytest.mark.parametrize("row", SYSTEMS, ids=lambda row: row[0][:30])
def test_the_table_says_what_is_done(row: list[str]) -> None:
    kinds = [
        kind
        for kind in re.findall(r"[a-z0-9_]+", row[0])
        if kind in KNOWN | MEMORY | SHARED | SIMPLE | NETWORK
    ]
    options: tuple[str, ...] = ()
    if row[0].startswith("any with"):
        kinds, options = ["ext4"], ("nobarrier",)
    elif "fuse" in row[0]:
        kinds = ["fuse.other"]
    assert kinds
    for kind in kinds:
        power = judge(Mount(kind, options=options), "power").level
        expected = row[1].split(":")[0]
        assert power == {"refused": "refused", "warning": "warning"}.get(expected, "ok"), kind
        process = judge(Mount(kind, options=options), "process").level
        assert process == {"warning": "warning"}.get(row[2].split(":")[0], "ok"), kind


def test_the_limits_are_those_of_the_page() -> None:
    page = (DOCS / "recovery-command.md").read_text()
    assert "less than 1 GiB or 10,000 inodes are free (warning)" in page
    assert "less than 32 MiB or 100 inodes (problem)" in page
    found = (
        doctor_checks.SPACE_LOW,
        doctor_checks.INODES_LOW,
        doctor_checks.SPACE_MIN,
        doctor_checks.INODES_MIN,
    )
    assert found == (1 << 30, 10_000, 32 << 20, 100)


def test_the_example_of_rm_is_what_it_prints() -> None:
    golden = (TESTS / "cli/golden/recovery-rm-dry-run.txt").read_text()
    page = (DOCS / "removing-runs.md").read_text()
    shown = page.split("$ recovery rm parent --dry-run\n")[1].split("$ ")[0]
    assert shown in golden
