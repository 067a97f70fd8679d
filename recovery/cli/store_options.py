"""Defines options that the commands share: the store, keys, hidden values."""

from __future__ import annotations

import os
import re
import site
import sys
from collections.abc import Callable
from difflib import get_close_matches
from getpass import getpass
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated, Any

import typer

from recovery import CheckpointStore, RecoveryError
from recovery.agent.stop_signals import ImportedRunError, imported_module
from recovery.cli.key_options import KeyFileError, encryption_from
from recovery.cli.next_steps import Commands
from recovery.cli.terminal import NotThereError, opened, their_own
from recovery.history.store_url import is_url, store_at
from recovery.inspect.status import status
from recovery.reports import RunStatus
from recovery.stores.file import FileStore, default_directory
from recovery.stores.protocol import check_run_id

StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="PATH|URL",
        help="Where the runs are: a directory, or postgresql://HOST/DATABASE. By default "
        "$EVENTLOG_HOME, else ~/.eventlog.",
        show_default=False,
    ),
]
KeyFile = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Keys of encrypted runs: lines of 64 hex digits, each after its key id (or "
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
Who = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Kept in the record: who did this. By default your login name.",
        show_default=False,
    ),
]
Why = Annotated[str, typer.Option(metavar="TEXT", help="Kept in the record: the reason.")]


SignWith = Annotated[
    str | None,
    typer.Option(
        "--sign",
        metavar="KEYFILE",
        help="Sign it with this private Ed25519 key (PEM or OpenSSH), for a store with approvers=.",
        show_default=False,
    ),
]


def signer(path: str | None) -> Callable[[bytes], bytes] | None:
    """A signer with the key in a file; asks for its password."""
    if path is None:
        return None
    from recovery.approvers import signing_key  # noqa: PLC0415 - only where something is signed

    try:
        return signing_key(path, lambda: getpass(f"Password of {path}: ").encode())
    except ImportError as exc:
        raise ValueError(str(exc)) from None


_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")  # a tool's name that needs no quotes in a shell


def complete_runs(ctx: typer.Context, incomplete: str) -> list[str]:
    try:
        found = open_store(ctx.params.get("store"), None, reading=True).backend.run_ids()
    except Exception:  # a completion cannot report errors
        return []
    return [run_id for run_id in found if run_id.startswith(incomplete)]


def _complete_calls(ctx: typer.Context, incomplete: str) -> list[str]:
    try:
        runs = open_store(ctx.params.get("store"), ctx.params.get("key_file"), reading=True)
        calls = status(runs, ctx.params["run"]).calls
    except Exception:  # as above
        return []
    # The name of a tool is data, and a shell would interpret it.
    offered = [call.name if _PLAIN.fullmatch(call.tool) else f"{call.lsn}" for call in calls]
    return [one for one in offered if one.startswith(incomplete)]


RunId = Annotated[
    str,
    typer.Argument(metavar="RUN", help="The id of a run.", autocompletion=complete_runs),
]

OneRun = Annotated[
    str | None,
    typer.Argument(
        metavar="[RUN]",
        help="The id of a run.",
        autocompletion=complete_runs,
        show_default=False,
    ),
]
CallName = Annotated[
    str,
    typer.Argument(
        metavar="CALL",
        help="By its idempotency key or the beginning of it (recovery show has them), as tool#LSN "
        "or LSN, or by the model's call id.",
        autocompletion=_complete_calls,
    ),
]


def open_store(
    where: str | None, key_file: str | None, *, reading: bool = False, make: bool = False
) -> CheckpointStore:
    """The store at a path or URL, by default at the default place.

    ``reading``: see encryption_from. ``make``: it need not exist yet. Raises RecoveryError,
    KeyFileError.
    """
    if (url := url_in(where)) is not None:
        encryption = encryption_from(key_file, reading=reading)
        try:
            return CheckpointStore(store_at(url, encryption=encryption))
        except ImportError as exc:
            raise ValueError(str(exc)) from None
    store = file_store(where, key_file, reading=reading)
    on_store = Commands("", where, "", key_file).on_store
    opened.set((store.root, on_store("gc --older-than 30d --dry-run")))
    if not make and not Path(store.root).is_dir():
        raise NotThereError(
            f"{store.root}: there is no such directory, so there are no runs. Name the store: "
            "--store PATH, or set $EVENTLOG_HOME."
        )
    return CheckpointStore(store)


def url_in(where: str | None) -> str | None:
    """The URL of a store on a server, given or in $EVENTLOG_HOME; None for a directory."""
    where = where or os.environ.get("EVENTLOG_HOME") or ""
    return where if is_url(where) and not where.startswith("file:") else None


def file_store(where: str | None, key_file: str | None, *, reading: bool = False) -> FileStore:
    """The store, also if it does not exist yet."""
    return FileStore(store_path(where), encryption=encryption_from(key_file, reading=reading))


def store_path(where: str | None) -> str:
    """The directory of the store at a path or URL, by default of the default one."""
    return _path(where) if where is not None else default_directory()


def store_of(
    run: str, where: str | None, key_file: str | None, *, reading: bool = False
) -> CheckpointStore:
    """The store, if run ``run`` is in it; else RecoveryError with similar ids."""
    store = open_store(where, key_file, reading=reading)
    check_there(store, run)
    return store


def check_there(store: CheckpointStore, run: str) -> None:
    """RecoveryError with similar ids when the run does not exist."""
    ids = store.backend.run_ids()
    if check_run_id(run) in ids:
        return
    close = [one for one in ids if len(run) > 2 and run in one]
    close = list(dict.fromkeys([*get_close_matches(run, ids, 3), *close]))[:3]
    like = (
        f"Is it {' or '.join(close)}?"
        if close
        else "recovery runs lists those that are; --store names another store."
    )
    where = store.backend.address or "this store"
    raise NotThereError(f"there is no run {run!r} in {where}. {like}")


def known(store: CheckpointStore, run: str) -> RunStatus:
    """The status of the run to be decided; RecoveryError, or KeyFileError, when its log says
    nothing, so that nothing is written into it."""
    found = status(store, run)
    if found.needs_key:
        raise KeyFileError(f"run {run!r} cannot be read: {found.why}")
    if found.state == "unreadable":
        raise RecoveryError(
            f"run {run!r} cannot be read: {found.why}. Nothing was executed or written. "
            f"What to do: recovery show {run}"
        )
    return found


def _path(where: str) -> str:
    if not is_url(where):
        return where
    try:
        store = store_at(where)
    except ImportError as exc:
        raise ValueError(str(exc)) from None
    if not isinstance(store, FileStore):
        raise RecoveryError(f"{store.address}: this command is about directories")
    return store.root


def imported(modules: list[str] | None) -> None:
    """Import the modules that the user names, also from the present directory."""
    for name in modules or ():
        named(name)


def named(name: str) -> Any:
    """A module, or an object in one: ``package.module:name``, also from the present directory.

    RecoveryError when it does not exist; an exception of the module is shown with its traceback.
    """
    here = str(Path.cwd())
    if here not in sys.path:
        # After the standard library: a file `json.py` in the directory must not replace it.
        packages = {*site.getsitepackages(), site.getusersitepackages()}
        places = [i for i, path in enumerate(sys.path) if path in packages]
        sys.path.insert(min(places, default=len(sys.path)), here)
    module, _, attributes = name.partition(":")
    parts = attributes.split(".") if attributes else []
    if not all(part.isidentifier() for part in (*module.split("."), *parts)):
        raise ValueError(f"{name!r} is not MODULE:NAME")
    token = imported_module.set(module)
    try:
        found: Any = resolve_name(f"{module}:")
    except ImportedRunError:
        raise
    except ModuleNotFoundError as exc:
        if exc.name is None or not f"{module}.".startswith(f"{exc.name}."):
            raise their_own(exc, f"module {module} raised this") from None
        raise RecoveryError(
            f"there is no module {exc.name}, in {here} or among what is installed. Change to its "
            "directory, or set PYTHONPATH"
        ) from None
    except Exception as exc:
        raise their_own(exc, f"module {module} raised this") from None
    finally:
        imported_module.reset(token)
    for part in parts:
        if not hasattr(found, part):
            like = get_close_matches(part, dir(found), 1)
            hint = f": is it {like[0]}?" if like else ""
            raise RecoveryError(f"there is no {attributes} in module {module}{hint}")
        found = getattr(found, part)
    return found
