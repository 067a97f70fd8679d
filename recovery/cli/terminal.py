"""Writes output, asks questions, and ends early, for all commands."""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from pwd import getpwuid
from typing import Any

import typer

from eventlog import LogError, LogLockedError
from eventlog.errors import EncryptedLogError, UnreachableError
from recovery import RecoveryError
from recovery.cli.console import Terminal
from recovery.cli.exit_codes import (
    CLOSED_PIPE,
    FOUND,
    IN_USE,
    INTERRUPTED,
    IO_ERROR,
    NO_INPUT,
    NO_KEY,
    USAGE,
)
from recovery.cli.key_options import KeyFileError
from recovery.cli.streams import FULL, discard, folded, where_of
from recovery.cli.who import holder
from recovery.journal.user_code import traceback_of
from recovery.text import printable, printable_lines, quoted

PIPE_WIDTH = 160


program = ContextVar("program", default="recovery")  # whose errors are reported
# The directory that the command works on, and the command that looks what could go from there.
opened = ContextVar("opened", default=("", ""))


@contextmanager
def ends_politely(of_log: int = FOUND, wrong_usage: type[Exception] = ValueError) -> Iterator[None]:
    """Ends without a traceback for a closed pipe, for Ctrl-C (also SIGTERM and SIGHUP), and for
    errors that a user can handle. ``of_log``: the exit code for an error of a log or a run."""
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
        except wrong_usage as exc:
            raise complain(str(exc), USAGE) from None
        except (KeyFileError, EncryptedLogError) as exc:
            raise complain(str(exc), NO_KEY) from None
        except LogLockedError as exc:
            stuck = "one that is known to be stuck: take the run with recovery resume --takeover."
            raise complain(f"{holder(exc)}; {stuck}", IN_USE) from None
        except (RecoveryError, LogError) as exc:
            raise complain(str(exc), code_of(exc, of_log)) from None
        except OSError as exc:
            raise complain(f"{because(exc)}{_remedy(exc)}", code_of(exc)) from None
        except (KeyboardInterrupt, typer.Abort):  # the latter during a question
            raise typer.Exit(INTERRUPTED) from None


class NotThereError(RecoveryError):
    """The store or the run that the user named does not exist."""


def code_of(exc: Exception, of_log: int = FOUND) -> int:
    """The exit code for an error."""
    if isinstance(exc, NotThereError | FileNotFoundError):
        return NO_INPUT
    return IO_ERROR if isinstance(exc, OSError | UnreachableError) else of_log


def because(exc: OSError) -> str:
    """The operation that the system refused, and its file."""
    where = where_of(exc)
    return f"{where}{where and ': '}{exc.strerror or exc}"


def _remedy(exc: OSError) -> str:
    """What a person can do about it, as further sentences; "" if that is not known."""
    if not isinstance(exc.filename, str):
        return ""
    if exc.errno in FULL:
        store, gc = opened.get()
        how = f" ({gc})" * (store != "" and Path(exc.filename).is_relative_to(store))
        what = "The disk is full. What was recorded is safe"
        return f". {what}. Free some space{how}, then repeat the command"
    if isinstance(exc, PermissionError):
        for path in (Path(exc.filename), *Path(exc.filename).parents):
            with suppress(OSError, KeyError):
                owner, user = path.owner(), getpwuid(os.geteuid()).pw_name
                return (
                    f". {path} belongs to {owner}, and this is {user}. Repeat the command as "
                    "a user who may, or name another store by --store"
                ) * (owner != user)
    return ""


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def complain(text: str, code: int) -> typer.Exit:
    """Report an error on standard error; returns the exception that exits with ``code``."""
    note(text)
    return typer.Exit(code)


def note(text: str) -> None:
    """Print a remark about the result, or an error, on standard error."""
    typer.echo(folded(f"{program.get()}: {printable_lines(text)}", sys.stderr), err=True)


def their_own(exc: BaseException, what: str) -> typer.Exit:
    """Show an error of the user's code with its traceback, and ``what`` raised it; as above."""
    typer.echo(quoted(traceback_of(exc)), err=True)
    name = "".join(traceback.format_exception_only(exc)).splitlines()[-1]
    return complain(f"{what}: {quoted(name)}", FOUND)


def hint(commands: Sequence[str], *, err: bool = False) -> None:
    """Show commands to type next, not folded. ``err``: on standard error."""
    for i, line in enumerate(commands):
        typer.echo(f"{'' if i else 'next:':<5} {printable(line)}", err=err)


def say(text: str) -> None:
    """Print a line, or lines, of the result."""
    typer.echo(folded(printable_lines(text), sys.stdout))


def show_json(value: Any) -> None:
    """Print a value as one line of JSON: ASCII, without control characters."""
    typer.echo(json.dumps(value, allow_nan=False))


def confirm(question: str, yes: bool) -> None:
    """Continue if the user agrees; without a terminal, only with ``--yes``."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise complain(f"{question} There is no terminal to ask at: say --yes to continue.", USAGE)
    if not typer.confirm(printable_lines(question), err=True):
        raise complain("nothing was changed", FOUND)


def output() -> Terminal:
    """For tables on standard output. Heeds NO_COLOR; in a pipe lines are not folded."""
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else PIPE_WIDTH
    return Terminal(width=width, highlight=False, markup=False, emoji=False)


def progress() -> Terminal:
    """For output besides the result. Heeds NO_COLOR, and knows what is no terminal."""
    return Terminal(stderr=True, highlight=False, soft_wrap=True)
