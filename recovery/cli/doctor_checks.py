"""Checks a machine and a store for problems, before a run meets them.

It tries locks, names and flushes in a log of its own in the store, which it removes again.
"""

from __future__ import annotations

import os
import platform
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import msgpack
import xxhash

from eventlog import LogError
from eventlog.files.posix import OSFiles
from eventlog.format import frame
from recovery import CheckpointStore
from recovery.cli.doctor_disk import Check, Level, disk
from recovery.inspect.states import State
from recovery.inspect.status import runs
from recovery.stores.file import FileStore
from recovery.stores.protocol import DescribesServer, RunQueue, RunStore
from recovery.text import count, size

DESCRIPTORS = 6  # of an open run: directory, LOCK, MARK, segment, and two of its inbox
SPACE_MIN, SPACE_LOW = 32 << 20, 1 << 30
INODES_MIN, INODES_LOW = 100, 10_000
CLOCK_MIN = 1_704_067_200  # 2024: before this library existed
CLOCK_SLACK_S = 60.0  # synchronized clocks differ by less


def versions() -> Iterator[Check]:
    """The versions of Python, the system, and the packages used."""
    python = f"{platform.python_implementation()} {platform.python_version()}"
    yield Check("system", "ok", f"{python} on {platform.platform()}")
    try:
        ours = metadata.version("agent-eventlog")
    except metadata.PackageNotFoundError:
        ours = "(not installed: from its sources)"
    packed = ".".join(map(str, msgpack.version))
    is_c = not msgpack.Packer.__module__.endswith("fallback")
    sums = vars(frame)["crc32"].__module__.partition(".")[0]
    text = (
        f"agent-eventlog {ours}, msgpack {packed} ({'C' if is_c else 'pure Python'}), "
        f"xxhash {xxhash.VERSION}, checksums by {sums}"
    )
    slow = (
        "Records are packed some ten times slower: install a wheel of msgpack for this Python, and "
        "unset MSGPACK_PUREPYTHON."
    )
    yield Check.of("packages", text, "" if is_c else slow)


def place_of(store: FileStore) -> Path:
    """The store's directory, or, if it does not exist, the directory it would be made in."""
    place = Path(store.root)
    while not place.is_dir():
        place = place.parent
    return place


def directory(store: FileStore) -> Iterator[Check]:
    """The store's directory, and who can read and write there."""
    place, root = place_of(store), Path(store.root)
    if place != root and (root.is_symlink() or root.exists()):
        yield Check(
            "store",
            "problem",
            f"{store.root} is no directory",
            "Name another store, or move it away.",
        )
        return
    if not os.access(place, os.W_OK | os.X_OK):
        yield Check(
            "store",
            "problem",
            f"{place} cannot be written to by this user",
            "Give this user the directory, or name another store.",
        )
        return
    if place != root:
        yield Check("store", "ok", f"{store.root}: not made yet; the checks are about {place}")
        return
    opened = OSFiles().open_directory(str(place))
    who = opened.writable_by()
    opened.close()
    todo, text = "", f"{place}, mode {stat.S_IMODE(place.stat().st_mode):04o}"
    if who:
        text = f"{place} can be changed by others: {who}"
        todo = f"They can forge what a resumed run takes for done: chmod 700 {place}"
    yield Check.of("store", text, todo)


def space(
    store: FileStore, told: Callable[[int], str], on_store: Callable[[str], str]
) -> Iterator[Check]:
    """Free bytes and inodes; ``told`` formats a number of bytes, ``on_store`` a command."""
    found = os.statvfs(place_of(store))
    free, inodes = found.f_bavail * found.f_frsize, found.f_favail
    limited = found.f_files > 0  # btrfs and others make inodes as needed
    gc = on_store("gc --older-than 30d --dry-run")
    text = f"{told(free)} free" + (f", {inodes:,} inodes" if limited else "")
    if free < SPACE_MIN or (limited and inodes < INODES_MIN):
        todo = f"Runs will soon stop with an error: free some space ({gc})."
        yield Check("space", "problem", text, todo)
        return
    low = free < SPACE_LOW or (limited and inodes < INODES_LOW)
    yield Check.of("space", text, f"Free some ({gc})." if low else "")


def low_space(store: CheckpointStore, on_store: Callable[[str], str]) -> str:
    """A line if so little space is left that runs stop with an error; else ""."""
    if not isinstance(store.backend, FileStore):
        return ""
    found = next(space(store.backend, size, on_store))
    return f"DISK: {found.text}. {found.todo}" if found.level == "problem" else ""


def limits(unended: int) -> Iterator[Check]:
    """How many runs this process could have open, beside the ``unended`` ones that there are."""
    try:
        import resource  # noqa: PLC0415 - there is none on Windows
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        yield Check("descriptors", "ok", "no limit")
        return
    places = max(0, soft - 32) // DESCRIPTORS
    text = f"{soft:,} in a process: enough for about {places:,} runs at once"
    todo = ""
    if places < max(unended, 16):
        more = "ulimit -n" if hard in (soft, resource.RLIM_INFINITY) else f"ulimit -n {hard}"
        text += f"; {unended:,} have not ended"
        todo = f"Raise the limit ({more}) if one process is to run them all."
    yield Check.of("descriptors", text, todo)


def clock(newest: float) -> Iterator[Check]:
    """Whether the clock can be right; ``newest``: the time of the newest record of any run."""
    now = time.time()
    said = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    if now < CLOCK_MIN:
        yield Check("clock", "problem", f"{said} is long ago", "Set it: waits and ages use it.")
        return
    todo = ""
    if newest > now + CLOCK_SLACK_S:
        said += f", and a run has records of {newest - now:,.0f} s later"
        todo = "It was, or is, wrong here or where the run was: waits and ages use it."
    yield Check.of("clock", said, todo)


@dataclass(slots=True)
class Seen:
    """A summary of the runs of a store."""

    states: Counter[State]
    newest: float = 0.0
    need_a_person: int = 0
    due: int = 0
    open_to_others: list[str] = field(default_factory=list)  # runs that they can change

    @property
    def unended(self) -> int:
        """The number of runs that can be resumed."""
        ended: tuple[State, ...] = ("finished", "failed", "cancelled", "undone")
        return sum(n for state, n in self.states.items() if state not in ended)


def look(store: FileStore) -> Seen:
    """Read all runs, each from its newest checkpoint on."""
    seen, files = Seen(Counter()), OSFiles(store.root)
    for one in runs(store):
        seen.states[one.state] += 1
        seen.newest = max(seen.newest, one.last)
        needs_person = bool(one.needs_person)
        seen.need_a_person += needs_person
        seen.due += one.due and not needs_person
        with suppress(OSError), closing(files.open_directory(f"{store.root}/{one.run_id}")) as run:
            if run.writable_by():
                seen.open_to_others.append(one.run_id)
    return seen


_TROUBLE: dict[State, Level] = {"damaged": "problem", "unreadable": "warning"}


def of_runs(store: FileStore, seen: Seen, on_store: Callable[[str], str]) -> Iterator[Check]:
    """The runs that need attention, and remains of removals and repairs."""
    total = seen.states.total()
    counts = ", ".join(f"{n:,} {state}" for state, n in sorted(seen.states.items()))
    yield Check("runs", "ok", f"{total:,}: {counts}" if total else "none")
    for state, level in _TROUBLE.items():
        if seen.states[state]:
            yield Check("runs", level, f"{seen.states[state]:,} {state}", on_store("status"))
    if seen.need_a_person:
        need = "needs" if seen.need_a_person == 1 else "need"
        text = f"{count(seen.need_a_person, 'run')} {need} a person"
        yield Check.of("runs", text, on_store("status"))
    if seen.due:
        text = f"{count(seen.due, 'run')} that can be resumed"
        yield Check.of("runs", text, on_store("resume --due --agent MODULE:NAME"))
    if theirs := seen.open_to_others:
        more = " ..." * (len(theirs) > 1)
        text = f"{count(len(theirs), 'run')} can be changed by others: {theirs[0]}{more}"
        todo = "They can forge what a resumed run takes for done: chmod -R go-w the directory."
        yield Check.of("runs", text, todo)
    if left := store.unswept():
        several = f"{len(left):,} interrupted (of {left[0]}, ...)"
        text = several if len(left) > 1 else f"1 interrupted, of run {left[0]}"
        yield Check.of("removals", text, f"{on_store('gc')} finishes them.")
    if backups := store.backups():
        yield Check(
            "backups",
            "ok",
            f"{len(backups):,} of repaired runs: {backups[0]} ...",
            "Delete those that are not needed any more: they stay when a run is removed.",
        )


def examine(
    store: FileStore, told: Callable[[int], str], on_store: Callable[[str], str]
) -> Iterator[Check]:
    """All checks, one after the other. ``told`` formats a number of bytes, and ``on_store`` a
    command of ``recovery`` about the store."""
    yield from versions()
    usable = True
    for found in directory(store):
        usable = found.level != "problem"
        yield found
    if not usable:
        return
    yield from space(store, told, on_store)
    try:
        yield from disk(str(place_of(store)))
    except (LogError, OSError) as exc:
        yield Check(
            "disk",
            "problem",
            f"a log cannot be written here: {exc}",
            "Remove the cause (space, quota, rights, the disk), or name another store.",
        )
    seen = look(store)
    yield from of_runs(store, seen, on_store)
    yield from limits(seen.unended)
    yield from clock(seen.newest)


def examine_server(store: RunStore, on_store: Callable[[str], str]) -> Iterator[Check]:
    """All checks, one after the other; ``on_store`` formats a command of ``recovery``.

    Raises UnreachableError, or LogError for a server that is refused.
    """
    yield from versions()
    if isinstance(store, DescribesServer):
        for described in store.describe():
            yield Check.of(*described)
    if isinstance(store, RunQueue):
        states: Counter[str] = Counter()
        after = ""
        while page := store.find(after=after):
            states.update(one.state or "saved" for one in page)
            after = page[-1].run_id
        told = ", ".join(f"{number:,} {state}" for state, number in sorted(states.items()))
        text = f"{count(states.total(), 'run')}{told and ': '}{told}"
        todo = on_store("status") if states["in doubt"] else ""
        yield Check.of("runs", text, todo)
