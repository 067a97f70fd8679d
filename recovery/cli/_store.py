"""Options that the commands share: where the runs are, with which keys, what is not shown."""

from __future__ import annotations

import sys
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated, Any
from urllib.parse import unquote, urlsplit

import typer

from recovery import CheckpointStore, RecoveryError
from recovery.cli._keys import encryption_from
from recovery.stores.file import FileStore, default_directory

StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="PATH|URL",
        help="Where the runs are: a directory, or file:///PATH. By default $EVENTLOG_HOME, else "
        "~/.eventlog.",
        show_default=False,
    ),
]
KeyFile = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Keys of encrypted runs: lines of 64 hex digits, a key id in front (or "
        "$EVENTLOG_KEY_FILE, or such lines in $EVENTLOG_KEY).",
        show_default=False,
    ),
]
Redact = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATTERN",
        help="Hide the values of keys, parameters and tools of this name; '*' hides all.",
        show_default=False,
    ),
]
Imports = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        metavar="MODULE",
        help="Import a module first: one that registers the types in the runs. Repeatable.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Who = Annotated[str, typer.Option(metavar="NAME", help="Kept in the record: who did this.")]
Why = Annotated[str, typer.Option(metavar="TEXT", help="Kept in the record: the reason.")]


def _complete_runs(ctx: typer.Context, incomplete: str) -> list[str]:
    try:
        found = open_store(ctx.params.get("store"), None, reading=True).backend.run_ids()
    except Exception:  # a completion has nobody to tell
        return []
    return [run_id for run_id in found if run_id.startswith(incomplete)]


RunId = Annotated[
    str,
    typer.Argument(metavar="RUN", help="The id of a run.", autocompletion=_complete_runs),
]


def open_store(
    where: str | None, key_file: str | None, *, reading: bool = False
) -> CheckpointStore:
    """The store at a path or URL, by default at the default place.

    ``reading``: see encryption_from. Raises RecoveryError, KeyFileError.
    """
    store = file_store(where, key_file, reading=reading)
    if not Path(store.root).is_dir():
        raise RecoveryError(
            f"{store.root}: there is no such directory, so there are no runs. Name the store: "
            "--store PATH, or set $EVENTLOG_HOME."
        )
    return CheckpointStore(store)


def file_store(where: str | None, key_file: str | None, *, reading: bool = False) -> FileStore:
    """The same, whether there is anything or not."""
    path = _path(where) if where is not None else default_directory()
    return FileStore(path, encryption=encryption_from(key_file, reading=reading))


def _path(where: str) -> str:
    parts = urlsplit(where)
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or not parts.path:
            raise RecoveryError(f"{where}: use file:///PATH (with three slashes)")
        return unquote(parts.path)
    if "://" in where:
        raise RecoveryError(f"{where}: stores of kind {parts.scheme}:// are not known; use a path")
    return where


def imported(modules: list[str] | None) -> None:
    """Import the modules that the user names, from the present directory too."""
    for name in modules or ():
        named(name)


def named(name: str) -> Any:
    """A module, or what is in one: ``package.module:function``; RecoveryError when not there."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return resolve_name(name)
    except (ModuleNotFoundError, AttributeError, ValueError) as exc:
        module = name.partition(":")[0]
        if isinstance(exc, ModuleNotFoundError) and not f"{module}.".startswith(f"{exc.name}."):
            raise  # the module is there, and imports one that is not
        raise RecoveryError(f"{name}, in {here} or among what is installed: {exc}") from None
