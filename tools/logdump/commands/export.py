"""``logdump export``: writes a log as lines of JSON, which ``logdump import`` reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from functools import reduce
from operator import or_

from eventlog import LogReader
from eventlog.dump import TORN
from eventlog.errors import UnsupportedFormatError
from eventlog.transfer import export
from logdump.context import Context, LogPath
from logdump.places import inside
from logdump.show import problems
from recovery.cli.progress import working
from recovery.cli.store_options import KeyFile, StoreOption
from recovery.cli.terminal import note
from recovery.stores.protocol import INBOX

MORE = """\b
Each line is an object; its "type" is one of:
  export     the first line: format and version
  log        the next lines are of the log "name" ("": the run's own, "inbox")
  record, snapshot
             "lsn", "time_ns", "kind", "body"; "batch": first and last LSN of
             the atomic batch that it was written in
  lost       records that are lost: "first_lsn", "last_lsn", "text"
  end        how many records, and SHA-256 of all lines before
In bodies, what JSON cannot hold is tagged as by `logdump dump --json`.

An encrypted log needs its key, and its export is not encrypted. A torn tail was never
acknowledged, and is left out. Problems are reported on standard error.

\b
exit code: 0; with damage, the bits of verify for it (a torn tail is none)

\b
examples:
  logdump export ~/.eventlog/run_001 > run_001.jsonl
  logdump export ~/.eventlog/run_001 | zstd > run_001.jsonl.zst
  logdump export ~/.eventlog/run_001 | jq 'select(.kind == "outcome").body'"""


def command(path: LogPath, store: StoreOption = None, key_file: KeyFile = None) -> int:
    """Write a log as lines of JSON, to be kept or moved; `logdump import` makes it again.

    What others have sent to the run (its inbox) is in it too. Nothing is lost: values, times,
    numbers, batches and snapshots come back as the same bytes. Where segments begin, and who
    wrote them, is not in it. Nothing can be hidden in it, because a run resumes from it: to show
    a log to others, use `logdump dump --json --redact` or `recovery export`.
    """
    context = Context(locals())
    found: list[int] = []  # bits of the problems
    with context.read() as reader:
        encrypted = bool(reader.listing.first_encrypted())
        lines = export(reader, _inside(context), lambda finding: found.append(finding.bit))
        with working(f"exporting {path}") if not context.out.isatty() else nullcontext():
            for line in lines:
                context.print(line)
    wrong = [bit for bit in found if bit & ~TORN]
    words = ["the log is encrypted, but this export is not"] if encrypted else []
    if wrong:
        words.append(problems(wrong))
    if words:
        note("; ".join(words))
    return reduce(or_, wrong, 0)


def _inside(context: Context) -> Iterator[tuple[str, LogReader]]:
    try:
        reader = context.read_below(inside(context.args.path, INBOX))
    except (FileNotFoundError, UnsupportedFormatError):  # no message was sent, or the first is now
        return
    with reader:
        yield INBOX, reader
