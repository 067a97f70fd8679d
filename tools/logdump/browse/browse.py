"""``logdump browse``: shows runs, their records and values on the whole terminal."""

from __future__ import annotations

import sys
from pathlib import Path

from logdump.browse.log import KEYS
from logdump.context import Context, LogPath, UsageError
from logdump.places import inside
from logdump.verify.verify import has_segments
from recovery.cli.store_options import KeyFile, Redact, StoreOption
from recovery.history.store_url import is_url, split_run, store_at
from recovery.stores.file import FileStore

MORE = f"""\b
keys:
{KEYS}

exit code: 0; 130 after Ctrl-C

\b
examples:
  logdump browse ~/.eventlog
  logdump browse --redact '*token*' ~/.eventlog/run_001"""


def command(
    path: LogPath,
    redact: Redact = None,
    store: StoreOption = None,
    key_file: KeyFile = None,
) -> int:
    """Look around on the whole terminal.

    In a run, or in all runs of a store (PATH is the directory of the runs): runs on the left,
    records in the middle, the value on the right, or below where the terminal is narrow. Needs a
    terminal, and Textual: pip install 'agent-eventlog[browse]'.

    Reads what is shown and no more, so a log may be of any size. Takes no lock and changes
    nothing; the run may be live, dead or damaged.
    """
    return _run(Context(locals()))


def _run(context: Context) -> int:
    where = context.args.path
    if is_url(where):
        store, run = split_run(where)
        names = [run] if run else store_at(context.store_url(store)).run_ids()
    elif Path(where).is_dir() and not has_segments(Path(where)):
        store = str(Path(where).resolve())
        names = FileStore(where).run_ids()
    else:
        path = Path(where).resolve()
        store, names = str(path.parent), [path.name]
    if not names:
        raise UsageError(f"{where}: there are no runs in it")
    if len(names) == 1:
        context.read(inside(store, names[0])).close()  # errors before the screen is taken
    if not (sys.stdin.isatty() and context.out.isatty()):
        raise UsageError("browse needs a terminal; `logdump dump` prints records anywhere")
    try:
        from logdump.browse.app import Browser  # noqa: PLC0415 - an extra
    except ImportError:
        raise UsageError(
            "browse needs textual, which is not installed: pip install 'agent-eventlog[browse]' "
            "(dump and verify do without)"
        ) from None
    app = Browser(names, lambda name: context.read(inside(store, name)), context.redaction)
    app.run(mouse=False)  # so that text can be copied from the terminal
    return app.return_code or 0
