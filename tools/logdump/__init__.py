"""Look at agent logs: the command ``logdump``. The work is done by ``eventlog.dump``."""

__all__: list[str] = []
