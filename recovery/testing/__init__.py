"""Tests that kill an agent at every point, for users of this library and for anybody else."""

from typing import TYPE_CHECKING, Any

from recovery.testing.report import CrashReport, Finding

if TYPE_CHECKING:
    from recovery.testing.simulated.crash import CrashOptions, crash_everywhere

__all__ = ["CrashOptions", "CrashReport", "Finding", "crash_everywhere"]


def __getattr__(name: str) -> Any:
    # Imported when used: the pytest plugin is loaded in each test session of its users, and the
    # killed processes of `recovery crashtest` need none of it.
    if name in ("CrashOptions", "crash_everywhere"):
        from recovery.testing.simulated import crash  # noqa: PLC0415

        return getattr(crash, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
