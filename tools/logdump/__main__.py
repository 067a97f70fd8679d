"""Parses the command line of ``logdump``, runs the command, and reports errors."""

from __future__ import annotations

import argparse
import io
import logging
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn, TextIO

from eventlog import LogError, LogLockedError
from eventlog.dump import NOT_A_LOG
from eventlog.errors import EncryptedLogError
from logdump.all_commands import COMMANDS, DEFAULT
from logdump.command import Context, UsageError
from logdump.exit_codes import CLOSED_PIPE, IN_USE, INTERRUPTED, IO_ERROR, NO_INPUT, NO_KEY, USAGE
from recovery import RecoveryError
from recovery.cli.key_options import KeyFileError, take_from_environment
from recovery.cli.streams import discard, folded, open_closed, where_of
from recovery.cli.who import holder
from recovery.text import printable

_RAW = argparse.RawDescriptionHelpFormatter
HINTS_MAX = 5

HELP = """\
Show and check the log of an agent: a directory with 00000001.seg and so on.

Only reads, but for repair and import: takes no lock and changes nothing, so it
is safe on the log of a running, dead or damaged agent."""

MORE = f"""\
examples:
  logdump ~/.eventlog/run_001            what {DEFAULT} shows
  logdump dump ~/.eventlog/run_001
  logdump verify ~/.eventlog/run_001

logdump COMMAND --help says more."""


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    logging.getLogger("eventlog").addHandler(logging.NullHandler())  # commands show it themselves
    open_closed()
    take_from_environment()
    try:
        args = _parser().parse_args(_with_command(sys.argv[1:] if argv is None else argv))
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")  # letters that the terminal lacks
        return _run(args, sys.stdout)
    except BrokenPipeError:
        discard()
        return CLOSED_PIPE
    except KeyboardInterrupt:
        return INTERRUPTED


def _run(args: argparse.Namespace, out: TextIO) -> int:
    command = next(one for one in COMMANDS if one.name == args.command)
    try:
        code = command.run(Context(args, out))
        out.flush()  # in here, so that a full disk or a closed pipe is reported like other errors
        return code
    except BrokenPipeError:
        raise
    except UsageError as exc:
        return _complain(USAGE, str(exc))
    except LogLockedError as exc:
        return _complain(IN_USE, f"{holder(exc)}, or kill it when it is stuck: the log stands it.")
    except (EncryptedLogError, KeyFileError, ImportError) as exc:
        return _complain(NO_KEY, str(exc))
    except FileNotFoundError as exc:
        return _complain(NO_INPUT, f"{exc.filename or args.path}: there is no such directory")
    except NotADirectoryError as exc:
        text = f"{exc.filename or args.path} is a file; a log is a directory"
        return _complain(NOT_A_LOG, f"{text} (for one segment: the one it is in)")
    except (LogError, RecoveryError) as exc:
        hint = _hint(args.path) if isinstance(exc, LogError) else ""
        return _complain(NOT_A_LOG, f"{exc}{hint}")
    except OSError as exc:
        return _complain(IO_ERROR, f"{where_of(exc) or args.path}: {exc.strerror or exc}")


def _with_command(argv: Sequence[str]) -> list[str]:
    """``logdump PATH`` is ``logdump status PATH``."""
    words = [word for word in argv if not word.startswith("-")]
    first, names = "".join(argv[:1]), {command.name for command in COMMANDS}
    # Of several words the first is a command, even an unknown one.
    is_path = first in words and (len(words) == 1 or Path(first).exists())
    return [DEFAULT, *argv] if is_path and first not in names else list(argv)


def _complain(code: int, text: str) -> int:
    print(folded(f"logdump: {printable(text)}", sys.stderr), file=sys.stderr)
    return code


def _hint(path: str) -> str:
    """The directory of the logs, when the command line names it."""
    logs = sorted(found.parent.name for found in Path(path).glob("*/00*.seg"))
    logs = list(dict.fromkeys(logs))
    if not logs:
        return ""
    more = f" and {len(logs) - HINTS_MAX} more" if len(logs) > HINTS_MAX else ""
    return f". There are logs in it: {', '.join(logs[:HINTS_MAX])}{more}"


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="logdump", description=HELP, epilog=MORE, formatter_class=_RAW)
    parser.add_argument("--version", action="version", version=version("agent-eventlog"))
    _add_completion(parser)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS:
        one = commands.add_parser(
            command.name,
            help=command.line,
            description=command.text,
            epilog=command.more,
            formatter_class=_RAW,
        )
        for name in command.paths:
            one.add_argument(name, metavar=name.upper(), help="the directory of a log")
        command.arguments(one)
        one.add_argument(
            "--redact",
            metavar="PATTERN",
            action="append",
            help="hide the values of keys, parameters and tools of this name; '*' hides all",
        )
        one.add_argument(
            "--key-file",
            metavar="FILE",
            help="keys of encrypted logs: lines of 64 hex digits, a key id in front "
            "(or $EVENTLOG_KEY_FILE, or such lines in $EVENTLOG_KEY)",
        )
    return parser


def _add_completion(parser: argparse.ArgumentParser) -> None:
    option, text = "--print-completion", "a script for the shell's completion"
    try:
        import shtab  # noqa: PLC0415 - an extra
    except ImportError:
        parser.add_argument(option, metavar="SHELL", action=_NeedsShtab, help=text)
    else:
        shtab.add_argument_to(parser, option, help=text)


class _NeedsShtab(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        extra = "pip install 'agent-eventlog[cli]'"
        parser.error(f"completion needs shtab, which is not installed: {extra}")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """argparse would exit with 2, which is one of verify's bits."""
        self.print_usage(sys.stderr)
        self.exit(_complain(USAGE, f"{message} (--help shows examples)"))


if __name__ == "__main__":
    sys.exit(main())
