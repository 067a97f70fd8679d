"""The pages of the API show each public module, each option, and nothing internal."""

from __future__ import annotations

import re

import pytest

from tests.lint.test_public_surface import PUBLIC
from tests.support.paths import ROOT

griffe = pytest.importorskip("griffe")
SHOWN = re.findall(
    r"^::: (\S+)", "\n".join(page.read_text() for page in ROOT.glob("docs/api/*.md")), re.M
)


def test_each_public_module_is_on_a_page() -> None:
    assert set(PUBLIC) <= set(SHOWN)


def test_each_name_of_the_package_is_on_its_page() -> None:
    page = (ROOT / "docs/api/recovery.md").read_text()
    shown = re.findall(r"^(?:::: recovery\.|        - )(\w+)$", page, re.M)
    assert {*shown, *PUBLIC["recovery.errors"].__all__} >= {*PUBLIC["recovery"].__all__}


def test_options_are_spelled_out_and_internal_methods_are_not_there() -> None:
    extensions = griffe.load_extensions(str(ROOT / "tools/reference.py"))
    package = griffe.load("recovery", search_paths=[ROOT], extensions=extensions)
    agent = package["agent.recoverable.RecoverableAgent"]
    assert str(agent.members["__init__"].parameters["max_recoveries"].default) == "3"
    assert "run_with_recovery" in agent.members and "run_session" not in agent.members
    assert "redact" in package["declare.tool.tool"].parameters
    child = package["agent.run.Run.child"].parameters
    assert {"checkpoint_every_n", "on_drift"} <= {one.name for one in child}
    assert "__init__" not in package["agent.run.Run"].members
