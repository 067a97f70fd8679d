"""Tests integrations with the oldest and the newest versions of frameworks that they support.

``python -m tests.versions [NAME...] [--age oldest] [--times 10]``: names as in ENVIRONMENTS, or
"langgraph-own"; all by default. Each environment is made anew in ``build/versions``, and needs the
package index. uv installs the packages where it is on the PATH. The oldest versions are those of
the extras in pyproject.toml.

"langgraph-own" has LangGraph's own tests that take a checkpointer, from its source distribution,
with EventLogSaver in place of SqliteSaver. What fails is tried with SqliteSaver, and is no fault if
it fails with that too. Each of the ``--times`` has LangGraph's default mode, and its strict one.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterable
from pathlib import Path

from tests.support.paths import ROOT

# Extras, what their tests need besides, and the tests.
ENVIRONMENTS: dict[str, tuple[list[str], list[str], list[str]]] = {
    "providers": (
        ["openai", "anthropic", "mcp"],
        ["httpx", "httpx2"],  # SDKs send by one of them, and tests by both
        [
            "unit/integrations/test_providers.py",
            "unit/integrations/test_mcp.py",
            "integration/kills/test_provider_kills.py",
        ],
    ),
    "pydantic-ai": (
        ["pydantic-ai"],
        ["pydantic-ai-slim[mcp]"],
        ["unit/integrations/pydantic_ai", "integration/kills/test_pydantic_ai_kills.py"],
    ),
    "openai-agents": (
        ["openai-agents"],
        [],
        ["unit/integrations/openai_agents", "integration/kills/test_openai_agents_kills.py"],
    ),
    "google-adk": (
        ["google-adk"],
        ["mcp"],
        [
            "unit/integrations/google_adk",
            "integration/kills/test_google_adk_kills.py",
            "integration/kills/test_example_shops_kills.py",
        ],
    ),
    "agent-framework": (
        ["agent-framework"],
        [],
        ["unit/integrations/agent_framework", "integration/kills/test_agent_framework_kills.py"],
    ),
    "langgraph": (
        ["langgraph"],
        ["langchain", "langgraph-checkpoint-conformance", "numpy", "pycryptodome"],
        ["unit/integrations/langgraph", "integration/kills/test_langgraph_kills.py"],
    ),
    "claude-agent": (
        ["claude-agent"],
        [],
        ["unit/integrations/claude_agent", "integration/kills/test_example_shops_kills.py"],
    ),
    "otel": (
        ["otel"],
        ["opentelemetry-proto"],
        ["unit/integrations/otel/test_otel.py", "unit/integrations/otel/test_otel_kills.py"],
    ),
}
TOOLS = ["hypothesis", "pytest", "pytest-timeout", "pydantic", "anyio"]
AGES = ["oldest", "newest"]
LANGGRAPH_OWN = "langgraph-own"
LANGGRAPH_NEEDS = (
    "langgraph-checkpoint-sqlite langgraph-checkpoint-postgres psycopg[binary] psycopg-pool redis "
    "pycryptodome pytest pytest-mock pytest-dotenv pytest-timeout syrupy httpx anyio"
).split()


def oldest(extra: str) -> list[str]:
    """What the extra needs, each in the oldest version that it allows."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        needs = tomllib.load(file)["project"]["optional-dependencies"][extra]
    return [re.sub(r">=([\d.]+).*", r"==\1", one) for one in needs]


def environment(name: str, age: str, extras: Iterable[str], besides: list[str]) -> Path:
    """A new environment with this library and the extras: its Python."""
    pins = [pin for extra in extras for pin in (oldest(extra) if age == "oldest" else ())]
    print(f"== {name}, {age}: {', '.join(pins or extras)}", flush=True)
    place = ROOT / "build" / "versions" / f"{name}-{age}"
    venv.create(place, clear=True, with_pip=True)
    python = place / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if uv := shutil.which("uv"):
        pip = [uv, "pip", "install", "--quiet", "--python", str(python)]
    own = ",".join(["cli", "encryption", *extras])
    subprocess.run([*pip, "--editable", f"{ROOT}[{own}]", *pins, *besides], check=True)
    return python


def passes(name: str, age: str) -> bool:
    """Whether the tests of an environment pass."""
    extras, besides, tests = ENVIRONMENTS[name]
    python = environment(name, age, extras, [*besides, *TOOLS])
    paths = [f"tests/{test}" for test in tests]
    pytest = [str(python), "-m", "pytest", "-q", "-m", "not crash", "-p", "no:cacheprovider"]
    return subprocess.run([*pytest, *paths], cwd=ROOT, check=False).returncode == 0


# -- LangGraph's own tests


def langgraph_passes(age: str, times: int) -> bool:
    """Whether all of LangGraph's own tests pass that pass with SqliteSaver."""
    python = environment(LANGGRAPH_OWN, age, ["langgraph"], LANGGRAPH_NEEDS)
    ask = "from importlib.metadata import version as of; print(of('langgraph'))"
    version = subprocess.check_output([python, "-c", ask], text=True).strip()
    place = python.parents[1]
    load = [str(python), *"-m pip download --quiet --no-deps --no-binary langgraph".split()]
    subprocess.run([*load, f"langgraph=={version}", "--dest", str(place)], check=True)
    shutil.unpack_archive(place / f"langgraph-{version}.tar.gz", place, filter="data")
    tests = place / "tests"  # apart from the sources, which would be imported
    for name in ("tests", "pyproject.toml"):
        (place / f"langgraph-{version}" / name).rename(place / name)
    files = [one for one in tests.glob("test_*.py") if "sync_checkpointer" in one.read_text()]
    paths, worse = [f"tests/{one.name}" for one in sorted(files)], False
    for strict in ["false", "true"] * times:
        failed = langgraph_failures(python, paths, strict, "EventLogSaver")
        theirs = langgraph_failures(python, failed, strict, "SqliteSaver") if failed else []
        for one in failed:
            print(f"{one} fails" + (", with SqliteSaver too" if one in theirs else ""), flush=True)
        worse = worse or not set(failed) <= set(theirs)
    return not worse


def langgraph_failures(python: Path, tests: list[str], strict: str, saver: str) -> list[str]:
    """Run tests with a saver, and return those that fail."""
    place = python.parents[1]
    print(f"-- LANGGRAPH_STRICT_MSGPACK={strict}, {saver}", flush=True)
    failed = place / "failed"
    failed.write_text("")
    env = {
        **os.environ,
        "NO_DOCKER": "true",
        "LANGSMITH_TRACING": "false",
        "LANGGRAPH_STRICT_MSGPACK": strict,
        "PYTHONPATH": str(ROOT / "tests" / "support"),
        "SAVER": saver,
        "FAILED": str(failed),
    }
    pytest = [str(python), *"-m pytest -q -k sqlite -p langgraph_suite --timeout=120".split()]
    options = ["-o", "addopts=--snapshot-warn-unused", "-p", "no:cacheprovider"]
    code = subprocess.run([*pytest, *options, *tests], cwd=place, env=env, check=False).returncode
    if code not in (0, 1):
        raise SystemExit(f"pytest ended with {code}")
    return failed.read_text().splitlines()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.versions")
    every = [*ENVIRONMENTS, LANGGRAPH_OWN]
    parser.add_argument("names", nargs="*", default=every, help=", ".join(every))
    parser.add_argument("--age", choices=AGES)
    parser.add_argument("--times", type=int, default=1)
    given = parser.parse_args()
    if unknown := {*given.names} - {*every}:
        parser.error(f"there is no {', '.join(unknown)}: {', '.join(every)}")
    failed = [
        f"{name} ({age})"
        for name in given.names
        for age in ([given.age] if given.age else AGES)
        if not (langgraph_passes(age, given.times) if name == LANGGRAPH_OWN else passes(name, age))
    ]
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
