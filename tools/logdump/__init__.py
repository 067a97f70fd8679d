"""Runs the command ``logdump``, which inspects agent logs by means of ``eventlog.dump``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from recovery.cli.start import Run

__all__ = ["main"]


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns its exit code. While it is loaded, Ctrl-C ends it quietly."""
    try:
        # Importing it takes most of the time; it notices another distribution's `eventlog`.
        from recovery.cli.start import start  # noqa: PLC0415
    except KeyboardInterrupt:
        return 130
    return start("logdump", _load, argv)


def _load() -> Run:
    from logdump.app import run  # noqa: PLC0415 - needs the extra

    return run
