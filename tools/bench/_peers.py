"""The other packages, from PyPI, in an environment of their own."""

from __future__ import annotations

import subprocess
import sys
import venv
from functools import cache

from ._worker import ROOT, Subject

PLACE = ROOT / ".venv-peers"

# Those that were current when the figures in the documentation were made.
PACKAGES = (
    "call4agents==0.5.0",
    "dbos==3.4.0",
    "durabl==0.1.0",
    "eventsourcing==9.5.6",
    "langgraph==1.2.22",
    "langgraph-checkpoint-sqlite==3.1.2",
    "lmdb==3.0.0",
    "pgserver==0.1.4",
    "plyvel==1.5.1",
    "pydantic-ai-slim==2.68.0",
    "rocksdict==0.3.29",
    "msgpack",
)


@cache
def python() -> str:
    """Their Python; made and filled when there is none yet, or when the list has changed."""
    stamp, wanted = PLACE / "packages", "\n".join(PACKAGES)
    found = str(PLACE / "bin" / "python")
    if not stamp.exists() or stamp.read_text() != wanted:
        print(
            f"installing {len(PACKAGES)} packages to compare with into {PLACE.name}",
            file=sys.stderr,
        )
        venv.create(PLACE, clear=True, with_pip=True)
        install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([found, *install, *PACKAGES], check=True)
        stamp.write_text(wanted)
    return found


def peer(name: str, kind: str) -> Subject:
    """A subject of theirs."""
    return Subject(name, kind, python())
