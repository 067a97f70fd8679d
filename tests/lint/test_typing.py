"""What users write type-checks under mypy --strict, against the packages as they are installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import TESTS

EXAMPLES = TESTS / "typing" / "api.py"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all: what has been checked once is not checked again."""
    return tmp_path_factory.mktemp("mypy")


def mypy(path: Path, cache: Path) -> str:
    # Where the packages are found: mypy itself looks into site-packages, and nowhere else.
    checkout = [path for path in sys.path if path and (Path(path) / "recovery").is_dir()]
    environment = os.environ | {
        "MYPYPATH": os.pathsep.join(p for p in checkout if "site-packages" not in p)
    }
    command = [
        "--strict",
        "--config-file=",
        f"--cache-dir={cache}",
        "--no-error-summary",
        str(path),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *command],
        env=environment,
        cwd=cache,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "usage:" not in done.stderr, done.stderr
    return done.stdout + done.stderr


def test_what_users_write_type_checks(cache: Path) -> None:
    assert mypy(EXAMPLES, cache) == ""


def test_what_users_get_wrong_is_found(tmp_path: Path, cache: Path) -> None:
    wrong = tmp_path / "wrong.py"
    text = EXAMPLES.read_text().replace("# type: ignore[call-arg]", "")
    wrong.write_text(text.replace("found = await of.run", "found = of.run"))
    found = mypy(wrong, cache)
    assert 'Missing positional argument "body"' in found
    assert "Coroutine" in found
