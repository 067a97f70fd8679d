"""What all tests share: one printed seed, hypothesis profiles, a home directory of their own."""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import HealthCheck, settings

# The seed alone repeats a run, so no example database: it would replay what other runs found.
settings.register_profile(
    "default", max_examples=100, deadline=None, print_blob=True, database=None
)
settings.register_profile(
    "crash",
    settings.get_profile("default"),
    max_examples=5000,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("EVENTLOG_TEST_PROFILE", "default"))


@pytest.hookimpl(tryfirst=True)  # before hypothesis reads its option
def pytest_configure(config: pytest.Config) -> None:
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(random.SystemRandom().getrandbits(32))


def _seed_line(config: pytest.Config) -> str:
    seed = config.option.hypothesis_seed
    return f"random seed: {seed} (repeat with --hypothesis-seed={seed})"


def pytest_report_header(config: pytest.Config) -> str:
    return _seed_line(config)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    # Again at the end, because `-q` leaves the header out.
    terminalreporter.write_line(_seed_line(terminalreporter.config))


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """Randomness for one test, from the printed seed and the test's name (not from the order)."""
    return random.Random(f"{request.config.option.hypothesis_seed} {request.node.nodeid}")


@pytest.fixture(autouse=True)
def _eventlog_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """No test, nor a process that it starts, ever touches the user's own runs."""
    monkeypatch.setenv("EVENTLOG_HOME", str(tmp_path_factory.mktemp("eventlog-home")))
