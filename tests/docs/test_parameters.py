"""Every parameter of a public callable has a line in its docstring.

The line may be in the docstring of the class, for a parameter that several methods have, or in the
docstring of a callable that the first paragraph names, as in "see ``Run.call``".
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import recovery
from tests.lint.test_public_surface import CALLABLES, PUBLIC

# Their constructors are for the library alone: users are given these objects.
GIVEN = {
    *("Run", "SyncRun", "Stream", "SyncStream", "RunHandle", "EventLog", "LogReader"),
    *(
        "Call",
        "OutcomeUnknown",
        "Redacted",
        "Forgotten",
        "ModelData",
        "Memory",
        "NodeContext",
        "CrashReport",
    ),
    *("Finding", "RestoredCheckpoint", "Damage", "OpenReport", "LogOwner", "Record", "Snapshot"),
    *("RepairPlan", "Span", "SpanSource", "ExecutionResult", "StepOutcome", "Statement"),
    *(
        "RunEntry",
        "RecordedConversation",
        "RecordedThread",
        "hive.RecordedTools",
        "Resolution",
        "Node",
    ),
}
# Methods that a framework calls, by the parameters that the framework defines.
BY_FRAMEWORKS = re.compile(
    r"\.(EventLogSaver|EventLogDurability|EventLogPlugin|RecordedLlm|RecordedConversation)\.\w+$"
    r"|\.a?wrap_(tool|model)_call$"
    r"|claude_agent\.RecordedTools\.(before|after|after_failure)$"
)
# What the library returns, and tools for tests of the log itself.
OF_REPORTS = ("recovery.reports.", "eventlog.testing.", "eventlog.dump.", "recovery.tracing.Span.")


def text_of(name: str, called: Callable[..., Any]) -> str:
    """Where the parameters of a callable may have their lines."""
    own = inspect.getdoc(called) or ""
    module, _, _ = name.rpartition(".")
    owner = CALLABLES.get(module) or vars(PUBLIC.get(module.rpartition(".")[0], recovery)).get(
        module.rpartition(".")[2]
    )
    texts = [own]
    if inspect.isclass(called) and called.__init__.__doc__:
        texts.append(inspect.getdoc(called.__init__) or "")
    if inspect.isclass(owner):
        texts.append(inspect.getdoc(owner) or "")
    for one in re.findall(r"``(?:(\w+)\.)?(\w+)``", own.partition("\n\n")[0]):
        named = (vars(module).get(one[0]) for module in PUBLIC.values())
        kind = next((kind for kind in named if kind), None) if one[0] else owner
        referred = getattr(kind, one[1], None)
        if inspect.isclass(kind) and callable(referred) and referred is not called:
            texts += [inspect.getdoc(referred) or "", inspect.getdoc(kind) or ""]
    return "\n".join(texts)


def parameters(called: Callable[..., Any]) -> Iterator[str]:
    """The names that a caller may give, those of ``**options`` by their names."""
    function = called.__init__ if inspect.isclass(called) else called
    for one in inspect.signature(called).parameters.values():
        unpacked = re.fullmatch(r"Unpack\[(\w+)\]", str(one.annotation))
        if unpacked and one.kind is one.VAR_KEYWORD:
            yield from vars(sys.modules[function.__module__])[unpacked[1]].__annotations__
        elif one.name not in ("self", "cls") and one.name[0] != "_":
            yield one.name


def without_a_line(name: str, called: Callable[..., Any]) -> list[str]:
    text = text_of(name, called)
    return [
        one
        for one in parameters(called)
        if not re.search(rf"``\*{{0,2}}{one}\b[^`]*``|^\s*\*{{0,2}}{one}: ", text, re.M)
    ]


def is_for_users(name: str, called: Callable[..., Any]) -> bool:
    if not (getattr(called, "__module__", None) or "").startswith(("recovery", "eventlog")):
        return False  # inherited from a builtin class
    if name.startswith(OF_REPORTS) or BY_FRAMEWORKS.search(name):
        return False
    if inspect.isclass(called):
        given = any(name.endswith(f".{one}") for one in GIVEN)
        return not given and not issubclass(called, BaseException)
    return not (inspect.getdoc(called) or "").startswith("Not for users")


FOR_USERS = {name: one for name, one in CALLABLES.items() if is_for_users(name, one)}


def test_each_parameter_has_a_line() -> None:
    assert len(FOR_USERS) > 100
    found = {name: without_a_line(name, called) for name, called in FOR_USERS.items()}
    assert {name: missing for name, missing in found.items() if missing} == {}


def test_a_parameter_without_a_line_is_found() -> None:
    def silent(given: int, *, other: str = "") -> None:
        """Does something with ``given``."""

    assert without_a_line("x.silent", silent) == ["other"]
    assert "retry" in parameters(recovery.tool)
