"""Tests integrations with the oldest versions that they support: ``python -m tests.oldest``.

Arguments: names of environments, as in ENVIRONMENTS; all by default. Each is made anew in
``build/oldest``, and needs the package index. uv installs the packages where it is on the PATH. The
oldest versions are those of the extras in pyproject.toml.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
import venv

from tests.support.paths import ROOT

# Extras, what their tests need besides, and the tests.
ENVIRONMENTS: dict[str, tuple[list[str], list[str], list[str]]] = {
    "providers": (
        ["openai", "anthropic", "mcp"],
        [],
        ["unit/integrations/test_providers.py", "unit/integrations/test_mcp.py"],
    ),
    "pydantic-ai": (
        ["pydantic-ai"],
        ["pydantic-ai-slim[mcp]"],
        ["unit/integrations/pydantic_ai", "integration/test_pydantic_ai_kills.py"],
    ),
    "openai-agents": (
        ["openai-agents"],
        [],
        ["unit/integrations/openai_agents", "integration/test_openai_agents_kills.py"],
    ),
    "google-adk": (
        ["google-adk"],
        ["mcp"],
        ["unit/integrations/google_adk", "integration/test_google_adk_kills.py"],
    ),
    "agent-framework": (
        ["agent-framework"],
        [],
        ["unit/integrations/agent_framework", "integration/test_agent_framework_kills.py"],
    ),
    "langgraph": (
        ["langgraph"],
        ["langchain", "langgraph-checkpoint-conformance", "pycryptodome"],
        ["unit/integrations/langgraph", "integration/test_langgraph_kills.py"],
    ),
    "claude-agent": (["claude-agent"], [], ["unit/integrations/claude_agent"]),
    "otel": (["otel"], ["opentelemetry-proto"], ["unit/integrations/otel/test_otel.py"]),
}
TOOLS = ["hypothesis", "pytest", "pytest-timeout", "pydantic", "anyio"]


def oldest(extra: str) -> list[str]:
    """What the extra needs, each in the oldest version that it allows."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        needs = tomllib.load(file)["project"]["optional-dependencies"][extra]
    return [re.sub(r">=([\d.]+).*", r"==\1", one) for one in needs]


def run(name: str) -> bool:
    """Whether the tests of an environment pass."""
    extras, besides, tests = ENVIRONMENTS[name]
    pins = [pin for extra in extras for pin in oldest(extra)]
    print(f"== {name}: {', '.join(pins)}", flush=True)
    place = ROOT / "build" / "oldest" / name
    venv.create(place, clear=True, with_pip=True)
    python = str(place / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if uv := shutil.which("uv"):
        pip = [uv, "pip", "install", "--quiet", "--python", python]
    subprocess.run(
        [*pip, "--editable", f"{ROOT}[cli,encryption]", *pins, *besides, *TOOLS], check=True
    )
    paths = [f"tests/{test}" for test in tests]
    pytest = [python, "-m", "pytest", "-q", "-m", "not crash", "-p", "no:cacheprovider"]
    return subprocess.run([*pytest, *paths], cwd=ROOT, check=False).returncode == 0


if __name__ == "__main__":
    failed = [name for name in sys.argv[1:] or ENVIRONMENTS if not run(name)]
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)
