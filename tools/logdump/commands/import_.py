"""``logdump import``: makes a log from the lines that ``logdump export`` has written."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from copy import copy
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from eventlog.encryption import Encryption
from eventlog.format.envelope import KEY_ID
from eventlog.transfer import import_
from logdump.context import Context, UsageError
from recovery.cli.progress import working
from recovery.cli.store_options import KeyFile, StoreOption
from recovery.text import count, printable

MORE = """\
With a key (--key-file, or in the environment) the new log is encrypted.

Never resume both the old run and the new one: each would repeat the effects of the other. Move
the old directory away first.

\b
exit code: 0; 32 when FILE is no complete and unchanged export, or PATH is not
empty (no files are left then)

\b
examples:
  logdump import run_001.jsonl ~/.eventlog/run_001
  logdump export old/run_001 | logdump import - new/run_001
  logdump import --key-file keys --key-id 2026-11 run_001.jsonl new/run_001"""

File = Annotated[str, typer.Argument(metavar="FILE", help="What `logdump export` wrote, or -.")]
Path_ = Annotated[str, typer.Argument(metavar="PATH", help="The directory of the log to be made.")]
Lost = Annotated[
    bool, typer.Option("--lost", help="Mark in the new log what the export says is lost.")
]
KeyId = Annotated[
    str | None,
    typer.Option(metavar="ID", help="Encrypt under the key of this id, not the last one."),
]


def command(
    file: File,
    path: Path_,
    lost: Lost = False,
    key_id: KeyId = None,
    store: StoreOption = None,
    key_file: KeyFile = None,
) -> int:
    """Make a log again from an export, in a directory that is missing or empty.

    The run can be resumed from it, under the same run id, as if it had never been moved. With
    --store PATH is the run's id in that store.

    The log gets its name when it is complete, durable, and was read back: until then its name
    begins with a dot. A crash may leave such a directory, which can be removed. An export that
    was cut off or changed is refused. So is the export of a damaged log, unless --lost is given:
    then lost records are marked in the new log, as by `logdump repair`.
    """
    context = Context(locals())
    if key_id is not None and not KEY_ID.fullmatch(key_id):
        raise UsageError("--key-id: 1 to 64 printable ASCII characters without spaces")
    with ExitStack() as stack:
        lines = _opened(file, stack)
        total = Path(file).stat().st_size if file != "-" else None
        with working(f"importing {file}", lines.tell if total else None, total):
            made = import_(
                lines,
                context.args.path,
                lost="marked" if lost else "refused",
                encryption=_encryption(context),
            )
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
