"""Adapts Rich's console for both commands."""

from typing import Any

from rich.console import Console


class Terminal(Console):
    """A console that leaves a closed pipe to the command, which then exits with 141, and whose
    lines end with their last letter where it is no terminal."""

    def on_broken_pipe(self) -> None:
        """Rich would end the process with 1."""
        raise BrokenPipeError

    def print(self, *objects: Any, **options: Any) -> None:
        """Print like Console; in a pipe without the blanks that fill a table."""
        if self.is_terminal or self.stderr:
            return super().print(*objects, **options)
        with self.capture() as captured:
            super().print(*objects, **options)
        for line in captured.get().split("\n")[:-1]:
            self.file.write(f"{line.rstrip(' ')}\n")
        return None
