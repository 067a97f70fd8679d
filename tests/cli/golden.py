"""Writes the golden outputs anew: `python -m tests.cli.golden`. Look at what git says then."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path

from tests.cli.commands import how, registered
from tests.cli.harness import GOLDEN, RUNS, call, neutral


def outputs(command: str, words: str) -> str:
    """What a command prints for each of its golden runs, one after the other."""
    about = how(command)
    runs = about.variants.get(words, about.runs)
    parts = []
    with tempfile.TemporaryDirectory() as folder:
        for i, run in enumerate(runs):
            store = Path(folder) / "runs"
            if about.writes or not i:
                shutil.rmtree(store, ignore_errors=True)
                shutil.copytree(RUNS, store)
            done = call(*command.split(), *about.args(run, words), cwd=store)
            parts.append(neutral(done.transcript(), store))
    return "\n".join(parts)


def names() -> dict[str, tuple[str, str]]:
    """The golden files: command and words by name."""
    found = {}
    for command in registered():
        about = how(command)
        if about.elsewhere:
            continue
        for words in (about.words, *about.variants):
            options = [w.strip("-").replace("*", "all") for w in words.split() if "{run}" not in w]
            options = [re.sub(r"[^\w.-]+", "_", word).strip("_") for word in options
                       if word not in ("store", ".")]  # fmt: skip
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
