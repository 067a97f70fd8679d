"""An integration refuses a package that is missing or too old when it is imported, and says which
is needed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from recovery.integrations.versions import check_version

OLD = {
    "agent_framework": ("agent-framework-core", "1.20.9", "agent-framework"),
    "anthropic": ("anthropic", "0.40.0", "anthropic"),
    "claude_agent": ("claude-agent-sdk", "0.1.9", "claude-agent"),
    "google_adk": ("google-adk", "2.12.0", "google-adk"),
    "langgraph": ("langgraph", "1.2.14", "langgraph"),
    "mcp": ("mcp", "1.26.0", "mcp"),
    "openai": ("openai", "1.99.9", "openai"),
    "openai_agents": ("openai-agents", "0.19.9", "openai-agents"),
    "otel": ("opentelemetry-sdk", "1.29.0", "otel"),
    "pydantic_ai": ("pydantic-ai-slim", "2.61.9", "pydantic-ai"),
}


@pytest.mark.parametrize("module", OLD)
def test_a_version_that_is_not_supported_is_refused_at_import(module: str) -> None:
    package, found, extra = OLD[module]
    program = (
        "import importlib.metadata as m\nof = m.version\n"
        f"m.version = lambda name: {found!r} if name == {package!r} else of(name)\n"
        f"import recovery.integrations.{module}\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    said = f"{package} {found} is installed: pip install 'agent-eventlog[{extra}]'"
    assert said in ended.stderr, ended.stderr[-2000:]


def test_a_package_that_is_missing_is_named() -> None:
    with pytest.raises(ImportError, match=r"no-such is not installed: pip install 'agent-event"):
        check_version("no-such", "1.0")


@pytest.mark.parametrize("found", ["0.20.0", "0.24.0", "0.25.0rc1", "1.0"])
def test_later_versions_are_taken(found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recovery.integrations.versions.version", lambda package: found)
    check_version("openai-agents", "0.20")
