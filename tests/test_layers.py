"""Imports point down, the pure core does no I/O, and no code comes from data."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = {"eventlog": "eventlog", "recovery": "recovery", "logdump": "tools/logdump"}

# What each package may import of the others.
BELOW = {
    "eventlog": {"eventlog"},
    "recovery": {"eventlog", "recovery"},
    "logdump": {"eventlog", "recovery", "logdump"},
}
CORE = {"msgpack", "xxhash"}
THIRD_PARTY = {"eventlog": CORE, "recovery": CORE, "logdump": set()}
# Inside `try`, with a fallback or an error that names it.
OPTIONAL = {"eventlog._frame": "isal", "recovery._numpy": "numpy"}
# For type checkers alone, which bring it: never imported.
TYPES = {"recovery._type_variables": "typing_extensions"}
# What an extra brings, for the modules that belong to that extra.
EXTRAS = {
    "recovery.cli": {"typer", "rich"},
    "logdump": {"rich", "shtab"},
    "logdump._browse_app": {"textual"},
    "recovery.testing._proxy": {"h11"},
    "eventlog._xaes": {"cryptography"},
    "recovery.approvers": {"cryptography"},
}
TESTING = {"pytest", "hypothesis"}  # what the public `testing` modules may use besides
TESTERS = ("recovery.testing", "eventlog.testing", "recovery.cli")
# One file per adapter: each may import its own driver or framework, and none of the others.
ADAPTERS = {"recovery.integrations", "recovery.stores"}
PROTOCOLS = {"recovery.stores.protocol", "recovery.stores._protocol"}

PURE = {
    "logdump._timeline_layout",
    "eventlog._dataclass",
    "eventlog._filesystem",
    "eventlog._frame",
    "eventlog._scan",
    "eventlog._record",
    "eventlog._json",
    "eventlog._lines",
    "eventlog._encrypted",
    "eventlog._errors",
    "recovery._draft",
    "recovery.graph._standing",
    "recovery._parts",
    "recovery._state",
    "recovery._events",
    "recovery._recorded",
    "recovery._replay",
    "recovery._alike",
    "recovery._earlier",
    "recovery._before_loop",
    "recovery._run_state",
    "recovery._options",
    "recovery._retry",
    "recovery._side_effects",
    "recovery._difference",
    "recovery._fields",
    "recovery._keys",
    "recovery._lost",
    "recovery._progress",
    "recovery._run_errors",
    "recovery._account",
    "recovery._growth",
    "recovery._spent",
    "recovery._usage",
    "recovery._spans",
    "recovery._shorten",
    "recovery._text",
    "recovery._signals",
    "recovery._family",
    "recovery._compensation",
    "recovery._tally",
    "recovery._values",
    "recovery._coded",
    "recovery._frozen",
    "recovery._errors",
}
# Files, clocks, randomness, other threads and processes, the terminal.
IMPURE = set(
    """
    os io time random secrets asyncio threading _thread concurrent multiprocessing subprocess queue
    socket ssl select selectors signal mmap fcntl tempfile shutil pathlib glob logging sqlite3
    urllib http platform getpass ctypes sched contextvars
    """.split()
)
IMPURE_CALLS = {"open", "print", "input"}
IMPURE_METHODS = {"utcnow", "today", "uuid1", "uuid4"}  # datetime and uuid are values otherwise

CODE_FROM_DATA = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
CODE_FROM_DATA_CALLS = {"eval", "exec", "compile", "__import__"}
IMPORTERS = {"importlib.import_module", "pkgutil.resolve_name"}
NAMED_BY_USER = {"recovery.cli._store", "recovery.testing._child"}  # on the command line


def imports(tree: ast.AST, module: str, is_package: bool) -> Iterator[tuple[str, ast.AST]]:
    """The full name of all that is imported: `a.b` for `from a import b`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                here = module.split(".")
                here = here[: len(here) - node.level + is_package]
                base = ".".join([*here, base] if base else here)
            for alias in node.names:
                yield f"{base}.{alias.name}", node


def calls(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """The last name of what is called, and the name that it is an attribute of."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id, ""
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            yield node.func.attr, getattr(owner, "id", getattr(owner, "attr", "?"))


def in_try(tree: ast.AST, wanted: ast.AST) -> bool:
    tries = (node for node in ast.walk(tree) if isinstance(node, ast.Try))
    return any(wanted in ast.walk(statement) for node in tries for statement in node.body)


def adapter(module: str) -> str | None:
    """`recovery.stores.nats` for anything in that module, when it is an adapter."""
    name = ".".join(module.split(".")[:3])
    return name if name.rpartition(".")[0] in ADAPTERS else None


def problems(module: str, source: str, is_package: bool = False) -> list[str]:
    """What `source`, as the module of that name, imports or calls against the rules."""
    tree = ast.parse(source)
    found = []
    for name, node in imports(tree, module, is_package):
        top = name.partition(".")[0]
        if top in CODE_FROM_DATA or (name in IMPORTERS and module not in NAMED_BY_USER):
            found.append(f"code from data: {name}")
        if top in SOURCES:
            found += first_party_problems(module, name)
        elif top not in sys.stdlib_module_names and not allowed(module, top, in_try(tree, node)):
            found.append(f"third party: {name}")
        if module in PURE and top in IMPURE:
            found.append(f"impure: {name}")
    for called, owner in calls(tree):
        if (not owner and called in CODE_FROM_DATA_CALLS) or (
            called in ("import_module", "resolve_name") and module not in NAMED_BY_USER
        ):
            found.append(f"code from data: {called}()")
        if module in PURE and (
            (not owner and called in IMPURE_CALLS)
            or called in IMPURE_METHODS
            or (called == "now" and owner == "datetime")
        ):
            found.append(f"impure: {called}()")
    return found


def first_party_problems(module: str, name: str) -> list[str]:
    top, target = name.partition(".")[0], adapter(name)
    if top not in BELOW[module.partition(".")[0]]:
        return [f"upwards: {name}"]
    if (mine := adapter(module)) and target not in {None, mine} | PROTOCOLS:
        return [f"sideways: {name}"]
    if name.startswith("recovery.integrations") and not module.startswith("recovery.integrations"):
        return [f"integrations are imported by users only: {name}"]
    if name.startswith(TESTERS[:2]) and not module.startswith(TESTERS):
        return [f"testing is imported by tests only: {name}"]
    # What a pure module imports is pure as well: one of these modules, or a name in one.
    if module in PURE and ".".join(name.split(".")[:2]) not in PURE:
        return [f"impure: {name}"]
    return []


def allowed(module: str, third_party: str, optional: bool) -> bool:
    names = module.split(".")
    return (
        third_party in THIRD_PARTY[names[0]]
        or any(third_party in EXTRAS[m] for m in EXTRAS if f"{module}.".startswith(f"{m}."))
        or (optional and OPTIONAL.get(module) == third_party)
        or TYPES.get(module) == third_party
        or (len(names) > 1 and names[1] == "testing" and third_party in TESTING)
        or adapter(module) not in {None, *PROTOCOLS}
    )


def modules() -> Iterator[tuple[str, Path]]:
    for package, folder in SOURCES.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            yield ".".join([package, *(p for p in parts if p != "__init__")]), path


@pytest.mark.parametrize(("module", "path"), [pytest.param(*m, id=m[0]) for m in modules()])
def test_module_keeps_to_its_layer(module: str, path: Path) -> None:
    assert problems(module, path.read_text(), path.name == "__init__.py") == []


def test_every_pure_module_exists() -> None:
    assert PURE - {module for module, _ in modules()} == set()


@pytest.mark.parametrize(
    ("module", "source", "problem"),
    [
        ("eventlog._log", "import recovery", "upwards: recovery"),
        ("eventlog._log", "def f():\n    from recovery._run import Run", "upwards: recovery._run"),
        ("recovery._run", "import logdump", "upwards: logdump"),
        ("recovery._run", "import openai", "third party: openai"),
        ("recovery._run", "import typer", "third party: typer"),
        ("logdump._browse", "import textual", "third party: textual"),
        ("recovery.testing._watch", "import h11", "third party: h11"),
        ("recovery._run", "from .integrations import x", "integrations are imported by users only"),
        ("recovery._run", "from recovery.testing import Finding", "testing is imported by tests"),
        ("recovery._run", "import eventlog.testing", "testing is imported by tests only"),
        ("recovery._run", "from recovery import testing", "testing is imported by tests"),
        ("recovery.stores.nats", "from recovery.stores.file import F", "sideways: recovery.stores"),
        ("recovery.stores.nats", "from . import file", "sideways: recovery.stores.file"),
        ("recovery.integrations.a", "from .b import B", "sideways: recovery.integrations.b"),
        ("eventlog._frame", "import isal", "third party: isal"),
        ("eventlog._log", "try:\n    import isal\nexcept ImportError: ...", "third party: isal"),
        ("eventlog._scan", "import os.path", "impure: os.path"),
        ("eventlog._scan", "from eventlog import _files", "impure: eventlog._files"),
        ("eventlog._scan", "open('x')", "impure: open()"),
        ("recovery._keys", "import uuid\nuuid.uuid4()", "impure: uuid4()"),
        ("recovery._values", "from datetime import datetime\ndatetime.now()", "impure: now()"),
        ("recovery._run", "from pickle import loads", "code from data: pickle"),
        ("recovery._run", "eval('1')", "code from data: eval()"),
        ("recovery._run", "__import__('x')", "code from data: __import__()"),
        ("recovery._run", "import importlib\nimportlib.import_module('x')", "import_module()"),
        ("recovery._run", "from importlib import import_module as f", "importlib.import_module"),
        ("recovery._run", "import pkgutil\npkgutil.resolve_name('x')", "resolve_name()"),
    ],
)
def test_checker_catches(module: str, source: str, problem: str) -> None:
    assert any(problem in p for p in problems(module, source)), problems(module, source)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("eventlog._frame", "try:\n    from isal.isal_zlib import crc32\nexcept ImportError: ..."),
        ("eventlog._scan", "import re\nfrom ._frame import Frame\nre.compile('x')"),
        ("eventlog._scan", "from eventlog import _errors"),
        ("recovery._replay", "from eventlog._record import Record"),
        ("recovery._values", "from datetime import datetime\nfrom uuid import UUID"),
        ("recovery._run", "import os, asyncio, msgpack\nfrom eventlog import EventLog"),
        ("recovery.stores.nats", "import nats\nfrom ._protocol import RunStore"),
        ("recovery.integrations.a", "import openai\nfrom recovery import tool"),
        ("recovery.testing", "import pytest"),
        ("recovery.cli._crashtest", "import typer"),
        ("logdump.__main__", "from eventlog import EventLog\nfrom logdump._show import show"),
    ],
)
def test_checker_allows(module: str, source: str) -> None:
    assert problems(module, source) == []
