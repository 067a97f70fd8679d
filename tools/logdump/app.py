"""Assembles the command line of ``logdump`` from one module for each command."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import typer

from eventlog import LogError
from eventlog.dump import NOT_A_LOG
from eventlog.errors import EncryptedLogError, UnsupportedFormatError
from logdump.browse import browse
from logdump.commands import dump, export, import_, repair, status
from logdump.context import UsageError
from logdump.diff import diff
from logdump.otlp import otlp
from logdump.stats import stats
from logdump.timeline import timeline
from logdump.verify import verify
from recovery.cli.pager import paged
from recovery.cli.parser import arranged, parser
from recovery.cli.parser import run as parse
from recovery.cli.terminal import ends_politely

DEFAULT = "status"
HINTS_MAX = 5
PAGED = ("status", "dump", "verify", "stats", "diff")

app = parser(
    "logdump",
    "Show and check the log of an agent: a directory with 00000001.seg and so on.\n\n"
    "Only reads, but for repair and import: takes no lock and changes nothing, so it is safe on "
    "the log of a running, dead or damaged agent.",
    f"""\b
1 to 63 instead of 1: what `logdump verify` adds up; `logdump verify --help`.

\b
examples:
  logdump run_001                        what {DEFAULT} shows
  logdump dump ~/.eventlog/run_001
  logdump verify ~/.eventlog/run_001""",
)


def _registered(name: str, module: Any) -> None:
    function: Callable[..., int] = module.command

    @wraps(function)
    def command(**options: Any) -> None:
        is_long = name in PAGED and not options.get("follow")
        with ends_politely(NOT_A_LOG, UsageError), paged(wanted=is_long):
            code = _run(function, options)
        raise typer.Exit(code)

    app.command(name, epilog=module.MORE)(command)


def _run(function: Callable[..., int], options: dict[str, Any]) -> int:
    try:
        return function(**options)
    except NotADirectoryError as exc:
        path = exc.filename or options["path"]
        raise UnsupportedFormatError(
            f"{path} is a file; a log is a directory (for one segment: the one it is in)"
        ) from None
    except EncryptedLogError:
        raise
    except LogError as exc:
        exc.args = (f"{exc}{_hint(options['path'])}",)
        raise


def _hint(path: str) -> str:
    """The logs in the directory, when it is that of a store."""
    logs = sorted({found.parent.name for found in Path(path).glob("*/00*.seg")})
    if not logs:
        return ""
    more = f" and {len(logs) - HINTS_MAX} more" if len(logs) > HINTS_MAX else ""
    return f". There are logs in it: {', '.join(logs[:HINTS_MAX])}{more}"


_registered("status", status)
_registered("dump", dump)
_registered("verify", verify)
_registered("repair", repair)
_registered("stats", stats)
_registered("diff", diff)
_registered("timeline", timeline)
_registered("browse", browse)
_registered("export", export)
_registered("import", import_)
_registered("otlp", otlp)


def run(argv: Sequence[str]) -> int:
    """Run a command; returns its exit code."""
    return parse(app, arranged(argv, _with_command))


def _with_command(words: list[str]) -> list[str]:
    """``logdump PATH`` is ``logdump status PATH``."""
    names = {command.name for command in app.registered_commands}
    if words and words[0] not in names and not words[0].startswith("-"):
        # Of several words the first is a command, even an unknown one.
        plain = [word for word in words if not word.startswith("-")]
        if len(plain) == 1 or Path(words[0]).exists() or "://" in words[0]:
            return [DEFAULT, *words]
    return words
