"""Imports run down, the pure rooms do no I/O, and no code comes from data.

An import counts wherever it stands: for types alone and inside a function as well.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.support.paths import ROOT

SOURCES = {"eventlog": "eventlog", "recovery": "recovery", "logdump": "tools/logdump"}

# The rooms of each package, from the ground up: a room imports from itself and from lower ones.
# A file beside the rooms is a room of its own; "" is what the package itself gives on.
ROOMS = {
    "eventlog": [
        *"light_dataclass after_fork errors format files crypto encryption protocols".split(),
        *("read", "write", "repair", "remove_log", "remote"),
        *("dump", "transfer", "", "testing"),
    ],
    "recovery": [
        *"option_checks text errors values journal approvers replay stores history inspect".split(),
        *"control agent_code declare engine calls ops agent worker call_journal graph".split(),
        *("reports", "subjects", "tracing", "", "integrations", "testing", "cli"),
    ],
}
BELOW = {"eventlog": {"eventlog"}, "recovery": {"eventlog", "recovery"}, "logdump": {*SOURCES}}
MODULES_MAX = 25  # of a folder

# No clock, file, thread, task or randomness, and nothing that is imported has any.
PURE_ROOMS = {
    "eventlog.light_dataclass",
    "eventlog.errors",
    "eventlog.format",
    "recovery.option_checks",
    "recovery.errors",
    "recovery.text",
    "recovery.values",
    "recovery.journal",
    "recovery.replay",
}
IMPURE_IN_PURE_ROOMS = {
    ("recovery.values.registered", "threading"): "types may be registered by any thread",
    ("recovery.values.declared_types", "threading"): "the same of types that annotations name",
    ("recovery.values.builtin_codecs", "os"): "whether a time zone is known",
    ("recovery.values.builtin_codecs", "pathlib"): "paths are values",
    ("recovery.values.secret_forms", "urllib"): "urllib.parse makes text of text",
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

CORE = {"msgpack", "xxhash"}
THIRD_PARTY = {"eventlog": CORE, "recovery": CORE, "logdump": {"xxhash"}}
# Inside `try`, with a fallback or an error that names it.
OPTIONAL = {"eventlog.format.frame": "isal", "recovery.values.numpy_codec": "numpy"}
# For type checkers alone, which bring it: never imported.
TYPES = {"recovery.values.type_variables": "typing_extensions"}
# What an extra brings, for the modules that belong to that extra.
EXTRAS = {
    "recovery.cli": {"typer", "rich"},
    "logdump": {"rich", "typer"},
    "logdump.browse.app": {"textual"},
    "recovery.testing.processes.counting_proxy": {"h11"},
    "eventlog.crypto.xaes": {"cryptography"},
    "recovery.stores.postgres": {"psycopg"},
    "recovery.worker.health": {"prometheus_client"},
    "recovery.approvers": {"cryptography"},
    # All frameworks that it is for bring these.
    "recovery.integrations.framework_calls": {"pydantic", "pydantic_core"},
}
TESTING = {"pytest", "hypothesis"}  # what the public `testing` modules may use besides
TESTERS = ("recovery.testing", "eventlog.testing", "recovery.cli")
# One file or folder for each adapter: it may import its own driver or framework, and no other
# adapter; what several of them need is in a module of its own, which imports none of these.
ADAPTERS = {"recovery.integrations", "recovery.stores"}
PROTOCOLS = {
    "recovery.stores.log_store",  # what stores in directories have in common
    "recovery.stores.protocol",
    "recovery.stores.remote_store",  # what stores on servers have in common
    "recovery.stores.submitting",  # what all stores have in common
    "recovery.stores.RunStore",
    "recovery.stores.subject_keys",  # of stores of all kinds
    "recovery.integrations.framework_calls",  # what adapters of frameworks have in common
    "recovery.integrations.event_stream",  # of model providers
    "recovery.integrations.sdk_client",  # what clients of providers have in common
    "recovery.integrations.versions",
}

CODE_FROM_DATA = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
CODE_FROM_DATA_CALLS = {"eval", "exec", "compile", "__import__"}
IMPORTERS = {"importlib.import_module", "pkgutil.resolve_name"}
NAMED_BY_USER = {"recovery.cli.store_options", "recovery.testing.processes.child"}  # on a command


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


def modules() -> Iterator[tuple[str, Path]]:
    for package, folder in SOURCES.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            yield ".".join([package, *(p for p in parts if p != "__init__")]), path


MODULES = dict(modules())


def room(module: str) -> str:
    """`recovery.values` for what is in that room."""
    return ".".join(module.split(".")[:2])


def target(name: str) -> str:
    """The module that an imported name is, or is in."""
    while name not in MODULES and "." in name:
        name = name.rpartition(".")[0]
    return name


def adapter(module: str) -> str | None:
    """`recovery.stores.nats` for anything in that module, when it is an adapter."""
    name = ".".join(module.split(".")[:3])
    return name if name.rpartition(".")[0] in ADAPTERS else None


def problems(module: str, source: str, is_package: bool = False) -> list[str]:
    """What `source`, as the module of that name, imports or calls against the rules."""
    tree = ast.parse(source)
    is_pure = room(module) in PURE_ROOMS
    found = []
    for name, node in imports(tree, module, is_package):
        top = name.partition(".")[0]
        if top in CODE_FROM_DATA or (name in IMPORTERS and module not in NAMED_BY_USER):
            found.append(f"code from data: {name}")
        if top in SOURCES:
            found += first_party_problems(module, name)
        elif top not in sys.stdlib_module_names and not allowed(module, top, in_try(tree, node)):
            found.append(f"third party: {name}")
        if is_pure and top in IMPURE and (module, top) not in IMPURE_IN_PURE_ROOMS:
            found.append(f"impure: {name}")
    for called, owner in calls(tree):
        if (not owner and called in CODE_FROM_DATA_CALLS) or (
            called in ("import_module", "resolve_name") and module not in NAMED_BY_USER
        ):
            found.append(f"code from data: {called}()")
        if is_pure and (
            (not owner and called in IMPURE_CALLS)
            or called in IMPURE_METHODS
            or (called == "now" and owner == "datetime")
        ):
            found.append(f"impure: {called}()")
    return found


def first_party_problems(module: str, name: str) -> list[str]:
    package, top = module.partition(".")[0], name.partition(".")[0]
    if top not in BELOW[package]:
        return [f"upwards: {name}"]
    if (mine := adapter(module)) and adapter(name) not in {None, mine} | PROTOCOLS:
        return [f"sideways: {name}"]
    if name.startswith("recovery.integrations") and not module.startswith("recovery.integrations"):
        return [f"integrations are imported by users only: {name}"]
    if name.startswith(TESTERS[:2]) and not module.startswith(TESTERS):
        return [f"testing is imported by tests only: {name}"]
    if room(module) in PURE_ROOMS and top != package and not from_the_ground(name):
        return [f"impure: {name}"]
    if top == package and package in ROOMS and rank(name) > rank(module):
        return [f"upwards: {name}"]
    return []


def rank(name: str) -> int:
    """The place of a room among those of its package."""
    package, _, rest = target(name).partition(".")
    return ROOMS[package].index(rest.partition(".")[0])


def from_the_ground(name: str) -> bool:
    """Whether a name of the log is of one of its pure rooms, or given on by the package."""
    found = target(name)
    return room(found) in PURE_ROOMS or found == "eventlog"


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


def edges() -> dict[str, set[str]]:
    """Which files refer to which, for whatever reason."""
    found: dict[str, set[str]] = {}
    for module, path in MODULES.items():
        is_package = path.name == "__init__.py"
        names = imports(ast.parse(path.read_text()), module, is_package)
        there = {target(name) for name, _ in names if name.partition(".")[0] in SOURCES}
        # What a package gives on is imported from it by others, and by none of its own files.
        found[module] = {one for one in there if MODULES[one].name != "__init__.py"} - {module}
    return found


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Files that refer to one another in a circle; none if there is none."""
    over: set[str] = set()

    def search(way: list[str]) -> list[str]:
        for one in sorted(graph[way[-1]] - over):
            if one in way:
                return [*way[way.index(one) :], one]
            if found := search([*way, one]):
                return found
        over.add(way[-1])
        return []

    return next((found for one in sorted(graph) if (found := search([one]))), [])


@pytest.mark.parametrize(("module", "path"), [pytest.param(*m, id=m[0]) for m in modules()])
def test_module_keeps_to_its_layer(module: str, path: Path) -> None:
    assert problems(module, path.read_text(), path.name == "__init__.py") == []


def test_no_file_is_in_a_circle() -> None:
    assert circle(edges()) == []
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]


def test_no_folder_is_too_full() -> None:
    tops = ("eventlog", "recovery", "tools", "tests")
    files = (path for top in tops for path in (ROOT / top).rglob("*.py"))
    folders = Counter(path.parent for path in files if not path.name.startswith("__"))
    assert folders[ROOT / "eventlog/read"] > 5
    assert {path: count for path, count in folders.items() if count > MODULES_MAX} == {}


def test_every_room_is_there_and_named() -> None:
    for package, rooms in ROOMS.items():
        there = {room(module) for module in MODULES if module.startswith(f"{package}.")}
        assert there == {f"{package}.{name}" for name in rooms if name}
    named: Iterable[str] = (*PURE_ROOMS, *OPTIONAL, *TYPES, *EXTRAS, *NAMED_BY_USER)
    assert {*named, *(module for module, _ in IMPURE_IN_PURE_ROOMS)} <= {*MODULES}


@pytest.mark.parametrize(
    ("module", "source", "problem"),
    [
        ("eventlog.write.log", "import recovery", "upwards: recovery"),
        ("eventlog.write.log", "def f():\n    from recovery.agent.run import Run", "upwards"),
        ("eventlog.format.frame", "from eventlog.files.posix import OSFiles", "upwards: eventlog"),
        ("recovery.agent.run", "import logdump", "upwards: logdump"),
        (
            "recovery.calls.carry_out_call",
            "from recovery.agent import run",
            "upwards: recovery.agent",
        ),
        (
            "recovery.replay.matching",
            "if TYPE_CHECKING:\n    from recovery.engine.execution_base import ExecutionBase",
            "upwards: recovery.engine",
        ),
        (
            "recovery.engine.execution_base",
            "from recovery import RecoverableAgent",
            "upwards: recovery.Reco",
        ),
        ("recovery.agent.run", "import openai", "third party: openai"),
        ("recovery.agent.run", "import typer", "third party: typer"),
        ("logdump.browse.browse", "import textual", "third party: textual"),
        ("recovery.testing.processes.watch", "import h11", "third party: h11"),
        ("recovery.agent.run", "from recovery.integrations import x", "integrations are imported"),
        ("recovery.agent.run", "from recovery.testing import Finding", "testing is imported by"),
        ("recovery.agent.run", "import eventlog.testing", "testing is imported by tests only"),
        ("recovery.agent.run", "from recovery import testing", "testing is imported by tests"),
        ("recovery.stores.nats", "from recovery.stores.file import F", "sideways: recovery.stores"),
        ("recovery.stores.nats", "from . import file", "sideways: recovery.stores.file"),
        ("recovery.integrations.a", "from .b import B", "sideways: recovery.integrations.b"),
        ("eventlog.format.frame", "import isal", "third party: isal"),
        ("eventlog.write.log", "try:\n    import isal\nexcept ImportError: ...", "third party"),
        ("eventlog.format.torn_or_damaged", "import os.path", "impure: os.path"),
        ("eventlog.format.torn_or_damaged", "open('x')", "impure: open()"),
        (
            "recovery.journal.call_key",
            "from eventlog.files.posix import OSFiles",
            "impure: eventlog",
        ),
        ("recovery.journal.call_key", "import uuid\nuuid.uuid4()", "impure: uuid4()"),
        ("recovery.values.pack", "from datetime import datetime\ndatetime.now()", "impure: now()"),
        ("recovery.agent.run", "from pickle import loads", "code from data: pickle"),
        ("recovery.agent.run", "eval('1')", "code from data: eval()"),
        ("recovery.agent.run", "__import__('x')", "code from data: __import__()"),
        ("recovery.agent.run", "import importlib\nimportlib.import_module('x')", "import_module()"),
        ("recovery.agent.run", "from importlib import import_module as f", "importlib.import_mod"),
        ("recovery.agent.run", "import pkgutil\npkgutil.resolve_name('x')", "resolve_name()"),
    ],
)
def test_checker_catches(module: str, source: str, problem: str) -> None:
    assert any(problem in p for p in problems(module, source)), problems(module, source)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        (
            "eventlog.format.frame",
            "try:\n    from isal.isal_zlib import crc32\nexcept ImportError: ...",
        ),
        ("eventlog.format.torn_or_damaged", "import re\nfrom .frame import Frame\nre.compile('x')"),
        ("eventlog.format.torn_or_damaged", "from eventlog import errors"),
        ("recovery.replay.matching", "from eventlog.format.record import Record"),
        ("recovery.values.pack", "from datetime import datetime\nfrom uuid import UUID"),
        ("recovery.agent.run", "import os, asyncio, msgpack\nfrom eventlog import EventLog"),
        ("recovery.stores.nats", "import nats\nfrom .protocol import RunStore"),
        ("recovery.integrations.a", "import openai\nfrom recovery.declare.tool import tool"),
        ("recovery.testing", "import pytest"),
        ("recovery.cli.commands.crashtest", "import typer"),
        ("logdump.__main__", "from eventlog import EventLog\nfrom logdump.show import show"),
    ],
)
def test_checker_allows(module: str, source: str) -> None:
    assert problems(module, source) == []
