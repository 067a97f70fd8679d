"""Kills an agent at every point in tests; works for agents without this library, too."""

from typing import TYPE_CHECKING, Any

from recovery.testing.crash_report import CrashReport, Finding

if TYPE_CHECKING:
    from recovery.testing.simulated.crash import CrashOptions, crash_everywhere

__all__ = ["CrashOptions", "CrashReport", "Finding", "crash_everywhere"]


def __getattr__(name: str) -> Any:
    # Imported when used: each test session of a user loads the pytest plugin, and the killed
    # processes of `recovery crashtest` do not need it.
    if name in ("CrashOptions", "crash_everywhere"):
        from recovery.testing.simulated import crash  # noqa: PLC0415

        return getattr(crash, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
