"""Kills an agent at every point in tests; replays recorded runs."""

from typing import TYPE_CHECKING, Any

from recovery.testing.crash_report import CrashReport, Finding

if TYPE_CHECKING:
    from recovery.testing.replaying.replay import Replayed, replay
    from recovery.testing.simulated.crash import CrashOptions, crash_everywhere

__all__ = ["CrashOptions", "CrashReport", "Finding", "Replayed", "crash_everywhere", "replay"]


def __getattr__(name: str) -> Any:
    # Imported when used: each test session of a user loads the pytest plugin, and the killed
    # processes of `recovery crashtest` do not need it.
    if name in ("CrashOptions", "crash_everywhere"):
        from recovery.testing.simulated import crash  # noqa: PLC0415

        return getattr(crash, name)
    if name in ("Replayed", "replay"):
        from recovery.testing.replaying import replay  # noqa: PLC0415

        return getattr(replay, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
