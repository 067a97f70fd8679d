"""What all tests share: a printed seed, hypothesis profiles, printed figures, a home directory."""

from __future__ import annotations

import gc
import itertools
import json
import os
import random
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

import recovery.agent.agent_errors
import recovery.history.retention
from eventlog.files.file_systems import judge
from eventlog.files.posix import OSFiles
from recovery.agent.drivers import Drivers
from recovery.agent.replay_order import ReplayOrder
from recovery.declare.tool import undoable_tools
from recovery.engine.task_state import Blocking
from recovery.testing.simulated.virtual_time import Clock, virtual_time
from recovery.values import codec
from tests.support.lives import AtOnce, Limited, ending, executed
from tests.support.scale import scaled

# The seed alone repeats a run, so no example database: it would replay what other runs found.
settings.register_profile(
    "default", max_examples=100, deadline=None, print_blob=True, database=None
)
settings.register_profile(
    "crash",
    settings.get_profile("default"),
    max_examples=300,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("EVENTLOG_TEST_PROFILE", "default"))


@pytest.hookimpl(tryfirst=True)  # before hypothesis reads its option
def pytest_configure(config: pytest.Config) -> None:
    seed = config.option.hypothesis_seed
    if hasattr(config, "workerinput"):  # one of several processes: all have the printed one
        seed = config.workerinput["seed"]
    config.option.hypothesis_seed = seed or str(random.SystemRandom().getrandbits(32))
    # A shell has what it starts in the background ignore Ctrl-C, which tests send to themselves.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # A log in memory warns of it, and tests compare all that is printed. /tmp is memory on many
    # systems.
    if _warns(tempfile.gettempdir()) and Path("/var/tmp").is_dir():
        os.environ["TMPDIR"] = tempfile.tempdir = "/var/tmp"


def _warns(path: str) -> bool:
    files = OSFiles()
    with closing(files.open_directory(path)) as directory:
        return judge(files.mount(directory), "power").level != "ok"


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["seed"] = node.config.option.hypothesis_seed


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--figures", type=Path, help="write what the sweeps have counted, as JSON")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("crash") or scaled(False, True):
            item.add_marker(pytest.mark.timeout(0))  # a sweep takes as long as it takes
        if hasattr(getattr(item, "module", None), scaled.__name__):
            item.add_marker(pytest.mark.scaled)


def pytest_collection_finish() -> None:
    # Thousands of tests are objects that the garbage collector would look at again and again.
    gc.collect()
    gc.freeze()
    # Python sees no difference between what a test writes and edits within one second.
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"


class Figures:
    """What the sweeps of a run have covered: counts by sweep, and how long each took."""

    def __init__(self) -> None:
        self.counts: dict[str, dict[str, float]] = {}

    def add(self, sweep: str, **counts: float) -> None:
        """Add counts (``states=...``, ``seconds=...``) to those of a sweep."""
        found = self.counts.setdefault(sweep, {})
        for what, count in counts.items():
            found[what] = found.get(what, 0) + count

    def lines(self) -> list[str]:
        """One line a sweep."""
        return [
            f"{sweep}: " + ", ".join(f"{count:,.0f} {what}" for what, count in counts.items())
            for sweep, counts in sorted(self.counts.items())
        ]


_FIGURES = pytest.StashKey[Figures]()


@pytest.fixture
def figures(request: pytest.FixtureRequest) -> Figures:
    """Where a sweep says what it has covered; printed at the end of the run."""
    return request.config.stash.setdefault(_FIGURES, Figures())


def _seed_line(config: pytest.Config) -> str:
    seed = config.option.hypothesis_seed
    return f"random seed: {seed} (repeat with --hypothesis-seed={seed})"


def pytest_report_header(config: pytest.Config) -> str:
    return _seed_line(config)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    # Again at the end, because `-q` leaves the header out.
    config = terminalreporter.config
    figures = config.stash.setdefault(_FIGURES, Figures())
    for line in figures.lines():
        terminalreporter.write_line(line)
    terminalreporter.write_line(_seed_line(config))
    if config.option.figures:
        text = json.dumps(figures.counts, indent=1, sort_keys=True)
        config.option.figures.write_text(text + "\n", encoding="utf-8")


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """Randomness for one test, from the printed seed and the test's name (not from the order)."""
    return random.Random(f"{request.config.option.hypothesis_seed} {request.node.nodeid}")


@pytest.fixture(scope="session")
def postgres() -> Iterator[Any]:
    """A private PostgreSQL server; each of its URLs is a store of its own."""
    support = pytest.importorskip("tests.support.postgres", exc_type=ImportError)
    if support.binaries() is None:
        pytest.skip("no PostgreSQL from 15 to 17 is installed, nor the wheel pgserver")
    server = support.Server()
    yield server
    server.remove()


@pytest.fixture(scope="session")
def _homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Directories that do not exist yet. (`mktemp` lists all that there are for each new one.)"""
    above = tmp_path_factory.mktemp("eventlog-homes")
    return (above / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def _eventlog_home(monkeypatch: pytest.MonkeyPatch, _homes: Iterator[Path]) -> None:
    """No test, nor a process that it starts, ever touches the user's own runs."""
    monkeypatch.setenv("EVENTLOG_HOME", str(next(_homes)))


@pytest.fixture(autouse=True)
def _tools_of_other_tests() -> Iterator[None]:
    """Tools that a test registers by running a page or an example are known to no later test."""
    before = dict(undoable_tools)
    yield
    undoable_tools.clear()
    undoable_tools.update(before)


@pytest.fixture(autouse=True)
def _types_of_other_tests() -> Iterator[None]:
    """A test that forgets registered types takes none from the tests after it."""
    names, kinds = dict(codec.BY_NAME), dict(codec.BY_TYPE)
    yield
    codec.BY_NAME.update(names | codec.BY_NAME)
    codec.BY_TYPE.update(kinds | codec.BY_TYPE)


@pytest.fixture(autouse=True)
def _runs_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that does the same again and again fails: a test that hangs says less."""
    for name in ("_perform_async", "_perform_sync"):
        monkeypatch.setattr(Drivers, name, ending(getattr(Drivers, name)))


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing has been executed yet, and an agent that fails is run again at once."""
    executed.clear()
    monkeypatch.setattr(recovery.agent.agent_errors, "BACKOFF_S", 0.0)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retention removes records when it is asked to, not soon: a run may be over before that."""
    monkeypatch.setattr(recovery.history.retention, "_cutters", AtOnce())


@pytest.fixture
def clock() -> Iterator[Clock]:
    """Virtual time, which moves where something waits for it."""
    clock = Limited()
    clock.begin()
    with virtual_time(clock):
        yield clock


@pytest.fixture
def in_order(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """No outcome waits in vain for what was recorded before it; where one is to, the test forgets
    it. Else nobody would see it: such a wait ends at once where no code can be at work."""
    in_vain: list[Any] = []
    is_stuck = ReplayOrder._is_stuck

    def noted(order: Any, in_order: bool) -> bool:
        found = is_stuck(order, in_order)
        if found and in_order and order._seen[1] is not Blocking.UNKNOWN:  # then time decides
            in_vain.append(order._in_order[0].wait.turn)
        return found

    monkeypatch.setattr(ReplayOrder, "_is_stuck", noted)
    yield in_vain
    assert in_vain == [], "outcomes (LSNs) that were served out of the recorded order"
