"""``logdump status``: shows the state of a run on one screen."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from rich.text import Text

from eventlog import LogReader
from logdump.context import Context, LogPath
from logdump.places import inside, may_have_inbox, name_of, segment_sizes
from logdump.show import as_line
from recovery.cli.next_steps import Commands
from recovery.cli.status_view import as_json_object, grid, lines, rows
from recovery.cli.store_options import AsJson, KeyFile, Redact, StoreOption
from recovery.history.store_url import is_url, split_run
from recovery.inspect.status import status_of
from recovery.stores.protocol import INBOX
from recovery.text import count, size

MORE = """\b
exit code: 0; 2 when damage was found in what was read

\b
examples:
  logdump run_001
  logdump status --json ~/.eventlog/run_001 | jq .open_calls
  logdump status --redact '*' ~/.eventlog/run_001"""


def command(
    path: LogPath,
    redact: Redact = None,
    store: StoreOption = None,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> int:
    """Show the state of a run on one screen.

    The process that has it, the last record, calls in doubt and what recovery will do with each,
    what it has used, and whether the end of its log is sound, torn or damaged. This is what
    "logdump PATH" does. It reads from the newest checkpoint on; "logdump verify" checks the
    whole log.
    """
    return _run(Context(locals()))


def _run(context: Context) -> int:
    path = context.args.path
    with context.read() as reader:
        found = status_of(reader, name_of(path), lambda run: _inbox(context, path))
        sizes = segment_sizes(reader)
    store = split_run(path)[0] if is_url(path) else str(Path(path).parent)
    todo = Commands(found.run_id, store, path).next(found)
    if context.args.as_json:
        report = as_json_object(found, context.redaction)
        on_disk = {"segments": len(sizes), "on_disk": sum(sizes), "next": todo}
        context.print(as_line(report | on_disk))
    else:
        log = "log", f"{size(sum(sizes))} in {count(len(sizes), 'segment')}", ""
        shown = [*rows(found, context.now(), context.redaction), log]
        context.console.print(grid(shown))
        for told in lines(shown, "next", todo):
            context.console.print(Text(told), soft_wrap=True)
    return 2 if found.damage else 0


def _inbox(context: Context, path: str) -> LogReader | None:
    """The inbox of the run of this log; None without a run, or when no message was sent."""
    with suppress(FileNotFoundError):
        return context.read_below(inside(path, INBOX)) if may_have_inbox(path) else None
    return None
