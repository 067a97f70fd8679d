"""Damage to logs on a simulated disk."""

from __future__ import annotations

import random
from typing import Any

from eventlog.format.durable_mark import DurableMark
from eventlog.format.frame import FOOTER, HEADER_SIZE, SNAPSHOT, Frame, decode_segment_header
from eventlog.format.torn_or_damaged import Segment
from eventlog.testing import SimulatedDisk


def segments(disk: SimulatedDisk, run_id: str = "run") -> dict[str, bytes]:
    """The bytes of the segments of a run's log, by file."""
    entries = disk.directories.get(f"runs/{run_id}", {})
    return {name: bytes(file.content) for name, file in entries.items() if name.endswith(".seg")}


def frames(disk: SimulatedDisk, run_id: str = "run") -> list[tuple[str, Frame]]:
    """All frames of a run's log, with the file of each."""
    found = []
    for name, buf in sorted(segments(disk, run_id).items()):
        header = decode_segment_header(buf)
        assert header is not None
        walk = Segment(header.number, buf, header.salt, DurableMark(), None)
        for item in walk.walk(HEADER_SIZE, header.first_lsn):
            if isinstance(item, tuple) and item[0].kind != FOOTER:
                found.append((name, item[0]))
    return found


def flip(disk: SimulatedDisk, place: tuple[str, Frame], rng: random.Random) -> None:
    """Flip a bit of a frame for good: of its header or of its payload."""
    name, frame = place
    file: Any = disk.directories["runs/run"][name]
    parts = [range(frame.offset, frame.payload_offset)]
    if frame.payload_end > frame.payload_offset:
        parts.append(range(frame.payload_offset, frame.payload_end))
    file.content[rng.choice(rng.choice(parts))] ^= 1 << rng.randrange(8)
    file.durable, file.pending = bytes(file.content), []


def harm_newest_checkpoint(disk: SimulatedDisk, seed: int) -> bool:
    """Whether there is one."""
    found = [place for place in frames(disk) if place[1].kind == SNAPSHOT]
    for place in found[-1:]:
        flip(disk, place, random.Random(seed))
    return bool(found)


def harm_behind_the_checkpoint(disk: SimulatedDisk, seed: int) -> bool:
    """Damage some records without which the run cannot go on; whether there are any."""
    rng, found = random.Random(seed), frames(disk)
    newest = max((place[1].lsn for place in found if place[1].kind == SNAPSHOT), default=1)
    behind = [place for place in found if place[1].lsn > newest]
    first, count = rng.randrange(len(behind) or 1), rng.choice((1, 1, 2, 5))
    chosen = behind[first : first + count] if rng.random() < 0.5 else behind[first::7][:count]
    for place in chosen:
        flip(disk, place, rng)
    return bool(chosen)
