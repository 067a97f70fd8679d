"""Tests that kill an agent at every point, for users of this library and for anybody else."""

from recovery.testing._report import CrashReport, Finding

__all__ = ["CrashReport", "Finding"]
