"""Runs the command ``logdump``, which inspects agent logs by means of ``eventlog.dump``."""

__all__ = ["main"]


def main() -> int:
    """Run the command; returns its exit code. While it is loaded, Ctrl-C ends it quietly."""
    try:
        import recovery  # noqa: F401, PLC0415 - says so if `eventlog` is another distribution's
        from logdump.__main__ import main as run  # noqa: PLC0415 - most of the time it takes

        return run()
    except KeyboardInterrupt:
        return 130
