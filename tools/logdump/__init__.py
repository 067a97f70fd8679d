"""Look at agent logs: the command ``logdump``. The work is done by ``eventlog.dump``."""

__all__ = ["main"]


def main() -> int:
    """Run the command; its exit code. Ctrl-C ends it quietly while it is still being loaded."""
    try:
        from logdump.__main__ import main as run  # noqa: PLC0415 - most of the time it takes

        return run()
    except KeyboardInterrupt:
        return 130
