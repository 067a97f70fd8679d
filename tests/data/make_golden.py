"""The golden logs of the present format version: `python -m tests.data.make_golden`.

They are made on a simulated disk with its fixed clock and randomness, so that the same code makes
the same bytes. A version that is there is never written again: logs of it are in users' hands.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from eventlog import EventLog
from eventlog.encryption import Encryption
from eventlog.format.frame import VERSION
from eventlog.testing import Crash, SimulatedDisk

DATA = Path(__file__).parent

# Of the encrypted logs.
KEYS = {"2026-05": bytes(range(32)), "2026-11": bytes(range(32, 64))}

BODIES: list[object] = [
    None,
    True,
    -1,
    1 << 63,
    1.5,
    "gr\u00fc\u00df",
    b"\x00\xff",
    [1, [2, []]],
    {"call": 7, "value": "...", "nested": {"a": [None]}, 3: b"k"},
]


def closed(disk: SimulatedDisk) -> None:
    """Records, a batch and a snapshot; closed, opened again, closed."""
    with EventLog.open("log", files=disk) as log:
        for body in BODIES:
            log.append("event", body)
        log.commit()
        log.append_batch([("part", n) for n in range(3)])
        log.append_snapshot({"step": 3, "messages": ["a", "b"]})
    with EventLog.open("log", files=disk) as log:
        log.append("tool_result", {"call": 7})


def rolled(disk: SimulatedDisk) -> None:
    """Several segments, the snapshot not in the last one."""
    with EventLog.open("log", files=disk, segment_size=600) as log:
        for n in range(12):
            log.append("event", {"n": n, "data": "x" * 40})
            if n == 5:
                log.append_snapshot({"n": n})
            log.commit()


def torn(disk: SimulatedDisk) -> None:
    """Left by a process that died while it wrote: five records, and the half of a sixth."""
    log = EventLog.open("log", files=disk)
    for n in range(5):
        log.append("event", {"n": n})
        if n == 3:
            log.commit()
    disk.crash_at(0, torn_size=70)
    try:
        log.append("event", {"n": 5, "data": "y" * 200})
    except Crash:
        log.close()


def recovered(disk: SimulatedDisk) -> None:
    """The torn one, after recovery, with more in it."""
    torn(disk)
    after = disk.after_process_death()
    with EventLog.open("log", files=after) as log:
        log.append("more", 6)
    disk.directories = after.directories


def taken_over(disk: SimulatedDisk) -> None:
    """Two owners, of which the first went on writing."""
    old = EventLog.open("log", files=disk)
    old.append("event", "old")
    with EventLog.open("log", files=disk, takeover=True) as new:
        old.append("event", "late")
        new.append("event", "new")
    old._release()


def encrypted(disk: SimulatedDisk) -> None:
    """Encrypted, under two keys; the second owner died."""
    old, new = (Encryption(KEYS.get, key_id) for key_id in sorted(KEYS))
    with EventLog.open("log", files=disk, encryption=old) as log:
        log.append("event", {"n": 0})
        log.append_batch([("part", n) for n in range(2)])
        log.append_snapshot({"n": 2})
    log = EventLog.open("log", files=disk, encryption=new)
    log.append("event", {"n": 3})
    log.commit()
    log._release()


def begun_in_clear(disk: SimulatedDisk) -> None:
    """A record in clear, and then one that is encrypted."""
    with EventLog.open("log", files=disk) as log:
        log.append("event", "in clear")
    key = Encryption(KEYS.get, "2026-05", accept_clear=True)
    with EventLog.open("log", files=disk, encryption=key) as log:
        log.append("event", "encrypted")


LOGS: list[Callable[[SimulatedDisk], None]] = [
    closed,
    rolled,
    torn,
    recovered,
    taken_over,
    encrypted,
    begun_in_clear,
]


def make(log: Callable[[SimulatedDisk], None]) -> dict[str, bytes]:
    """The files of one golden log."""
    disk = SimulatedDisk(seed=2026)
    log(disk)
    entries = disk.directories["log"]
    return {name: bytes(file.content) for name, file in sorted(entries.items())}


def main() -> None:
    target = DATA / f"v{VERSION}"
    if target.exists():
        sys.exit(f"{target} is there. A released format is never written again; raise VERSION.")
    for log in LOGS:
        folder = target / log.__name__
        folder.mkdir(parents=True)
        for name, content in make(log).items():
            (folder / name).write_bytes(content)
    print(f"wrote {target}")


if __name__ == "__main__":
    main()
