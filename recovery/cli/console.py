"""Adapts Rich's console for both commands."""

from rich.console import Console


class Terminal(Console):
    """A console that leaves a closed pipe to the command, which then exits with 141."""

    def on_broken_pipe(self) -> None:
        """Rich would end the process with 1."""
        raise BrokenPipeError
