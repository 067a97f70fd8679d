"""The wheel, in an empty environment: three packages and two dependencies, nothing else."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT

PACKAGES = {"eventlog", "recovery", "logdump"}
DEPENDENCIES = ("msgpack", "xxhash")

# Run in the empty environment: what can be imported, and what that brought in from site-packages.
PROBE = """
import importlib.util, json, sys, sysconfig
import eventlog, recovery, logdump
site = sysconfig.get_path("purelib")
files = {name: getattr(module, "__file__", None) or "" for name, module in sys.modules.items()}
print(json.dumps({
    "installed": [name.partition(".")[0] for name, file in files.items() if file.startswith(site)],
    "intruders": [name for name in ("tools", "tests") if importlib.util.find_spec(name)],
}))
"""


def run(*command: str | Path, cwd: Path) -> str:
    # What a developer has on the path must not stand in for what the wheel installs.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", out, cwd=ROOT)
    (built,) = out.glob("*.whl")
    return built


def copy_distribution(name: str, target: Path) -> None:
    """An installed distribution as it is, so that the test needs no network."""
    for file in distribution(name).files or ():
        if ".." not in file.parts and "__pycache__" not in file.parts:
            (target / file).parent.mkdir(parents=True, exist_ok=True)
            (target / file).write_bytes(Path(str(file.locate())).read_bytes())


def test_wheel_holds_three_packages_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    info = next(n for n in names if n.endswith(".dist-info/METADATA")).partition("/")[0]
    assert {n.partition("/")[0] for n in names} == PACKAGES | {info}
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(names)
    folder = ROOT / "tools/logdump/timeline"
    parts = {path.name for path in folder.iterdir() if path.is_file()}
    assert parts and {f"logdump/timeline/{part}" for part in parts} <= set(names)
    assert f"{info}/licenses/LICENSE" in names


def test_wheel_works_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    python = tmp_path / "venv" / "bin" / "python"
    empty = tmp_path / "empty"
    empty.mkdir()
    purelib = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(run(python, "-I", "-c", purelib, cwd=empty).strip())
    for name in DEPENDENCIES:
        copy_distribution(name, site)
    # With no index to ask, pip fails if the wheel requires anything but these two.
    pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check")
    run(*pip, "install", "--quiet", "--no-index", wheel, cwd=empty)

    seen = json.loads(run(python, "-W", "error", "-c", PROBE, cwd=empty))
    assert seen["intruders"] == []
    assert PACKAGES <= set(seen["installed"]) <= PACKAGES | set(DEPENDENCIES)
    for command in ("logdump", "recovery"):  # they need an extra, and say which
        done = subprocess.run(
            [python.with_name(command), "--help"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 64 and "pip install 'agent-eventlog[cli]'" in done.stderr


@pytest.mark.parametrize("start", ["import recovery", "import logdump; logdump.main()"])
def test_a_foreign_package_named_eventlog_is_reported(start: str, tmp_path: Path) -> None:
    (tmp_path / "eventlog").mkdir()
    (tmp_path / "eventlog/__init__.py").write_text("")
    done = subprocess.run(
        (sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {start}"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ImportError: agent-eventlog has a package named `eventlog`"), last
    assert str(tmp_path / "eventlog") in last


def test_a_python_without_file_locks_is_told_where_it_runs(tmp_path: Path) -> None:
    done = subprocess.run(
        (sys.executable, "-c", "import sys; sys.modules['fcntl'] = None; import recovery"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "runs on Linux and macOS" in done.stderr.splitlines()[-1]


def test_the_links_of_the_readme_are_absolute_on_an_index(monkeypatch: pytest.MonkeyPatch) -> None:
    def metadata() -> dict[str, Any]:
        found = json.loads(run(sys.executable, "-m", "hatchling", "metadata", cwd=ROOT))
        assert isinstance(found, dict)
        return found

    local = metadata()
    assert local["readme"]["text"] == (ROOT / "README.md").read_text(encoding="utf-8")
    assert "urls" not in local
    monkeypatch.setenv("PROJECT_URL", "https://example.org/a/b/")
    released = metadata()
    files = f"https://example.org/a/b/blob/v{released['version']}"
    assert released["urls"]["Changelog"] == f"{files}/CHANGELOG.md"
    links = re.findall(r"\]\(([^)]*)\)", released["readme"]["text"])
    assert len(links) > 40 and f"{files}/docs/calls.md#stopping" in links
    assert [link for link in links if not link.startswith("https://")] == []


def test_the_source_distribution_has_the_tests_without_the_fuzz_corpus(tmp_path: Path) -> None:
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path, cwd=ROOT)
    (built,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(built) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"tests/conftest.py", "SECURITY.md", "README.md", "LICENSE"} <= names
    assert not [name for name in names if name.startswith("tests/fuzz/corpus/")]
