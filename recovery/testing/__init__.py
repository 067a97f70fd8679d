"""Tests that kill an agent at every point, for users of this library and for anybody else."""

from recovery.testing._crash import CrashOptions, crash_everywhere
from recovery.testing._report import CrashReport, Finding

__all__ = ["CrashOptions", "CrashReport", "Finding", "crash_everywhere"]
