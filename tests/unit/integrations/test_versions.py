"""An integration refuses a package that is missing or too old when it is imported, and says which
is needed."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import pytest

from recovery import integrations
from recovery.integrations.versions import check_version

# Package, versions that are refused, and the extra that brings the package.
REFUSED = {
    "agent_framework": ("agent-framework-core", ["1.20.9"], "agent-framework"),
    "anthropic": ("anthropic", ["0.40.0"], "anthropic"),
    "claude_agent": ("claude-agent-sdk", ["0.1.9"], "claude-agent"),
    "google_adk": ("google-adk", ["2.12.0"], "google-adk"),
    "langgraph": ("langgraph", ["1.2.14", "2.0.0"], "langgraph"),
    "mcp": ("mcp", ["1.26.0"], "mcp"),
    "openai": ("openai", ["1.99.9"], "openai"),
    "openai_agents": ("openai-agents", ["0.19.9"], "openai-agents"),
    "otel": ("opentelemetry-sdk", ["1.29.0"], "otel"),
    "pydantic_ai": ("pydantic-ai-slim", ["2.61.9"], "pydantic-ai"),
}


def test_each_integration_is_tried() -> None:
    own = {"event_stream", "framework_calls", "hive", "sdk_client", "versions"}
    assert {one.name for one in pkgutil.iter_modules(integrations.__path__)} == {*REFUSED} | own


@pytest.mark.parametrize("module", REFUSED)
def test_a_package_that_is_missing_or_not_supported_is_refused_at_import(module: str) -> None:
    package, versions, extra = REFUSED[module]
    program = f"""
import importlib.metadata as metadata
of, found = metadata.version, None

def version(name):
    if name == {package!r} and found is None:
        raise metadata.PackageNotFoundError(name)
    return found if name == {package!r} else of(name)

metadata.version = version
for found in {[None, *versions]!r}:
    try:
        import recovery.integrations.{module}
    except ImportError as exc:
        print(exc)
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    how = f"pip install 'agent-eventlog[{extra}]'"
    missing, *others = ended.stdout.splitlines() or [ended.stderr]
    assert missing == f"{package} is not installed: {how}"
    for found, said in zip(versions, others, strict=True):
        assert f"works with {package}>=" in said
        assert said.endswith(f", and {package} {found} is installed: {how}")


@pytest.mark.parametrize("found", ["0.20.0", "0.24.0", "0.25.0rc1", "1.0"])
def test_later_versions_are_taken(found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recovery.integrations.versions.version", lambda package: found)
    check_version("openai-agents", "0.20")
