"""``logdump import``: makes a log from the lines that ``logdump export`` has written."""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from copy import copy
from pathlib import Path
from typing import BinaryIO, Literal

from eventlog.encryption import Encryption
from eventlog.format.envelope import KEY_ID
from eventlog.transfer import import_
from logdump.command import Command, Context, UsageError
from logdump.exit_codes import NO_INPUT
from recovery.text import count, printable

TEXT = """\
Make a log from its export in FILE ("-": standard input), in directory PATH,
which must be missing or empty. The run can be resumed from it, under the same
run id, as if it had never been moved.

The log gets its name when it is complete, durable, and was read back: until
then its name begins with a dot. A crash may leave such a directory, which can
be removed. An export that was cut off or changed is refused. So is the export
of a damaged log, unless --lost is given: then lost records are marked in the
new log, as by `logdump repair`."""

MORE = """\
With a key (--key-file, or in the environment) the new log is encrypted.

Never resume both the old run and the new one: each would repeat the effects
of the other. Move the old directory away first.

exit code: 0; 32 when FILE is no complete and unchanged export, or PATH is not
empty (no files are left then); 64 wrong usage, 66 no such file,
74 read or write error, 77 no such key

examples:
  logdump import run_001.jsonl ~/.eventlog/run_001
  logdump export old/run_001 | logdump import - new/run_001
  logdump import --key-file keys --key-id 2026-11 run_001.jsonl new/run_001"""


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="what `logdump export` wrote, or -")
    parser.add_argument("path", metavar="PATH", help="the directory of the log to be made")
    parser.add_argument(
        "--lost", action="store_true", help="mark in the new log what the export says is lost"
    )
    parser.add_argument(
        "--key-id",
        metavar="ID",
        type=_key_id,
        help="encrypt under the key of this id, not the last one",
    )


def _key_id(text: str) -> str:
    if not KEY_ID.fullmatch(text):
        raise argparse.ArgumentTypeError("1 to 64 printable ASCII characters without spaces")
    return text


def _run(context: Context) -> int:
    with ExitStack() as stack:
        try:
            file = _opened(context.args.file, stack)
        except OSError as exc:
            text = f"{context.args.file}: {exc.strerror or exc}"
            print(f"logdump: {printable(text)}", file=sys.stderr)
            return NO_INPUT
        lost: Literal["refused", "marked"] = "marked" if context.args.lost else "refused"
        made = import_(file, context.args.path, lost=lost, encryption=_encryption(context))
    marked = f", of which {made.lost:,} stand for lost records" if made.lost else ""
    context.print(f"{printable(context.args.path)}: {count(made.records, 'record')}{marked}")
    return 0


def _opened(name: str, stack: ExitStack) -> BinaryIO:
    return sys.stdin.buffer if name == "-" else stack.enter_context(Path(name).open("rb"))


def _encryption(context: Context) -> Encryption | None:
    encryption, key_id = context.encryption, context.args.key_id
    if encryption is None:
        if key_id is not None:
            raise UsageError("--key-id names one of the keys of a --key-file, and none was given")
        return None
    encryption = copy(encryption)
    encryption.key_id = key_id or encryption.key_id
    if encryption.find(encryption.key_id) is None:
        raise UsageError(f"there is no key {encryption.key_id!r} among those that were given")
    return encryption


COMMAND = Command(
    "import", "make a log again from an export", TEXT, MORE, _arguments, _run, paths=()
)
