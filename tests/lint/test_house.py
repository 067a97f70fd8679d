"""The limits of the house style, and a docstring on every public name."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

import eventlog
import recovery
import recovery.testing
from tests.support.paths import ROOT

FUNCTION_LINES_MAX, FILE_LINES_MAX, PARAMETERS_MAX = 60, 400, 6
FOLDERS = ("eventlog", "recovery", "tools/logdump")
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
COMMANDS = (ROOT / "recovery/cli", ROOT / "tools/logdump")
OPTIONS_MAX = 20  # the parameters of a command are its options, each with its help
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)


def code_lines(source: str, tree: ast.Module) -> set[int]:
    """The lines that are neither blank nor comment nor docstring."""
    docs: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, *FUNCTION)) and ast.get_docstring(node):
            docs.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    lines = enumerate(source.splitlines(), 1)
    return {n for n, line in lines if line.strip() and line.lstrip()[0] != "#"} - docs


def excesses(source: str, parameters_max: int = PARAMETERS_MAX) -> list[str]:
    tree = ast.parse(source)
    code = code_lines(source, tree)
    found = [f"{len(code)} lines of code in the file"] if len(code) > FILE_LINES_MAX else []
    for node in ast.walk(tree):
        if isinstance(node, FUNCTION):
            size = len(code & set(range(node.lineno, (node.end_lineno or 0) + 1)))
            names = [a.arg for a in node.args.posonlyargs + node.args.args + node.args.kwonlyargs]
            parameters = len(names) - (names[:1] in (["self"], ["cls"]))
            if size > FUNCTION_LINES_MAX:
                found.append(f"{node.name}: {size} lines of code")
            if parameters > parameters_max:
                found.append(f"{node.name}: {parameters} parameters")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_sizes_are_within_limits(path: Path) -> None:
    parameters_max = OPTIONS_MAX if any(map(path.is_relative_to, COMMANDS)) else PARAMETERS_MAX
    assert excesses(path.read_text(), parameters_max) == []


def test_all_of_the_code_is_formatted() -> None:
    exceptions = re.compile(r"# (fmt|yapf): ")
    for folder in ("eventlog", "recovery", "tools", "tests", "examples"):
        for path in (ROOT / folder).rglob("*.py"):
            assert not exceptions.search(path.read_text(encoding="utf-8")), path


def test_excesses_are_found() -> None:
    head = "def f(self, a, b, c, d, e, *, g, h):\n    '''Doc.'''\n"
    long = head + "    x = 1\n\n    # why\n" * 60
    assert excesses(long) == ["f: 61 lines of code", "f: 7 parameters"]
    assert excesses("x = 1\n" * 401) == ["401 lines of code in the file"]
    assert excesses("def f(a, b): ...", 1) == ["f: 2 parameters"]
    assert excesses(long.replace("    x = 1\n", "", 1).replace(", h", "")) == []


@pytest.mark.parametrize(
    "package", [eventlog, recovery, recovery.testing], ids=lambda package: package.__name__
)
def test_every_public_name_has_a_docstring(package: object) -> None:
    bare = []
    for name in package.__all__:  # type: ignore[attr-defined]
        value = getattr(package, name)
        doc = vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__
        # A dataclass without a docstring is given its signature as one.
        if not doc or doc.startswith(f"{name}("):
            bare.append(name)
    assert bare == []
