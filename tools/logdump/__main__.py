"""``logdump``: show what is in an agent's log, and say what is wrong with it. Reads only."""

from __future__ import annotations

import argparse
import io
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import NoReturn, TextIO

from eventlog import EncryptedLogError, EventLog, LogError, LogReader
from eventlog.dump import NOT_A_LOG, Finding, Totals, dump, verify
from eventlog.encryption import Encryption, parse_keys
from logdump._show import as_line, finding_line, heading, printable, record_line, summary_line

# Above all that verify's bits can add up to (63), so that no failure passes for a finding.
USAGE, NO_INPUT, IO_ERROR, NO_KEY = 64, 66, 74, 77  # as in sysexits.h
INTERRUPTED, CLOSED_PIPE = 128 + 2, 128 + 13  # as a shell reports the signals

_RAW = argparse.RawDescriptionHelpFormatter
HINTS_MAX = 5

HELP = """\
Show and check the log of an agent: a directory with 00000001.seg and so on.

Only reads: takes no lock and changes nothing, so it is safe on the log of a
running, dead or damaged agent."""

MORE = """\
examples:
  logdump dump ~/.eventlog/run_001
  logdump verify ~/.eventlog/run_001

logdump COMMAND --help says more."""

DUMP_HELP = """\
Print every record, one per line: LSN, time, kind, size of the value in bytes,
the value cut short. What is damaged is shown in its place. Control characters
are shown escaped."""

DUMP_MORE = """\
--json prints one object per line, with nothing cut:
  a record: "type" ("record" or "snapshot"), "segment", "offset", "lsn",
    "kind", "time", "time_ns", "size", "body"
  a problem: "type" ("damage", "torn_tail" or "note"), "bit" (see verify),
    "segment", "offset", "size", "first_lsn", "last_lsn", "text"
What JSON cannot hold is tagged (docs/format.md has the details):
  {"$bytes": "<base64>"}         {"$float": "nan" | "inf" | "-inf"}
  {"$map": [[key, value], ...]}  {"$ext": [type, "<base64>"]}
  {"$msgpack": "<base64>"}

An encrypted record, without its key, has "encrypted": the id of the key, and
no "body"; "kind" and "time" are null and "size" is that of its frame.

On the log of a running agent, the last records may be missing, and a record
that is just being written may be shown as a torn tail.

exit code: 0; with damage, the bits of verify for it (a torn tail is none)

examples:
  logdump dump ~/.eventlog/run_001 | less
  logdump dump --json ~/.eventlog/run_001 | jq 'select(.kind == "outcome")'"""

VERIFY_HELP = """\
Check every segment, frame, footer, snapshot and value, and say for each
problem what it means."""

VERIFY_MORE = """\
The exit code adds up what was found:
   0  sound
   1  torn tail: never acknowledged; the next opening cuts it off; harmless
   2  damaged record, or other bytes that have changed since they were written
   4  missing segment
   8  bad snapshot: recovery falls back to an earlier one
  16  gap in LSNs
  32  not a log, or of a version that this program does not know
  64 and above: verify could not do its work
      (64 wrong usage, 66 no such directory, 74 read error, 77 wrong key)

Of an encrypted log everything is checked without the key but what is inside
the records. With it, that too, and that they were written with it.

On the log of a running agent, a record that is just being written may be
reported as a torn tail; what comes after the start of verify is not checked.

examples:
  logdump verify ~/.eventlog/run_001
  logdump verify --json ~/.eventlog/run_001 | jq 'select(.bit > 1)'"""


def main(argv: list[str] | None = None) -> int:
    """Run the command; its exit code."""
    try:
        args = _parser().parse_args(argv)
        with _output() as out:
            return _run(args, out)
    except BrokenPipeError:
        _discard()
        return CLOSED_PIPE
    except KeyboardInterrupt:
        return INTERRUPTED


def _run(args: argparse.Namespace, out: TextIO) -> int:
    show = _dump if args.command == "dump" else _verify
    try:
        encryption = _encryption(args.key_file)
        with EventLog.read(args.path, encryption=encryption) as reader:
            return show(reader, args, out)
    except BrokenPipeError:
        raise
    except (EncryptedLogError, _KeyFileError, ImportError) as exc:
        return _complain(NO_KEY, str(exc))
    except FileNotFoundError as exc:
        return _complain(NO_INPUT, f"{exc.filename or args.path}: there is no such directory")
    except NotADirectoryError:
        text = f"{args.path} is a file; a log is a directory (for one segment: the one it is in)"
        return _foreign(args, out, text)
    except LogError as exc:
        return _foreign(args, out, f"{exc}{_hint(args.path)}")
    except OSError as exc:
        return _complain(IO_ERROR, f"{exc.filename or args.path}: {exc.strerror or exc}")


def _dump(reader: LogReader, args: argparse.Namespace, out: TextIO) -> int:
    width = shutil.get_terminal_size().columns if out.isatty() else 160
    bits = 0
    if not args.json:
        print(heading(width), file=out)
    for item in dump(reader):
        print(as_line(item) if args.json else record_line(item, width), file=out)
        if item["type"] == "damage":
            bits |= int(str(item["bit"]))
    return bits


def _verify(reader: LogReader, args: argparse.Namespace, out: TextIO) -> int:
    findings = verify(reader)
    while True:
        try:
            finding = next(findings)
        except StopIteration as end:
            totals: Totals = end.value
            break
        print(as_line(finding.as_json()) if args.json else finding_line(finding), file=out)
    if args.json:
        print(as_line({"type": "totals", **asdict(totals)}), file=out)
    else:
        print(summary_line(reader.path, totals), file=out)
    return totals.exit_code


class _KeyFileError(Exception):
    """There are no keys where they were said to be."""


def _encryption(key_file: str | None) -> Encryption | None:
    """The keys that were given, if any: in a file, or in the environment."""
    where, text = "$EVENTLOG_KEY", os.environ.get("EVENTLOG_KEY")
    path = key_file or (os.environ.get("EVENTLOG_KEY_FILE") if text is None else None)
    try:
        if path is not None:
            where = path
            text = Path(path).read_text("utf-8")
        # It is for reading: what a log holds in clear is shown as well.
        return None if text is None else Encryption(parse_keys(text), accept_clear=True)
    except (OSError, ValueError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else exc
        if isinstance(exc, UnicodeDecodeError):  # which would show a part of it
            reason = "not text"
        raise _KeyFileError(f"no key in {where}: {reason}") from None


def _foreign(args: argparse.Namespace, out: TextIO, text: str) -> int:
    if args.command == "verify" and args.json:
        print(as_line(Finding(NOT_A_LOG, 0, 0, 0, 1, 0, text).as_json()), file=out)
    return _complain(NOT_A_LOG, text)


def _complain(code: int, text: str) -> int:
    print(f"logdump: {printable(text)}", file=sys.stderr)
    return code


def _hint(path: str) -> str:
    """Where the logs are when somebody names the directory that holds them."""
    logs = sorted(found.parent.name for found in Path(path).glob("*/00*.seg"))
    logs = list(dict.fromkeys(logs))
    if not logs:
        return ""
    more = f" and {len(logs) - HINTS_MAX} more" if len(logs) > HINTS_MAX else ""
    return f". There are logs in it: {', '.join(logs[:HINTS_MAX])}{more}"


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="logdump", description=HELP, epilog=MORE, formatter_class=_RAW)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, line, text, more in (
        ("dump", "print every record", DUMP_HELP, DUMP_MORE),
        ("verify", "check everything, and say what is wrong", VERIFY_HELP, VERIFY_MORE),
    ):
        command = commands.add_parser(
            name, help=line, description=text, epilog=more, formatter_class=_RAW
        )
        command.add_argument("path", metavar="PATH", help="the directory of a log")
        command.add_argument("--json", action="store_true", help="one JSON object per line")
        command.add_argument(
            "--key-file",
            metavar="FILE",
            help="keys of encrypted logs: lines of 64 hex digits, a key id in front "
            "(or $EVENTLOG_KEY_FILE, or such lines in $EVENTLOG_KEY)",
        )
    return parser


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """argparse would exit with 2, which is one of verify's bits."""
        self.print_usage(sys.stderr)
        self.exit(_complain(USAGE, f"{message} (--help shows examples)"))


@contextmanager
def _output() -> Iterator[TextIO]:
    """Standard output, flushed at the end so that a closed pipe is noticed in here."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # letters that the terminal has not
    yield sys.stdout
    sys.stdout.flush()


def _discard() -> None:
    # The interpreter flushes once more at exit, and would complain about the closed pipe.
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
