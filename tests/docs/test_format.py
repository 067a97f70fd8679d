"""docs/format.md is what the code does: its hex example, its tables, its reader.

Run as a program this prints the hex example as it is to be.
"""

from __future__ import annotations

import json
import re
import struct
import subprocess
import sys
from pathlib import Path

import msgpack
import pytest

from eventlog import EventLog
from eventlog.format.frame import (
    FRAME_SIZE,
    HEADER_SIZE,
    PAYLOAD_SIZE_MAX,
    decode_segment_header,
    frame_at,
)
from eventlog.testing import SimulatedDisk
from tests.support.paths import ROOT, TESTS

PAGE = (ROOT / "docs" / "format.md").read_text()


def block(language: str, holding: str = "") -> str:
    """The first code block of the page in ``language`` with ``holding`` in it."""
    blocks: list[str] = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return next(text for text in blocks if holding in text)


def hexdump() -> str:
    """The files of the page's small log, part by part."""
    disk = SimulatedDisk(seed=1)
    with EventLog.open("log", files=disk) as log:
        log.append("greeting", {"text": "hello"})
        log.append_snapshot(["hello"])
        log.commit()
    files = {name: bytes(file.content) for name, file in disk.directories["log"].items()}
    segment = files["00000001.seg"]
    header = decode_segment_header(segment)
    assert header is not None
    lines = [
        f"00000001.seg ({len(segment)} bytes)",
        *part("segment header", segment, 0, HEADER_SIZE),
    ]
    offset = HEADER_SIZE
    while (frame := frame_at(segment, offset, header.salt)) is not None:
        kind = {1: "records", 2: "snapshot", 3: "footer"}[frame.kind]
        last = frame.lsn + frame.count - 1
        lsns = f"LSN {frame.lsn}-{last}" if frame.count > 1 else f"LSN {frame.lsn}"
        title = f"frame: {kind}, {lsns}, payload of {frame.size} bytes"
        lines += part(title, segment, offset, offset + FRAME_SIZE)
        content = frame.payload_end - (16 if frame.kind == 3 else 0)
        lines += part("payload", segment, offset + FRAME_SIZE, content)
        if frame.kind == 3:
            lines += part("trailer", segment, content, frame.payload_end)
        if frame.payload_end < frame.end:
            lines += part("padding", segment, frame.payload_end, frame.end)
        offset = frame.end
    assert offset == len(segment)
    mark = files["MARK"]
    lines += ["", f"MARK ({len(mark)} bytes)", *part("mark", mark, 0, len(mark))]
    lock = files["LOCK"]
    text = lock.rstrip().decode()
    lines += ["", f"LOCK ({len(lock)} bytes: this line, spaces, a line feed)", text]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def part(title: str, data: bytes, start: int, end: int) -> list[str]:
    lines = [f"-- {title}"]
    for at in range(start, end, 16):
        row = data[at : min(at + 16, end)]
        text = "".join(chr(c) if 32 <= c < 127 else "." for c in row)
        lines.append(f"{at:04x}  {row.hex(' ', -4):<35}  {text}")
    return lines


def test_hex_example_is_what_the_code_writes() -> None:
    assert block("hexdump") == hexdump(), f"to renew it: python {__file__}"


def table(heading: str) -> list[tuple[int, int]]:
    """Offset and size of each field in the first table below ``heading``."""
    section = PAGE.split(f"\n{heading}", 1)[1]
    rows = re.findall(r"^\| (\d+) \| (\d+) \|", section.split("\n\n|", 1)[1], re.MULTILINE)
    fields = [(int(offset), int(size)) for offset, size in rows]
    stop = next((i for i in range(1, len(fields)) if fields[i][0] == 0), len(fields))
    return fields[:stop]


@pytest.mark.parametrize(
    ("heading", "size"),
    [
        ("## Segment header", HEADER_SIZE),
        ("## Frame", FRAME_SIZE),
        ("### Payload of kind 3", 16),
        ("## MARK", 52),
    ],
)
def test_tables_have_no_holes(heading: str, size: int) -> None:
    end = 0
    for offset, length in table(heading):
        assert offset == end
        end += length
    assert end == size


def test_limits_are_those_of_the_code() -> None:
    assert f"at most {PAYLOAD_SIZE_MAX:,}" in PAGE


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Several segments, batches, snapshots, reopenings, a takeover, a tail that is not closed."""
    path = tmp_path / "log"
    for generation in range(3):
        with EventLog.open(path, segment_size=1500) as log:
            for i in range(8):
                log.append("a", {"generation": generation, "i": i, 3: b"\x00" * i})
                log.append_batch([("b", i), ("b", [None, True, 2.5]), ("c", "text")])
            log.append_snapshot({"upto": generation})
    old = EventLog.open(path, segment_size=1500)
    old.append("d", "counts")
    old.commit()
    new = EventLog.open(path, segment_size=1500, takeover=True)
    new.append("d", "counts as well")
    new.commit()
    old.append("d", "does not count")
    with pytest.raises(Exception, match="taken over"):
        old.close()
    new._appender.fail(OSError("as if the process had died"))
    new.close()
    return path


def run_reader(reader: Path, log: Path) -> subprocess.CompletedProcess[str]:
    # Isolated, and elsewhere: it must not find anything of ours.
    code = (
        "import sys, runpy, msgpack;"
        "reader = runpy.run_path(sys.argv[1]); assert 'eventlog' not in sys.modules;"
        "sys.stdout.write(msgpack.packb(list(reader['records'](sys.argv[2]))).hex())"
    )
    return subprocess.run(
        [sys.executable, "-I", "-c", code, reader, log],
        capture_output=True,
        text=True,
        check=False,
        cwd=log.parent,
    )


def test_reader_of_the_page_reads_what_the_library_wrote(log: Path, tmp_path: Path) -> None:
    reader = tmp_path / "reader.py"
    reader.write_text(block("python", "def segments"))
    assert "eventlog" not in reader.read_text()
    done = run_reader(reader, log)
    assert done.returncode == 0, done.stderr
    got = msgpack.unpackb(bytes.fromhex(done.stdout), strict_map_key=False)
    with EventLog.read(log) as mine:
        expected = [[r.lsn, r.time_ns, r.kind, r.body] for r in mine.records()]
        assert len(mine.listing.numbers()) > 3
    assert got == expected and len(got) == 3 * (8 * 4 + 1) + 2


def test_reader_of_the_page_passes_over_what_was_removed(log: Path, tmp_path: Path) -> None:
    reader = tmp_path / "reader.py"
    reader.write_text(block("python", "def segments"))
    left = (log / "00000001.seg").read_bytes()
    with EventLog.open(log, segment_size=1500) as writer:
        oldest = writer.truncate_before(40)
    (log / "00000001.seg").write_bytes(left)  # as a crash may leave it
    done = run_reader(reader, log)
    assert done.returncode == 0, done.stderr
    got = msgpack.unpackb(bytes.fromhex(done.stdout), strict_map_key=False)
    with EventLog.read(log) as mine:
        assert [record[0] for record in got] == [record.lsn for record in mine.records()]
    assert 1 < got[0][0] == oldest <= 40


def test_reader_of_the_page_gives_up_on_damage(log: Path, tmp_path: Path) -> None:
    reader = tmp_path / "reader.py"
    reader.write_text(block("python", "def segments"))
    segment = log / "00000002.seg"
    data = bytearray(segment.read_bytes())
    data[200] ^= 1
    segment.write_bytes(data)
    done = run_reader(reader, log)
    assert done.returncode == 1 and "damage at offset" in done.stderr


@pytest.mark.parametrize(("name", "size"), [("encrypted", 0), ("begun_in_clear", 1)])
def test_reader_of_the_page_says_when_a_log_is_encrypted(
    name: str, size: int, tmp_path: Path
) -> None:
    reader = tmp_path / "reader.py"
    reader.write_text(block("python", "def segments"))
    golden = TESTS / "data" / "v1" / name
    done = run_reader(reader, golden)
    assert done.returncode == 1 and done.stderr.endswith("ValueError: offset 64: encrypted\n")
    done = subprocess.run(
        [sys.executable, "-I", reader, golden], capture_output=True, text=True, check=False
    )
    assert len(done.stdout.splitlines()) == size, "as far as it is in clear"


def test_lock_is_what_the_page_says(tmp_path: Path) -> None:
    with EventLog.open(tmp_path / "log"):
        content = (tmp_path / "log" / "LOCK").read_bytes()
    assert len(content) == 512 and content.endswith(b" \n")
    assert set(json.loads(content)) == {"epoch", "pid", "host", "since"}


def test_footer_is_what_the_page_says(log: Path) -> None:
    data = (log / "00000001.seg").read_bytes()
    salt = data[56:60]
    marker, _, offset = struct.unpack("<4sIQ", data[-16:])
    assert marker == salt
    assert data[offset : offset + 4] == salt and data[offset + 12] == 3
    unpacker = msgpack.Unpacker()
    unpacker.feed(data[offset + 48 : -16])
    clean, index, digest = unpacker.unpack()
    assert clean is False and index[:2] == [1, 64] and len(digest) == 16


if __name__ == "__main__":
    sys.stdout.write(hexdump())
