"""Parses a command line, for ``recovery`` and ``logdump`` alike."""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from recovery.cli.exit_codes import USAGE
from recovery.cli.terminal import because, code_of, complain, program

SWITCHES = ("--version", "--no-color", "--no-pager")  # of the program
SHARED = ("--store", "--key-file")  # of its commands

EXIT_CODES = """\b
exit codes of all commands:
  0    done, and nothing was found
  1    refused, failed or parked; or something was found
  64   wrong usage, or no terminal to ask at and no --yes
  66   no such store, run, log or file
  73   a process has the run
  74   a file, a server or standard output cannot be read or written
  77   the key is missing or wrong
  130  interrupted
  141  the reader of the output has gone
"""


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(version("agent-eventlog"))
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option("--version", help="The version.", callback=_print_version, is_eager=True),
]
NoColor = Annotated[bool, typer.Option("--no-color", help="No colours; the same as $NO_COLOR.")]
NoPager = Annotated[
    bool, typer.Option("--no-pager", help="No pager ($PAGER, else less) for long output.")
]


# Words of other programs for commands of ours; those that are spelt alike are suggested by typer.
_ELSEWHERE = {"list": "runs", "ls": "runs", "ps": "runs", "delete": "rm", "kill": "cancel"}
_ELSEWHERE |= {"log": "dump", "logs": "dump", "cat": "dump", "check": "verify", "info": "show"}


class _Commands(TyperGroup):
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command; the error for one that is none names the one that is meant."""
        meant = _ELSEWHERE.get(args[0]) if args else None
        if meant in self.commands and args[0] not in self.commands:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {meant!r}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List them with their whole first sentence, which is otherwise cut."""
        named = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, one.get_short_help_str(1000)) for name, one in named if one])


def parser(name: str, text: str, more: str) -> typer.Typer:
    """A program without commands yet; ``text`` and ``more`` are before and after their list."""

    def switches(
        _version: Version = False, no_color: NoColor = False, no_pager: NoPager = False
    ) -> None:
        if no_color:
            os.environ["NO_COLOR"] = "1"
        if no_pager:
            os.environ["PAGER"] = ""

    app = typer.Typer(
        name=name,
        cls=_Commands,
        no_args_is_help=True,
        pretty_exceptions_enable=False,  # a traceback of this library is a bug, and looks like one
        rich_markup_mode=None,  # help keeps its line breaks, in a pipe too
    )
    app.callback(help=text, epilog=f"{EXIT_CODES}\n{more}")(switches)
    return app


def arranged(argv: Sequence[str], meant: Callable[[list[str]], list[str]]) -> list[str]:
    """The words in the order of the parser: options of the program may come after the command, and
    --store and --key-file before it. ``meant`` gets the command and its words, and may change
    them."""
    end = list(argv).index("--") if "--" in argv else len(argv)
    switches = [word for word in argv[:end] if word in SWITCHES]
    words = [word for word in argv[:end] if word not in SWITCHES] + list(argv[end:])
    front: list[str] = []
    while words and words[0].partition("=")[0] in SHARED:
        size = 1 if "=" in words[0] else 2
        front, words = front + words[:size], words[size:]
    words = meant(words)
    return [*switches, *words[:1], *front, *words[1:]]


def run(app: typer.Typer, argv: Sequence[str]) -> int:
    """Run a command; returns its exit code. Wrong usage is reported in one line."""
    for name in ("eventlog", "recovery"):  # their warnings are shown by the commands, or raised
        logging.getLogger(name).addHandler(logging.NullHandler())
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # letters that the terminal lacks
    program.set(str(app.info.name))
    try:
        code = app(list(argv), prog_name=program.get(), standalone_mode=False)
    except OSError as exc:  # of the help; commands handle their own
        return complain(because(exc), code_of(exc)).exit_code
    except Exception as exc:
        said = getattr(exc, "format_message", None)  # of typer, or of click below older ones
        if said is None:
            raise
        return _misused(exc, str(said()), is_help=not argv)
    return code if isinstance(code, int) else 0


def _misused(exc: Exception, text: str, *, is_help: bool) -> int:
    if is_help:  # no command was given
        typer.echo(text, err=True)
        return USAGE
    context = getattr(exc, "ctx", None)
    path = context.command_path if context is not None else program.get()
    if text[1:2].islower():
        text = text[0].lower() + text[1:]
    end = "" if text[-1:] in ".?" else "."
    return complain(f"{text}{end} `{path} --help` shows examples", USAGE).exit_code
