"""How many examples the random tests make: few with every test run, many with `make crash`."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings


def scaled(quick: int, crash: int) -> int:
    """The first with every test run, the second with `make crash` (see tests/conftest.py)."""
    default = settings.default
    assert default is not None
    return crash if default.max_examples > 100 else quick


def example_settings(**options: Any) -> settings:
    """Settings of a test whose examples may take their time."""
    return settings(deadline=None, suppress_health_check=list(HealthCheck), **options)
