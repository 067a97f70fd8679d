"""Integrations are made of what every user can use: of public names alone."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib

import pytest

import recovery.integrations
from tests.lint.test_public_surface import PUBLIC, imports, names_of
from tests.support.paths import ROOT

HERE = ROOT / "recovery" / "integrations"
OURS = "recovery", "eventlog"
SHARED = "recovery.integrations"
# Of Aden Hive's, what is executed as calls of a run, without the journal of calls.
OLDER = {"hive/graph.py", "hive/plain.py"}
MODULES = sorted(
    path
    for path in HERE.rglob("*.py")
    if path.name != "__init__.py" and str(path.relative_to(HERE)) not in OLDER
)
PACKAGES = "anthropic", "httpx", "httpx2", "mcp", "openai", "pydantic"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_an_integration_imports_public_names_alone(path) -> None:
    for module, name in imports(path.read_text()):
        if module.partition(".")[0] in OURS and not module.startswith(f"{SHARED}."):
            assert module in PUBLIC, f"{module} is not public"
            assert not name or name in names_of(module), f"{name} is none of {module}"


def test_there_are_some() -> None:
    assert {"openai", "anthropic", "mcp"} <= {path.stem for path in MODULES}
    assert recovery.integrations.__doc__


def test_the_library_imports_none_of_them() -> None:
    program = (
        "import sys, recovery, recovery.errors, recovery.testing, recovery.stores, logdump\n"
        f"print([one for one in {PACKAGES!r} if one in sys.modules])\n"
        "print([one for one in sys.modules if one.startswith('recovery.integrations')])\n"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert said.stdout.decode().splitlines() == ["[]", "[]"]


def checked(path) -> list[tuple[str, str, str]]:
    """Package, minimum and extra of each check_version(...) of a module."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "check_version":
            package, minimum = (ast.literal_eval(one) for one in node.args[:2])
            extra = [ast.literal_eval(one.value) for one in node.keywords if one.arg == "extra"]
            found.append((package, minimum, extra[0] if extra else package))
    return found


def test_the_versions_that_are_checked_are_those_of_the_extras() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    found = [one for path in HERE.rglob("*.py") for one in checked(path)]
    assert {extra for _, _, extra in found} >= {"anthropic", "langgraph", "otel", "pydantic-ai"}
    for package, minimum, extra in found:
        (needs,) = [one for one in extras[extra] if re.match(rf"{package}[^\w-]", one)]
        assert f">={minimum}" in needs
