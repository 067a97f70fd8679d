"""What all commands share: where they write, how they ask, and how they end early."""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import typer

from eventlog import LogError, LogLockedError
from recovery import RecoveryError
from recovery.cli.console import Terminal
from recovery.cli.exit_codes import CLOSED_PIPE, FOUND, INTERRUPTED, USAGE
from recovery.cli.key_options import KeyFileError
from recovery.cli.streams import discard, folded, where_of
from recovery.cli.who import holder
from recovery.text import printable, printable_lines, quoted

PIPE_WIDTH = 160


@contextmanager
def ends_politely() -> Iterator[None]:
    """No traceback for a closed pipe, for Ctrl-C (SIGTERM and SIGHUP end the same way), and for
    what a user can do something about."""
    with ExitStack() as stack:
        for signum in (signal.SIGTERM, signal.SIGHUP):
            with suppress(ValueError):  # only the main thread may
                stack.callback(signal.signal, signum, signal.signal(signum, _interrupt))
        try:
            yield
            sys.stdout.flush()
        except BrokenPipeError:
            discard()
            raise typer.Exit(CLOSED_PIPE) from None
        except (KeyFileError, ValueError) as exc:
            raise complain(str(exc), USAGE) from None
        except LogLockedError as exc:
            stuck = "one that is known to be stuck is overruled by recovery resume --takeover."
            raise complain(f"{holder(exc)}; {stuck}", FOUND) from None
        except (RecoveryError, LogError) as exc:
            raise complain(str(exc), FOUND) from None
        except OSError as exc:
            raise complain(because(exc), FOUND) from None
        except (KeyboardInterrupt, typer.Abort):  # the latter while it asks
            progress().print("interrupted", style="bold")
            raise typer.Exit(INTERRUPTED) from None


def because(exc: OSError) -> str:
    """What the system refused, and where."""
    where = where_of(exc)
    return f"{where}{where and ': '}{exc.strerror or exc}"


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def complain(text: str, code: int) -> typer.Exit:
    """Say on standard error what is wrong; the exception that ends the command with ``code``."""
    typer.echo(folded(f"recovery: {printable_lines(text)}", sys.stderr), err=True)
    return typer.Exit(code)


def their_own(exc: BaseException, what: str) -> typer.Exit:
    """Show an error of the user's code with its traceback, and ``what`` it came from; as above."""
    typer.echo(quoted("".join(traceback.format_exception(exc))), err=True)
    return complain(f"{what}: {type(exc).__name__}", FOUND)


def hint(commands: Sequence[str]) -> None:
    """Show on standard error, not folded, what can be typed next."""
    for i, line in enumerate(commands):
        typer.echo(f"{'' if i else 'next:':<5} {printable(line)}", err=True)


def say(text: str) -> None:
    """Print a line, or lines, of the result."""
    typer.echo(folded(printable_lines(text), sys.stdout))


def show_json(value: Any) -> None:
    """Print a value as one line of JSON: ASCII, without control characters."""
    typer.echo(json.dumps(value, allow_nan=False))


def confirm(question: str, yes: bool) -> None:
    """Go on if the user agrees; without a terminal to ask at, only with ``--yes``."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise complain(f"{question} There is nobody to ask: say --yes to go on.", USAGE)
    if not typer.confirm(printable_lines(question), err=True):
        raise complain("nothing was changed", FOUND)


def output() -> Terminal:
    """For tables on standard output. Heeds NO_COLOR; in a pipe lines are not folded."""
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else PIPE_WIDTH
    return Terminal(width=width, highlight=False, markup=False, emoji=False)


def progress() -> Terminal:
    """For what is not the result of a command. Heeds NO_COLOR, and knows what is no terminal."""
    return Terminal(stderr=True, highlight=False, soft_wrap=True)
