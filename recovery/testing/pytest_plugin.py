"""Provides the pytest plugin: fixtures that kill an agent at every point, and replay a run.

pytest loads it wherever this library is installed. ``--crash-points`` and ``--crash-seed`` override
the arguments of all tests that use ``crash_everywhere``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import pytest

from recovery.testing import CrashReport

if TYPE_CHECKING:
    from recovery.testing import Replayed

PROPERTY = "crash_everywhere"  # of a test's report, which brings figures from other processes


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of this plugin."""
    group = parser.getgroup("recovery", "crash tests of agents (recovery.testing)")
    group.addoption(
        "--crash-points",
        metavar="N",
        type=_points,
        default=None,
        help="at how many points to kill each agent: a number, or all",
    )
    group.addoption(
        "--crash-seed",
        metavar="SEED",
        type=int,
        default=None,
        help="chooses the points, and what is random in the runs",
    )


def _points(text: str) -> int | Literal["all"]:
    return "all" if text == "all" else int(text)


@pytest.fixture
def crash_everywhere(request: pytest.FixtureRequest) -> Callable[..., CrashReport]:
    """``recovery.testing.crash_everywhere``, which fails the test if the report is not ok.

    Returns the report. Takes ``--crash-points`` and ``--crash-seed`` from the command line.
    """

    def run(agent: Any, task: Any = None, **options: Any) -> CrashReport:
        __tracebackhide__ = True
        from recovery.testing import crash_everywhere as sweep  # noqa: PLC0415

        report = sweep(agent, task, **(options | _from_command_line(request.config, options)))
        figures = [report.points, report.possible, report.resumptions, report.seed]
        request.node.user_properties.append((PROPERTY, figures))
        if not report.ok:
            pytest.fail(str(report), pytrace=False)
        return report

    return run


@pytest.fixture
def replay_run() -> Callable[..., Replayed]:
    """``recovery.testing.replay``, which fails the test with the difference if there is one."""

    def run(source: Any, agent: Any, run_id: str | None = None, **options: Any) -> Replayed:
        __tracebackhide__ = True
        from recovery.errors import CHOICES, DivergenceError  # noqa: PLC0415 - only where it is used
        from recovery.testing import replay  # noqa: PLC0415 - as above

        try:
            return replay(source, agent, run_id, **options)
        except DivergenceError as exc:  # without the choices: no run is resumed here
            said = str(exc).partition(f"\n{CHOICES}")[0]
            raise pytest.fail.Exception(said, pytrace=False) from None

    return run


def _from_command_line(config: pytest.Config, options: dict[str, Any]) -> dict[str, Any]:
    points, seed = config.getoption("--crash-points"), config.getoption("--crash-seed")
    given = {} if seed is None else {"seed": seed}
    if points is not None and isinstance(options.get("points", 0), int | str):
        given["points"] = points  # unless the test lists certain points
    return given


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A summary of what was tried."""
    reports = [
        report
        for found in terminalreporter.stats.values()
        for report in found
        if getattr(report, "when", "") == "call"
    ]
    figures = [
        value for report in reports for name, value in report.user_properties if name == PROPERTY
    ]
    if not figures:
        return
    points, possible, resumptions = (sum(one[i] for one in figures) for i in range(3))
    seeds = sorted({one[3] for one in figures})
    again = f" (repeat with --crash-seed={seeds[0]})" if len(seeds) == 1 else ""
    terminalreporter.write_line(
        f"crash tests: {len(figures)} agent{'s' * (len(figures) != 1)}, {points} crash points of "
        f"{possible}, {resumptions} resumptions, seed {', '.join(map(str, seeds))}{again}"
    )
