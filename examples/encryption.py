"""An agent whose runs are encrypted on disk, its keys changed, and what is seen without them.

    python examples/encryption.py [DIRECTORY]

The keys are made anew here. Keep yours where you keep secrets: without its key a run is lost.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from eventlog import EventLog
from eventlog.dump import dump, verify
from eventlog.encryption import Encryption
from eventlog.errors import EncryptedLogError
from recovery import CheckpointStore, RecoverableAgent, SyncRun, tool

KEYS = {"2026-05": os.urandom(32), "2026-11": os.urandom(32)}


@tool(after_crash="retry")
def look_up(patient: str) -> dict[str, str]:
    """Something that nobody else should read."""
    return {"patient": patient, "diagnosis": "otter allergy"}


def triage(run: SyncRun) -> str:
    """Two patients, one in each step."""
    for step in run.steps():
        found = run.call(look_up, f"patient {step}")
        run.messages.append(
            {"role": "tool", "content": f"{found['patient']}: {found['diagnosis']}"}
        )
        if step == 2:
            break
    return f"{len(run.messages)} patients"


def main(directory: Path) -> None:
    """Run it, change the key, run another, and look at the first with and without the key."""
    # A function from key id to key: a dict's `get`, or whatever asks your secret store.
    store = CheckpointStore(directory, encryption=Encryption(KEYS.get, "2026-05"))
    first = RecoverableAgent(triage, store).run_with_recovery_sync("triage", "run_001")
    print("result:", first["result"])

    # From now on under another key; what was written before is read with the old one.
    store = CheckpointStore(directory, encryption=Encryption(KEYS.get, "2026-11"))
    RecoverableAgent(triage, store).run_with_recovery_sync("triage", "run_002")

    stored = b"".join(path.read_bytes() for path in directory.rglob("*") if path.is_file())
    print("diagnosis on disk:", b"otter" in stored)

    with EventLog.read(directory / "run_001") as reader:
        print("problems found without the key:", len(list(verify(reader))))
        shown = next(dump(reader))
        print(f"LSN {shown['lsn']}: {shown['size']} bytes, under the key {shown['encrypted']}")
        try:
            next(reader.records())
        except EncryptedLogError as exc:
            print(type(exc).__name__, exc.key_id)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(scratch))
