"""All reading commands on golden runs that something has been at: `main(seed, count, folder)`.

Bits are flipped, bytes put in, taken out and moved, files cut, lost and exchanged; and records are
forged, with checksums that hold. Whatever comes of it, a command ends with a code that it
documents, shows nothing raw, and writes no more than a bounded output. It runs in a process that
has so much memory and no more.
"""

from __future__ import annotations

import json
import random
import resource
import shutil
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from eventlog.errors import UnsupportedFormatError
from eventlog.format.frame import (
    FOOTER,
    HEADER_SIZE,
    SNAPSHOT,
    Frame,
    decode_segment_header,
    encode_frame,
    sound_frames,
)
from eventlog.format.record import Packed, decode_payload, encode_payload, encode_snapshot
from tests.cli.commands import LOGS, how, registered
from tests.cli.harness import RUNS, Done, call, raw

MEMORY = 1 << 30  # bytes that a command may take beyond what the process has; the runs have 20 KB
CPU_S_EACH = 20  # of a command: a hundred times what they take, so that only a hang gets there
OUTPUT_MAX = 4 << 20
CODES = {"logdump": {*range(64), 64, 66, 74, 77}, "recovery": {0, 1, 64, 66, 74, 77}}
EXTRA = [("logdump timeline", "{run} -o page.html")]  # the golden outputs have no place for it

Rng = random.Random
Content = dict[str, bytes]  # by path in the run's directory


def reading() -> list[tuple[str, str]]:
    """Commands that change nothing, with the words behind them."""
    found = list(EXTRA)
    for command in registered():
        about = how(command)
        if not (about.elsewhere or about.writes):
            found += [(command, words) for words in (about.words, *about.variants)]
    return found


# -- what may happen to a run


def flip(rng: Rng, content: Content) -> None:
    """Some bits of a file, near one another or not."""
    name, data = _some(rng, content)
    near = rng.randrange(len(data) or 1)
    for _ in range(rng.choice((1, 1, 2, 8, 64))):
        at = rng.choice((near + rng.randrange(64), rng.randrange(len(data) or 1)))
        if at < len(data):
            data[at] ^= 1 << rng.randrange(8)
    content[name] = bytes(data)


def noise(rng: Rng, content: Content) -> None:
    """Random bytes, zeros, or bytes of another place, over a part of a file or put in."""
    name, data = _some(rng, content)
    start, size = rng.randrange(len(data) + 1), rng.choice((1, 8, 60, 512, 3000))
    other = content[rng.choice(sorted(content))]
    source = rng.choice((rng.randbytes(size), bytes(size), b"\xff" * size, other[start:][:size]))
    data[start : start + rng.choice((0, size))] = source
    content[name] = bytes(data)


def cut(rng: Rng, content: Content) -> None:
    """The end of a file is gone, or a part from within."""
    name, data = _some(rng, content)
    start = rng.randrange(len(data) + 1)
    content[name] = bytes(data[:start] + data[start + rng.choice((1, 8, 100, 1 << 20)) :])


def lose(rng: Rng, content: Content) -> None:
    """A file is gone, or under another name, or there twice."""
    name = rng.choice(sorted(content))
    number = rng.choice((1, 2, 3, 4, 9, 99999999))
    folder = name.rpartition("/")[0]
    other = f"{folder}/{number:08d}.seg" if folder else f"{number:08d}.seg"
    if rng.random() < 0.7:
        content[other] = content[name]
    if rng.random() < 0.7 and len(content) > 1:
        content.pop(name, None)


def forge(rng: Rng, content: Content) -> None:
    """Records of a segment say something else, and their checksums hold."""
    name = rng.choice(sorted(name for name in content if name.endswith(".seg")) or sorted(content))
    found = frames(content[name])
    if found is None:
        return flip(rng, content)
    header, salt, there = found
    made = bytearray(header)
    chosen = {rng.randrange(len(there)) for _ in range(rng.choice((1, 1, 2, 5)))} if there else ()
    for i, (frame, payload) in enumerate(there):
        marks = frame.lsn, frame.durable, frame.snapshot
        said = _said_otherwise(rng, frame, payload) if i in chosen else payload
        made += encode_frame(salt, frame.kind | frame.flags, frame.count, said, marks)
    content[name] = bytes(made)
    return None


def _said_otherwise(rng: Rng, frame: Frame, payload: bytes) -> bytes:
    records = decode_payload(frame, payload)
    if not records:
        return payload
    time_ns = rng.choice((records[0].time_ns, 0, -1, 1 << 62))
    if frame.kind == SNAPSHOT:
        return encode_snapshot(time_ns, "snapshot", _forged(rng, records[0].packed))
    items = []
    for one in records:
        kind = rng.choice((one.kind, one.kind, "call", "outcome", "x\x1b[2J"))
        items.append((kind, Packed(_forged(rng, one.packed))))
    return encode_payload(time_ns, items)


def _forged(rng: Rng, packed: bytes) -> bytes:
    data = bytearray(packed)
    for _ in range(rng.choice((1, 2, 4))):
        at = rng.randrange(len(data))
        match rng.randrange(4):
            case 0:
                data[at] = rng.randrange(256)
            case 1:
                data[at : at + 1] = rng.choice(
                    (
                        b"\xc0",
                        b"\x80",
                        b"\x90",
                        b"\xcb\x7f\xf8" + bytes(6),
                        b"\xd3" + b"\xff" * 8,
                        b"\xcf" + b"\xff" * 8,
                        b"\xdf\xff\xff\xff\xff",
                        b"\xc7\x03\x01\x92\x01\x00",
                        b"\xa5\x1b[2J\x07",
                        b"\x91" * 600 + b"\xc0",
                        b"\xd4\x0b\x31",
                        b"\xd4\x14\x90",
                    )
                )
            case 2:
                data[at : at + rng.randrange(1, 9)] = b""
                data = data or bytearray(b"\xc0")
            case 3:
                start = rng.randrange(len(packed))
                data[at:at] = packed[start : start + rng.randrange(1, 40)]
    return bytes(data)


def frames(data: bytes) -> tuple[bytes, bytes, list[tuple[Frame, bytes]]] | None:
    """A segment's header, its salt, and its frames with their payloads, as far as it is sound."""
    try:
        header = decode_segment_header(data)
    except UnsupportedFormatError:
        return None
    if header is None or header.encrypted:
        return None
    start = HEADER_SIZE, header.first_lsn
    walk = sound_frames(data, 0, start, 1 << 62, header.salt)
    found = [(frame, payload) for frame, payload in walk if frame.kind != FOOTER]
    return data[:HEADER_SIZE], header.salt, found


def _some(rng: Rng, content: Content) -> tuple[str, bytearray]:
    # Of segments mostly; of the lock and the mark now and then.
    names = sorted(content)
    segments = [name for name in names if name.endswith(".seg")] or names
    name = rng.choice(segments if rng.random() < 0.85 else names)
    return name, bytearray(content[name])


ACCIDENTS: list[Callable[[Rng, Content], None]] = [
    flip,
    flip,
    noise,
    cut,
    lose,
    forge,
    forge,
    forge,
]


# -- a case


def make(rng: Rng, store: Path) -> str:
    """A store with one run, which is not what it was; the run's id."""
    run = rng.choice(LOGS)
    content = {
        str(path.relative_to(RUNS / run)): path.read_bytes()
        for path in sorted((RUNS / run).rglob("*"))
        if path.is_file()
    }
    for _ in range(rng.choice((1, 1, 2, 4))):
        rng.choice(ACCIDENTS)(rng, content)
    shutil.rmtree(store, ignore_errors=True)
    store.mkdir(parents=True)
    for name, data in content.items():
        (store / run / name).parent.mkdir(parents=True, exist_ok=True)
        (store / run / name).write_bytes(data)
    return run


def check(done: Done) -> None:
    """AssertionError when the command did what none may do."""
    assert done.code in CODES[done.args[0]], f"exit code {done.code}"
    assert raw(done.out + done.err) == [], f"raw: {raw(done.out + done.err)}"
    assert "Traceback" not in done.err, done.err
    assert len(done.out) < OUTPUT_MAX, f"{len(done.out)} characters"
    if "--json" in done.args:
        for line in done.out.splitlines():
            json.loads(line)


def run_case(seed: str, commands: list[tuple[str, str]], folder: Path) -> list[str]:
    """One mangled run, and what some of the commands make of it: what is wrong, if anything."""
    rng = random.Random(seed)
    wrong = []
    run = make(rng, folder / "runs")
    before = {path: path.read_bytes() for path in (folder / "runs" / run).rglob("*.seg")}
    for command, words in rng.sample(commands, 2):
        args = [*command.split(), *(word.replace("{run}", run) for word in words.split())]
        try:
            check(call(args[0], *args[1:], cwd=folder / "runs"))
        except BaseException as exc:
            text = "".join(traceback.format_exception(exc)[-12:])
            wrong.append(f"case {seed}: {' '.join(args)}\n{text}")
    if before != {path: path.read_bytes() for path in (folder / "runs" / run).rglob("*.seg")}:
        wrong.append(f"case {seed}: a command has changed the run")
    return wrong


def main(seed: str, count: str, folder: str) -> int:
    """So many cases; what is wrong goes to standard output, the case under way to a file."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
    commands, found = reading(), 0
    for number in range(int(count)):
        Path(folder, "case").write_text(f"{seed} {number}")
        used = resource.getrusage(resource.RUSAGE_SELF)
        limit = int(used.ru_utime + used.ru_stime) + CPU_S_EACH
        resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))
        for wrong in run_case(f"{seed} {number}", commands, Path(folder)):
            print(wrong)
            found += 1
    print(f"{count} cases, {len(commands)} commands, {found} wrong")
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
