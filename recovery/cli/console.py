"""Rich's console, as both commands use it."""

from rich.console import Console


class Terminal(Console):
    """A console that leaves a closed pipe to the command, which ends with 141 then."""

    def on_broken_pipe(self) -> None:
        """Rich would end the process with 1."""
        raise BrokenPipeError
