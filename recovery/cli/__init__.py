"""Implements ``recovery``: the command for runs of agents, and for testing them.

The packages that it needs besides the library are in the extra ``[cli]``.
"""

from recovery.cli.start import Run, start


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return start("recovery", _load, argv)


def _load() -> Run:
    from recovery.cli.app import run  # noqa: PLC0415 - needs the extra

    return run
