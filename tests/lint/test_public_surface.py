"""What users may import: few names, each where it is looked for, and each with its parameters."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import types
import typing
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import eventlog.dump
import eventlog.encryption
import eventlog.remove_log
import eventlog.repair
import eventlog.testing
import eventlog.transfer
import recovery.approvers
import recovery.call_journal
import recovery.graph
import recovery.integrations.hive
import recovery.integrations.otel
import recovery.reports
import recovery.stores
import recovery.subjects
import recovery.testing
import recovery.tracing
import recovery.worker
from tests.support.paths import ROOT

NAMES_MAX = {"recovery": 30, "eventlog": 15}
# What agents use of their run. Another name has to be one that agents need.
OF_A_RUN = set(
    "task run_id recovery_count step state messages now random uuid usage "
    "steps call stream undo child sleep wait_for wait".split()
)
# Of integrations, with the package that they need: an environment may be without it.
NEEDS = {
    "recovery.integrations.agent_framework": "agent_framework",
    "recovery.integrations.anthropic": "anthropic",
    "recovery.integrations.claude_agent": "claude_agent_sdk",
    "recovery.integrations.google_adk": "google.adk",
    "recovery.integrations.langgraph": "langgraph",
    "recovery.integrations.langgraph.tools": "langgraph",
    "recovery.integrations.mcp": "mcp",
    "recovery.integrations.openai": "openai",
    "recovery.integrations.openai_agents": "agents",
    "recovery.integrations.pydantic_ai": "pydantic_ai",
}
EXTRA = [
    __import__(module, fromlist=["*"])
    for module, package in NEEDS.items()
    if find_spec(package.partition(".")[0]) and find_spec(package)
]
PUBLIC: dict[str, Any] = {
    module.__name__: module
    for module in (
        *(
            recovery,
            recovery.errors,
            recovery.reports,
            recovery.stores,
            recovery.graph,
            recovery.worker,
        ),
        *(recovery.approvers, recovery.call_journal, recovery.testing, recovery.tracing),
        recovery.subjects,
        *(recovery.integrations.hive, recovery.integrations.otel, *EXTRA),
        *(eventlog, eventlog.errors, eventlog.encryption, eventlog.dump, eventlog.repair),
        *(eventlog.transfer, eventlog.remove_log, eventlog.testing),
    )
}
WRITTEN_FOR_USERS = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "examples").glob("*.py")),
]
ALL_OPTIONS = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def names_of(module: str) -> list[str]:
    return list(PUBLIC[module].__all__)


def callables() -> Iterator[tuple[str, Any]]:
    """The public classes, their methods, and the public functions."""
    for module, found in PUBLIC.items():
        for name in names_of(module):
            value = getattr(found, name)
            if inspect.isclass(value):
                if not is_made_by_others(value):
                    yield f"{module}.{name}", value
                for method in dir(value):
                    routine = getattr(value, method)
                    if method[0] != "_" and inspect.isroutine(routine) and is_ours(routine):
                        yield f"{module}.{name}.{method}", routine
            elif isinstance(value, types.FunctionType):
                yield f"{module}.{name}", value


def is_ours(routine: Any) -> bool:
    """Not inherited from the class of a framework."""
    module = getattr(routine, "__module__", None) or ""
    frameworks = {*NEEDS.values(), "pydantic"}
    return not any(f"{module}.".startswith(f"{one}.") for one in frameworks)


def is_made_by_others(kind: type) -> bool:
    """No user calls it: a protocol, a type of a dict, or one that takes what its base takes."""
    own = next(base for base in kind.__mro__ if {"__init__", "__new__"} & {*vars(base)})
    builtin = own.__module__ == "builtins"
    return getattr(kind, "_is_protocol", False) or typing.is_typeddict(kind) or builtin


CALLABLES = dict(callables())


@pytest.mark.parametrize(("package", "limit"), NAMES_MAX.items())
def test_names_are_few_and_shadow_nothing(package: str, limit: int) -> None:
    names = names_of(package)
    assert len(names) <= limit, f"{len(names)} names in {package}"
    assert not {*names} & {*sys.stdlib_module_names}


@pytest.mark.parametrize("kind", [recovery.Run, recovery.SyncRun])
def test_a_run_shows_what_agents_use_and_holds_nothing_else(kind: type) -> None:
    assert {name for name in dir(kind) if name[0] != "_"} == OF_A_RUN
    assert all((getattr(kind, name).__doc__ or "").strip() for name in OF_A_RUN)
    assert "__dict__" not in dir(kind)


@pytest.mark.parametrize("module", PUBLIC)
def test_what_a_module_names_is_there(module: str) -> None:
    names = names_of(module)
    assert names == sorted(set(names), key=names.index)
    assert all(hasattr(PUBLIC[module], name) for name in names)


def test_importing_the_runtime_brings_in_no_room_that_agents_can_do_without() -> None:
    code = "import recovery, sys; print(*sys.modules)"
    found = subprocess.check_output([sys.executable, "-c", code], text=True).split()
    rooms = {name.split(".")[1] for name in found if name.startswith("recovery.")}
    assert not rooms & {"cli", "graph", "integrations", "ops", "reports", "testing", "worker"}
    assert [name for name in found if name.startswith("eventlog.remote.")] == [
        "eventlog.remote.log_url"
    ]


def test_every_error_of_the_runtime_is_in_one_place() -> None:
    errors = PUBLIC["recovery.errors"]
    made = {
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value)
        and issubclass(value, Exception)
        and name[0] != "_"
        and value.__module__ == errors.__name__
    }
    assert made == {*errors.__all__}
    for name in names_of("recovery"):
        if name.endswith("Error"):
            assert name in errors.__all__


@pytest.mark.parametrize("name", CALLABLES)
def test_what_is_called_shows_its_parameters(name: str) -> None:
    called = CALLABLES[name]
    try:
        parameters = inspect.signature(called).parameters.values()
    except ValueError:  # a method of a builtin
        assert getattr(called, "__module__", None) is None or "eventlog" not in called.__module__
        return
    taken = [one for one in parameters if one.name not in ("self", "cls")]
    assert not taken or not all(one.kind in ALL_OPTIONS for one in taken), taken
    assert unnamed_options(called) == []


def unnamed_options(called: Callable[..., Any]) -> list[str]:
    """The options that a callable takes by ``**options`` and that its help does not speak of."""
    function = called.__init__ if inspect.isclass(called) else called
    annotation = next(
        (
            one.annotation
            for one in inspect.signature(function).parameters.values()
            if one.kind is one.VAR_KEYWORD
        ),
        None,
    )
    found = re.fullmatch(r"Unpack\[(\w+)\]", str(annotation))
    if found is None:
        return []
    options = vars(sys.modules[function.__module__])[found[1]]
    text = inspect.getdoc(called) or ""
    if see := re.search(r"see ``Run\.(\w+)``", text.partition("\n")[0]):
        text = inspect.getdoc(getattr(recovery.Run, see[1])) or ""
    lines = {name for found in re.findall(r"``(\w+)|^ +(\w+): ", text, re.M) for name in found}
    return [name for name in options.__annotations__ if name not in lines]


def imports(source: str) -> Iterator[tuple[str, str]]:
    """Module and name of each import of ours, "" for a module itself."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield node.module or "", alias.name
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, ""


def programs(path: Path) -> list[str]:
    """The Python in a file, the blocks of a page that are whole enough to be read as such."""
    text = path.read_text()
    if path.suffix == ".py":
        return [text]
    blocks = re.findall(r"```python\n(.*?)```", text, re.S)
    return [
        "\n".join(re.findall(r"^(?:from|import) (?:[^(\n]*\n|.*?\(.*?\))", one, re.M | re.S))
        for one in blocks
    ]


@pytest.mark.parametrize("path", WRITTEN_FOR_USERS, ids=lambda path: path.name)
def test_users_are_shown_public_names_alone(path: Path) -> None:
    for source in programs(path):
        for module, name in imports(source):
            if module.split(".")[0] in NAMES_MAX and module not in NEEDS.keys() - PUBLIC.keys():
                assert module in PUBLIC, f"{module} is not public"
                assert not name or name in names_of(module), f"{name} is none of {module}"
