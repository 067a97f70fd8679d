"""Writes the golden outputs anew: `python -m tests.cli.golden`. Look at what git says then."""

from __future__ import annotations

import re
import shutil
import stat
import tempfile
from pathlib import Path

from tests.cli.commands import how, registered
from tests.cli.harness import GOLDEN, RUNS, call, neutral


def outputs(command: str, words: str) -> str:
    """What a command prints for each of its golden runs, one after the other."""
    about = how(command)
    runs = about.variants.get(words, about.runs)
    parts = []
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # lines are as wide as the path
        store = Path(shutil.copytree(RUNS, Path(folder) / "runs"))
        for run in runs:
            done = call(*command.split(), *about.args(run, words), cwd=store)
            parts.append(neutral(done.transcript(), store))
            if about.writes:
                renew(store)
    return "\n".join(parts)


def renew(store: Path) -> None:
    """Make the copy of the golden runs as they are, where a command has changed it."""
    for name in {path.name for path in (*RUNS.iterdir(), *store.iterdir())}:
        if stamps(store / name) != stamps(RUNS / name):
            shutil.rmtree(store / name, ignore_errors=True)
            if (RUNS / name).exists():
                shutil.copytree(RUNS / name, store / name)


def stamps(run: Path) -> set[tuple[str, int, int]]:
    """The files of a run, with their sizes and the times of their last changes."""
    return {
        (path.name, found.st_size, found.st_mtime_ns)
        for path in run.glob("**/*")
        if not stat.S_ISDIR((found := path.stat()).st_mode)
    }


def names() -> dict[str, tuple[str, str]]:
    """The golden files: command and words by name."""
    found = {}
    for command in registered():
        about = how(command)
        if about.elsewhere:
            continue
        for words in (about.words, *about.variants):
            options = [w.strip("-").replace("*", "all") for w in words.split() if "{run}" not in w]
            options = [
                re.sub(r"[^\w.-]+", "_", word).strip("_")
                for word in options
                if word not in ("store", ".")
            ]
            found["-".join([*command.split(), *options])] = command, words
    return found


def main() -> None:
    GOLDEN.mkdir(exist_ok=True)
    wanted = names()
    for path in GOLDEN.glob("*.txt"):
        if path.stem not in wanted:
            path.unlink()
    for name, (command, words) in wanted.items():
        (GOLDEN / f"{name}.txt").write_text(outputs(command, words), "utf-8")
    print(f"wrote {len(wanted)} files into {GOLDEN}; git diff shows what has changed")


if __name__ == "__main__":
    main()
