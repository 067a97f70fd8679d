"""One turn of one target, in a process of its own (see __main__), for atheris ends it."""

from __future__ import annotations

import logging
import shlex
import sys
import traceback
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["eventlog", "recovery", "logdump"]):
    from tests.fuzz.targets import TARGETS, Target

ROOT = str(Path(__file__).parents[2])


class Keeper:
    """Runs a target; keeps the shortest input for each place that raises, and goes on.

    Stopping at the first finding, as atheris does, would end hours of work at one known bug.
    """

    def __init__(self, target: Target, folder: Path) -> None:
        self._target, self._folder = target, folder

    def __call__(self, data: bytes) -> None:
        try:
            self._target(data)
        except KeyboardInterrupt:
            raise
        except BaseException as exc:  # SystemExit too: no target has a reason to end us
            self._keep(data, exc)

    def _keep(self, data: bytes, exc: BaseException) -> None:
        ours = [f for f in traceback.extract_tb(exc.__traceback__) if f.filename.startswith(ROOT)]
        name = f"{type(exc).__name__}-{Path(ours[-1].filename).stem}-{ours[-1].lineno}"
        path = self._folder / name
        if not path.exists() or path.stat().st_size > len(data):
            self._folder.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            path.with_suffix(".txt").write_text("".join(traceback.format_exception(exc)))
            print(f"FOUND {name} ({len(data)} bytes): {exc!r:.300}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    logging.disable()  # what is damaged is logged, and here everything is
    name, folder, *options = sys.argv[1:]
    # With the first argument, a shell command, it starts itself to merge.
    command = shlex.join([sys.executable, "-m", "tests.fuzz._atheris", name, folder])
    atheris.Setup([command, *options], Keeper(TARGETS[name], Path(folder)))
    atheris.Fuzz()
